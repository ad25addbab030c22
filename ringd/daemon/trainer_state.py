"""What the trainer is doing, as its daemon sees it without the trainer's cooperation.

The kernel tells the process's state, and faulthandler in the trainer writes the Python stack of
its main thread to a memfd, on a signal; see ``ringd_client._stack``.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ringd.errors import InvalidArgumentError

State = Literal["running", "sleeping", "stopped", "gone", "none", "unknown"]

PATIENCE_S = 0.05
"""How long the trainer's answer is waited for."""
MAX_FRAMES = 12
_OUTERMOST = 3
"""How many of a long stack's frames are its outermost ones, where the program's own code is."""
_MAX_PATH_CHARS = 100
_MAX_READ_BYTES = 64 * 1024
_KEPT_BYTES = 256 * 1024
"""The file is emptied when it is larger."""
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.001, 0.008
_TO_THE_MAIN_THREAD = 1
"""PIDFD_SIGNAL_THREAD (Linux 6.9)."""
_F_GET_SEALS = 1034
_STATES: dict[str, State] = {
    "R": "running",
    "S": "sleeping",
    "D": "sleeping",
    "T": "stopped",
    "t": "stopped",
    "Z": "gone",
    "X": "gone",
}
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_HEADING = "(most recent call first):\n"
_INSTALLED = re.compile(r"^.*(?:/(?:site|dist)-packages|/lib(?:64)?/python3\.\d+)/")
_CLIENT = "/ringd_client/"
_WAITS = frozenset({"receive", "wait_readable", "wait_writable", "sleep"})
"""Functions of the client in which it waits for its daemon."""


@dataclass(frozen=True, slots=True)
class TrainerState:
    """What a trainer was doing when it was looked at.

    Attributes:
        pid: its process; 0: there is none, or it is of another pid namespace.
        state: of its main thread. "sleeping": it waits for something, whatever its other threads
            do; "stopped": by a signal, or a debugger; "none": no trainer is attached.
        stack: of its main thread, innermost frame first, each as "file.py:line in function"; at
            most MAX_FRAMES: the innermost one, and below it the program's own. ringd's client at
            the top is one of them, as in "ringd_client.barrier (waiting)". Empty when it can't be
            had.
    """

    pid: int
    state: State
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelView:
    """What ``/proc/PID/status`` says of a process's main thread; bit n−1 is signal n."""

    state: State
    pending: int = 0
    blocked: int = 0
    caught: int = 0

    def hears(self, number: int) -> bool:
        """Whether signal ``number`` reaches a handler now.

        Where there is none, as after an exec, it would kill; where it is blocked, and in a stopped
        process, it would only queue.
        """
        awake = self.state in ("running", "sleeping")
        return awake and _has(self.caught, number) and not _has(self.blocked, number)

    def owes(self, number: int) -> bool:
        """Whether the signal was sent and not taken yet."""
        return _has(self.pending, number)

    def handles(self, number: int) -> bool:
        """Whether the main thread is in the handler of this signal, which blocks it meanwhile."""
        return _has(self.blocked, number)


def _has(mask: int, number: int) -> bool:
    return bool(mask >> (number - 1) & 1)


def view(pid: int) -> KernelView:
    """Ask the kernel. Never blocks for long, never raises."""
    if pid <= 0:
        return KernelView("unknown")
    try:
        return parse_status(Path(f"/proc/{pid}/status").read_text(errors="replace"))
    except (FileNotFoundError, ProcessLookupError):
        return KernelView("gone")
    except OSError:
        return KernelView("unknown")


def parse_status(text: str) -> KernelView:
    """The view that the text of ``/proc/PID/status`` gives; what it lacks is unknown."""
    lines = (line.partition(":") for line in text.splitlines())
    fields = {key: value.strip() for key, _, value in lines}

    def mask(*keys: str) -> int:
        found = 0
        for key in keys:
            with contextlib.suppress(ValueError):
                found |= int(fields.get(key, ""), 16)
        return found

    return KernelView(
        _STATES.get(fields.get("State", "")[:1], "unknown"),
        pending=mask("SigPnd", "ShdPnd"),
        blocked=mask("SigBlk"),
        caught=mask("SigCgt"),
    )


