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
from collections.abc import Iterable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal, NoReturn, Protocol

import ringd
from ringd.wire.raised import Raised

_PACKAGE: Final = str(Path(__file__).parent)
_SYSTEM: Final = Path(ringd.__file__).parent
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})


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
    """The innermost line of the traceback in the program's own code."""
    return _innermost(reversed(list(traceback.walk_tb(exc.__traceback__))))


def _innermost(walked: Iterable[tuple[FrameType, int]]) -> tuple[str, int]:
    """Of frames and lines, the innermost first: the file and line of the first in the program's
    own code. Where there is none, as the program is itself installed, the first that is not ours;
    ("", 0): there is none either."""
    places = [(frame.f_code.co_filename, line) for frame, line in walked]
    foreign = [place for place in places if not place[0].startswith(_PACKAGE)]
    return next((place for place in foreign if not _is_librarys(place[0])), (*foreign, ("", 0))[0])


def _is_librarys(filename: str) -> bool:
    """Whether a file belongs to the standard library, to a package that was installed, or to
    ringd; or is no file but a part of one of them (``<frozen runpy>``)."""
    if filename.startswith("<"):
        return filename not in ("<string>", "<stdin>")  # python -c, and a program from a pipe
    path = Path(filename)
    if not _INSTALLED.isdisjoint(path.parts):
        return True
    folders = [Path(os.__file__).parent, _SYSTEM]
    if sys.executable:
        folders.append(Path(sys.executable).parent)  # where commands of packages are
    return any(map(path.is_relative_to, folders))


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
        _exit = departure(leaving, _innermost(traceback.walk_stack(caller)))


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
