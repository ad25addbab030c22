"""What every kind of ``ringd bench`` writes: figures, and what they were taken with and on."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

SCHEMA = 1
OPERATIONS = "rows"
"""The key of the rows of operations, which the reports of other kinds have, too, but empty."""


def report(
    json_path: Path | None, rows: Sequence[dict[str, Any]], kind: str = OPERATIONS, **facts: Any
) -> dict[str, Any]:
    """The report of a run, written to ``json_path`` if there is one.

    Args:
        kind: the key under which ``rows`` stand.
        facts: further keys.
    """
    found: dict[str, Any] = {"schema": SCHEMA, "versions": versions(), "machine": machine()}
    found |= facts
    found |= {OPERATIONS: [], kind: list(rows)}
    if json_path is not None:
        json_path.write_text(json.dumps(found, indent=1) + "\n")
    return found


def versions() -> dict[str, str]:
    """Versions of what takes part."""
    found = {"python": platform.python_version()}
    for name in ("ringd", "torch", "numpy", "uvloop", "msgpack"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "congestion_control": congestion.read_text().strip() if congestion.exists() else "unknown",
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
