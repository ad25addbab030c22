"""Time that processes could not use, as the CPUs were busy with others: it is no sign of a hang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

MAX_SHARE = 5.0
"""A process that is kept from the CPUs has at most so many times the time that it was given."""
_LOOK_S = 0.02
"""How soon it is looked at again, at the earliest."""


def kept_from_cpu_s(pid: int) -> float:
    """For how long a process's main thread has been ready to run and no CPU was free, in seconds
    since its start; 0.0: not known."""
    try:
        return parse_schedstat(Path(f"/proc/{pid}/schedstat").read_text())
    except OSError:
        return 0.0


def parse_schedstat(text: str) -> float:
    """The second field of ``/proc/PID/schedstat``, in seconds; 0.0: there is none."""
    fields = text.split()
    return int(fields[1]) / 1e9 if len(fields) == 3 and fields[1].isdecimal() else 0.0


def left_s(grace_s: float, spent_s: float, kept_s: float) -> float:
    """What is left of ``grace_s`` after ``spent_s``, of which a process was kept from the CPUs for
    ``kept_s``."""
    return grace_s + min(kept_s, (MAX_SHARE - 1) * grace_s) - spent_s


async def wait_fairly(
    tasks: Mapping[asyncio.Task[Any], int],
    grace_s: float,
    kept: Callable[[int], float] = kept_from_cpu_s,
) -> None:
    """Wait for all ``tasks`` (with the process that each waits for), for ``grace_s`` of time that
    those processes could use."""
    clock = asyncio.get_running_loop().time
    began, before = clock(), {task: kept(pid) for task, pid in tasks.items()}
    pending: Collection[asyncio.Task[Any]] = set(tasks)
    remaining_s = grace_s
    while pending and remaining_s > 0:
        _, pending = await asyncio.wait(pending, timeout=max(remaining_s, _LOOK_S))
        kept_s = max((kept(tasks[task]) - before[task] for task in pending), default=0.0)
        remaining_s = left_s(grace_s, clock() - began, kept_s)
