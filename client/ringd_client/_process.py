"""The end of the process, and its children: open communicators must not outlive their owner.

Open communicators are held here until they are closed, so one that the program forgot still
says goodbye at exit.
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from pathlib import Path
from typing import Final, Protocol

MAX_DETAIL: Final = 1000
_PACKAGE = str(Path(__file__).parent)


class Open(Protocol):
    """Something that ends with its process."""

    def leave_at_exit(self, how: str, detail: str) -> None:
        """Say goodbye; ``how`` is "closed" or "raised"."""

    def after_fork_in_child(self) -> None:
        """Become useless without disturbing the parent."""


_open: set[Open] = set()


def opened(communicator: Open) -> None:
    """Look after ``communicator`` until it is closed."""
    _open.add(communicator)


def closed(communicator: Open) -> None:
    """It needs no looking after any more."""
    _open.discard(communicator)


def how_left(exc: BaseException | None) -> tuple[str, str]:
    """How a goodbye describes the end of a program's work: its "how" and its "detail".

    A SystemExit that reports success is no failure.
    """
    if exc is None or (isinstance(exc, SystemExit) and exc.code in (None, 0)):
        return "closed", ""
    text = f"{type(exc).__name__}: {exc}"
    frames = [f for f in traceback.extract_tb(exc.__traceback__) if not _is_ours(f.filename)]
    if frames:
        where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
        return "raised", text[: MAX_DETAIL - len(where)] + where
    return "raised", text[:MAX_DETAIL]


def _is_ours(filename: str) -> bool:
    return filename.startswith(_PACKAGE)


def _at_exit() -> None:
    uncaught = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    how, detail = how_left(uncaught)
    for communicator in list(_open):
        communicator.leave_at_exit(how, detail)


def _in_child() -> None:
    for communicator in list(_open):
        communicator.after_fork_in_child()
    _open.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_child)