def parse_stack(text: str) -> tuple[str, ...]:
    """The last stack that faulthandler wrote, in our form.

    Frames of ringd's client at its top become one, which says what was called. Below the innermost
    frame those of installed packages and of the standard library are left out, so that the
    program's own are seen, unless it has none. Of a stack that is too long, the middle is left out.
    Lines that are no frames are passed over.
    """
    frames: list[tuple[str, str, str]] = []
    for line in text.rpartition(_HEADING)[2].splitlines():
        if match := _FRAME.match(line):
            path, number, function = match.groups()
            frames.append((path, number, function))
        elif line == "  ...":
            frames.append(("", "", ""))  # faulthandler itself left out the rest
    ours = next((i for i, frame in enumerate(frames) if _CLIENT not in frame[0]), len(frames))
    top = [_in_client([function for _, _, function in frames[:ours]])] if ours else []
    below = frames[ours:] if ours else frames[1:]
    if any(path and not _is_library(path) for path, _, _ in below):
        below = [frame for frame in below if not _is_library(frame[0])]
    told = [_told(frame) for frame in ([] if ours else frames[:1]) + below]
    return _without_middle([*top, *told])


def _is_library(path: str) -> bool:
    """Whether a frame's file is not the program's own."""
    return bool(_INSTALLED.match(path)) or _CLIENT in path or path.startswith("<frozen ")


def _told(frame: tuple[str, str, str]) -> str:
    path, number, function = frame
    return f"{_shortened(path)}:{number} in {function}" if path else "..."


def _in_client(functions: list[str]) -> str:
    """One line for the client's frames; ``functions`` are their names, innermost first."""
    doing = "waiting" if functions[0] in _WAITS else "working"
    return f"ringd_client.{functions[-1]} ({doing})"


def _without_middle(told: list[str]) -> tuple[str, ...]:
    if len(told) <= MAX_FRAMES:
        return tuple(told)
    outermost = [] if told[-1] == "..." else told[-_OUTERMOST:]
    return (*told[: MAX_FRAMES - 1 - len(outermost)], "...", *outermost)


def _shortened(path: str) -> str:
    """From the package on where a package is installed, else the last three parts."""
    short = _INSTALLED.sub("", path)
    parts = path.split("/")
    if short == path and len(parts) > 4:  # the first of an absolute path is empty
        short = "/".join(["...", *parts[-3:]])
    return short if len(short) <= _MAX_PATH_CHARS else f"...{short[3 - _MAX_PATH_CHARS :]}"


