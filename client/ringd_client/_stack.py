"""What the daemon may see of a program that does not come: the Python stack of its main thread.

A handler of faulthandler writes it to a memfd when the daemon sends a signal. That needs no
cooperation: not the GIL, not a free moment of the interpreter, not a thread of ours.
"""

from __future__ import annotations

import faulthandler
import fcntl
import logging
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ringd.config import environment
from ringd.errors import ConfigError

DEFAULT_SIGNAL: Final = int(signal.SIGRTMIN) + 7
_SETTING: Final = "stack_signal"
_log = logging.getLogger("ringd.client")


@dataclass(frozen=True, slots=True)
class StackFile:
    """Where the stack is written, and on which signal. It stays for the life of the process.

    Attributes:
        signal: the number of the signal.
        fd: a memfd, in append mode, which daemons get a copy of.
        pid: the process that writes to it.
    """

    signal: int
    fd: int
    pid: int


_lock = threading.Lock()
_file: StackFile | None = None
_told = False


def offered() -> StackFile | None:
    """This process's stack file; the first call registers the handler.

    Any thread may call.

    Returns:
        None when it is turned off, or can't be had (which is logged, once).

    Raises:
        ConfigError: RINGD_STACK_SIGNAL is no good.
    """
    global _file
    number = stack_signal()
    if not number:
        return None
    with _lock:
        former = _file
        if former is not None and former.pid == os.getpid():
            return former
        if former is not None:
            number = former.signal  # a fork has inherited it: taken, but by us
        try:
            if former is None and _is_taken(number):
                in_use = f"signal {number} is in use by this program"
                _tell(f"{in_use} (RINGD_STACK_SIGNAL sets another)")
                return None
            _file = _register(number)
        except (OSError, RuntimeError) as exc:
            _tell(str(exc))
            return None
        if former is not None:
            os.close(former.fd)  # not sooner: the handler would write to a number that is free
        return _file


def stack_signal() -> int:
    """The number of the signal, from RINGD_STACK_SIGNAL; 0: off.

    Raises:
        ConfigError: not a real-time signal. Others mean something to somebody already.
    """
    name = environment.variable(_SETTING)
    text = environment.snapshot().get(name, "").strip()
    lowest, highest = int(signal.SIGRTMIN), int(signal.SIGRTMAX)
    if not text:
        return DEFAULT_SIGNAL
    if text == "0" or (text.isascii() and text.isdigit() and lowest <= int(text) <= highest):
        return int(text)
    raise ConfigError(
        f"{name} = {text!r}: allowed: 0 (off), or the number of a real-time signal, "
        f"{lowest} to {highest}",
        key=_SETTING,
        value=text,
    )


def _register(number: int) -> StackFile:
    fd = os.memfd_create("ringd-stack", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)  # nobody can make it unwritable
        # Not all threads: the stack of a thread that runs on changes while it is being read, and
        # faulthandler would crash the program. A handler's own thread stands still.
        faulthandler.register(number, file=fd, all_threads=False, chain=False)
    except BaseException:
        os.close(fd)
        raise
    return StackFile(number, fd, os.getpid())


def _is_taken(number: int) -> bool:
    """Whether somebody handles or ignores the signal; signal.getsignal() knows Python only."""
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, mask = line.partition(":")
        if key in ("SigCgt", "SigIgn") and int(mask, 16) >> (number - 1) & 1:
            return True
    return False


def _tell(why: str) -> None:
    global _told
    if not _told:
        _told = True
        _log.warning("if this rank is waited for, its stack can't be shown: %s", why)


def _in_child() -> None:
    """Another thread may have held the lock when the process was forked."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_in_child)
