"""What a process uses and holds, as the system tells."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def private_bytes(pid: int) -> int:
    """Memory that is a process's own: not shared, not of files."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    sizes = [line.split() for line in text.splitlines() if line.startswith("Private_Dirty")]
    return int(sizes[0][1]) * 1024


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a process holds."""

    fds: int
    threads: int
    private_bytes: int
    mapped_segments: int


def inventory(pid: int) -> Inventory:
    """Count what a process holds."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return Inventory(
        fds=len(os.listdir(f"/proc/{pid}/fd")),
        threads=len(os.listdir(f"/proc/{pid}/task")),
        private_bytes=private_bytes(pid),
        mapped_segments=sum("memfd:ringd" in line for line in maps.splitlines()),
    )