class Inspector:
    """Finds out what one trainer is doing. All methods run on the loop's thread.

    Args:
        pid: the trainer's process; 0 if it is of another pid namespace.
        stack_signal: on which its main thread writes its stack; 0: it does not.
        fd: the memfd that it writes to, or -1. The inspector owns it, also when it raises.

    Raises:
        InvalidArgumentError: not a real-time signal, or not a memfd (reading another file might
            block).
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pid: int, *, stack_signal: int = 0, fd: int = -1
    ) -> None:
        self._loop = loop
        self._pid = pid
        self._signal = stack_signal
        self._fd = fd
        self._pidfd = -1
        self._open = True
        self._waiting: list[Callable[[TrainerState], None]] = []
        self._seen = KernelView("unknown")
        self._from_bytes = 0
        self._until = 0.0
        self._timer: asyncio.Handle | None = None
        try:
            _check(stack_signal, fd)
        except InvalidArgumentError:
            self.close()
            raise
        if stack_signal and pid > 0:
            with contextlib.suppress(OSError):
                self._pidfd = os.pidfd_open(pid)

    def inspect(self, callback: Callable[[TrainerState], None]) -> None:
        """Look at the trainer, and tell ``callback`` once: soon, and within 60 ms.

        Never from within this call. Who asks while an answer is awaited gets the same one. After
        :meth:`close` there is no stack.
        """
        if not self._open:
            self._loop.call_soon(callback, TrainerState(self._pid, view(self._pid).state))
            return
        self._waiting.append(callback)
        if self._timer is None:
            self._seen = view(self._pid)
            self._from_bytes = self._make_room() if self._fd >= 0 else 0
            self._until = self._loop.time() + PATIENCE_S
            if self._ask():
                self._look_again(_FIRST_LOOK_S)
            else:
                self._timer = self._loop.call_soon(self._conclude)

    def close(self) -> None:
        """Let go of everything; who waits is told what is known."""
        self._open = False
        if self._timer is not None:
            self._timer.cancel()
            self._conclude()
        for fd in (self._fd, self._pidfd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._pidfd = -1

    def _ask(self) -> bool:
        """Send the signal; False: no answer can come."""
        if self._pidfd < 0 or not self._seen.hears(self._signal):
            return False
        if self._seen.owes(self._signal):
            return True  # nor the last one: signals of this kind queue
        try:
            _send(self._pidfd, self._signal)
        except OSError:
            return False
        return True

    def _make_room(self) -> int:
        """Empty the file if it has grown; its size in bytes."""
        if os.fstat(self._fd).st_size > _KEPT_BYTES:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
        return os.fstat(self._fd).st_size

    def _look_again(self, delay_s: float) -> None:
        left_s = max(self._until - self._loop.time(), 0.0)
        self._timer = self._loop.call_later(min(delay_s, left_s), self._look, delay_s)

    def _look(self, delay_s: float) -> None:
        """Conclude when something has been written *and* the handler is over, or time is."""
        written = self._written_bytes() and not view(self._pid).handles(self._signal)
        if written or self._loop.time() >= self._until:
            self._conclude()
        else:
            self._look_again(min(2 * delay_s, _LONGEST_LOOK_S))

    def _written_bytes(self) -> int:
        size_bytes = os.fstat(self._fd).st_size
        if size_bytes < self._from_bytes:
            self._from_bytes = 0  # another daemon of the same process has emptied it
        return size_bytes - self._from_bytes

    def _conclude(self) -> None:
        self._timer = None
        stack: tuple[str, ...] = ()
        if self._fd >= 0 and self._written_bytes():
            stack = parse_stack(self._read())
        state = self._seen.state
        now = view(self._pid).state
        if now in ("stopped", "gone"):
            state = now
        told = TrainerState(self._pid, state, () if state == "gone" else stack)
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            self._loop.call_soon(callback, told)

    def _read(self) -> str:
        """What was written since the signal was sent, its end if it is too much."""
        end = self._from_bytes + self._written_bytes()
        start = max(self._from_bytes, end - _MAX_READ_BYTES)
        return os.pread(self._fd, end - start, start).decode("ascii", "replace")


def _check(stack_signal: int, fd: int) -> None:
    if not stack_signal and fd < 0:
        return
    real_time = type(stack_signal) is int and signal.SIGRTMIN <= stack_signal <= signal.SIGRTMAX
    if not real_time or fd < 0:
        raise InvalidArgumentError("a stack needs a real-time signal and a file")
    try:
        fcntl.fcntl(fd, _F_GET_SEALS)
    except OSError:
        raise InvalidArgumentError("the file for the stack is no memfd") from None


def _send(pidfd: int, number: int) -> None:
    """Signal the main thread.

    Raises:
        OSError: it is gone, or another user's.
    """
    try:
        signal.pidfd_send_signal(pidfd, number, None, _TO_THE_MAIN_THREAD)
    except OSError as exc:
        if exc.errno != errno.EINVAL:
            raise
        # An older kernel. It takes the main thread, too, if that does not block the signal.
        signal.pidfd_send_signal(pidfd, number)
