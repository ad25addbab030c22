"""The end of a lab: its processes, its namespaces, its folder. All are found by its name."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

from ringd.errors import RingdError
from ringd.lab import wiring

RUN = Path("/run/ringd-lab")
"""A folder for each lab, with what it is (lab.json) and the socket and log of its switch."""
GRACE_S = 3.0
"""Between SIGTERM and SIGKILL."""
_LIMIT_S = 10.0


def folder_of(name: str) -> Path:
    """The folder of a lab."""
    return RUN / name


def exists(name: str) -> bool:
    """Whether anything is there of a lab of this name."""
    return folder_of(name).exists() or bool(wiring.namespaces(name))


def names() -> list[str]:
    """All labs that have a folder."""
    return sorted(path.name for path in RUN.iterdir()) if RUN.is_dir() else []


def take_down(name: str) -> None:
    """End what runs in the lab's namespaces, and remove all that there is of it.

    Raises:
        RingdError: a process outlives SIGKILL, or stands in the way.
        UnsupportedPlatformError: ``ip`` failed.
    """
    _end_processes(name)
    wiring.remove(name)
    shutil.rmtree(folder_of(name), ignore_errors=True)
    with contextlib.suppress(OSError):
        RUN.rmdir()  # the last one


def _end_processes(name: str) -> None:
    """SIGTERM, a grace, SIGKILL."""
    if os.getpid() in wiring.pids(name):
        raise RingdError(f"a lab is not taken down from within: leave the lab {name!r} first")
    begun = time.monotonic()
    told: set[int] = set()
    while left := wiring.pids(name):
        elapsed_s = time.monotonic() - begun
        if elapsed_s > GRACE_S + _LIMIT_S:
            raise RingdError(f"processes {left} of the lab {name!r} do not end")
        for pid in left:
            if elapsed_s > GRACE_S:
                _send(pid, signal.SIGKILL)
            elif pid not in told:
                _send(pid, signal.SIGTERM)
                _send(pid, signal.SIGCONT)  # one that is stopped takes no SIGTERM
        told.update(left)
        time.sleep(0.05)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
