"""The end of the process, and its children: open communicators must not outlive their owner.

Open communicators are held here until they are closed, so one that the program forgot still
says goodbye at exit, and why the program ended.
"""

from __future__ import annotations

import atexit
import builtins
import os
import sys
import threading
import traceback
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, Protocol

from ringd.wire.raised import Raised

_PACKAGE: Final = str(Path(__file__).parent)


@dataclass(frozen=True, slots=True)
class Departure:
    """How a program leaves: it closes in order, or an exception ends its work."""

    raised: Raised | None = None

    @property
    def how(self) -> Literal["closed", "raised"]:
        """In one word."""
        return "closed" if self.raised is None else "raised"

    @property
    def detail(self) -> str:
        """For a person; "" for an orderly end."""
        return "" if self.raised is None else str(self.raised)

    def words(self) -> dict[str, Any]:
        """The body of the GOODBYE."""
        said: dict[str, Any] = {"how": self.how, "detail": self.detail}
        if self.raised is not None:
            said["exception"] = self.raised.words()
        return said


IN_ORDER: Final = Departure()


class Open(Protocol):
    """Something that ends with its process."""

    def _leave_at_exit(self, leaving: Departure) -> None:
        """Say goodbye."""

    def _after_fork_in_child(self) -> None:
        """Become useless without disturbing the parent."""


_open: set[Open] = set()
_exit = IN_ORDER
"""What the last sys.exit() of the main thread meant."""


def opened(communicator: Open) -> None:
    """Look after ``communicator`` until it is closed."""
    _watch_exit()
    _open.add(communicator)


def closed(communicator: Open) -> None:
    """It needs no looking after any more."""
    _open.discard(communicator)


def departure(exc: BaseException | None, place: tuple[str, int] | None = None) -> Departure:
    """What an exception that ends a program's work means; None: nothing ended it.

    A SystemExit that reports success is no failure. Of one that reports a failure while another
    exception is handled, and of a group, the exception behind it is told.

    Args:
        place: file and line of an exception that has not been raised yet.
    """
    if exc is None:
        return IN_ORDER
    if isinstance(exc, SystemExit):
        if exc.code in (None, 0):
            return IN_ORDER
        behind = None if exc.__suppress_context__ else exc.__context__
        if behind is not None and not isinstance(behind, SystemExit):
            exc, place = behind, None
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return Departure(_raised(exc, place))


def _raised(exc: BaseException, place: tuple[str, int] | None) -> Raised:
    file, line = place or _place(exc)
    try:
        message = str(exc)
    except Exception:
        message = "<its text can't be had>"
    return Raised.cut(type(exc).__name__, message, file, line)


def _place(exc: BaseException) -> tuple[str, int]:
    """The innermost line of the traceback that is not ours."""
    for frame in reversed(traceback.extract_tb(exc.__traceback__)):
        if not _is_ours(frame.filename):
            return frame.filename, frame.lineno or 0
    return "", 0


def _is_ours(filename: str) -> bool:
    return filename.startswith(_PACKAGE)


def _watch_exit() -> None:
    """Have sys.exit(), exit() and quit() remember the code: no excepthook is told of a SystemExit.

    A program that catches it and ends in order nevertheless is said to have left by it. One that
    raises a SystemExit by itself, where no ``with`` block of ours sees it, ends in order for all
    that can be known here.
    """
    original = sys.exit
    if getattr(original, "__module__", "") == __name__:
        return

    @wraps(original, assigned=("__name__", "__doc__"))
    def exit(status: Any = None, /) -> NoReturn:
        _note_exit(status)
        original(status)

    sys.exit = exit
    quitter = type(getattr(builtins, "exit", None))
    if quitter.__module__ == "_sitebuiltins":
        site_exit = quitter.__call__

        @wraps(site_exit)
        def leave(self: Any, code: Any = None) -> None:
            _note_exit(code)
            site_exit(self, code)

        quitter.__call__ = leave  # type: ignore[method-assign]


def _note_exit(status: Any) -> None:
    """The caller of our caller wants to leave; from another than the main thread it ends that."""
    global _exit
    if threading.current_thread() is threading.main_thread():
        caller = sys._getframe(2)
        leaving = SystemExit(status)
        leaving.__context__ = sys.exc_info()[1]
        _exit = departure(leaving, (caller.f_code.co_filename, caller.f_lineno))


def _at_exit() -> None:
    uncaught = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    leaving = _exit if uncaught is None else departure(uncaught)
    for communicator in list(_open):
        communicator._leave_at_exit(leaving)


def _in_child() -> None:
    global _exit
    for communicator in list(_open):
        communicator._after_fork_in_child()
    _open.clear()
    _exit = IN_ORDER


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_child)
