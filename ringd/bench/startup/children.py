"""Children and what they leave behind: this process becomes the parent of orphans below it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import Popen
from typing import Any, Final

from ringd.errors import RingdError

PR_SET_CHILD_SUBREAPER: Final = 36
LOOK_EVERY_S: Final = 0.002


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """While this lasts, a process whose parent ends becomes our child (Linux: prctl(2))."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def wait_for(processes: Sequence[Popen[Any]], limit_s: float) -> tuple[float, float]:
    """Wait until all of them, and all that they left behind, have ended.

    Returns:
        When the last of ``processes`` ended, on the monotonic clock; the processor time of all
        children that ended meanwhile, in seconds.

    Raises:
        RingdError: one failed, or something was still there at the limit; it is killed.
    """
    until = time.monotonic() + limit_s
    left = {process.pid for process in processes}
    ended_at = cpu_s = 0.0
    failed = False
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if not pid:
            if time.monotonic() > until:
                _kill(_children())
                raise RingdError(f"processes had not ended after {limit_s:g} s")
            time.sleep(LOOK_EVERY_S)
            continue
        cpu_s += usage.ru_utime + usage.ru_stime
        if pid in left:
            left.discard(pid)
            ended_at = time.monotonic()
            failed = failed or status != 0
    for process in processes:
        process.returncode = 0  # it was waited for here
    if failed:
        raise RingdError("a rank failed; what it wrote to standard error says why")
    return ended_at, cpu_s


def _children() -> list[int]:
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(pid) for pid in text.split()]


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
