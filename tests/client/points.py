"""A stand-in for a signal handler that comes at a chosen point: each line of the client is one.

Handlers run between two steps of the interpreter. This one runs when the client's n-th line begins,
so a test can go through all points, one after another, instead of hoping for the rare ones.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import ringd_client

PACKAGE = str(Path(ringd_client.__file__).parent)


def points_in(work: Callable[[], object]) -> int:
    """How many there are."""
    with Handler(sys.maxsize, lambda: None) as handler:
        work()
    return handler.passed


class Handler:
    """Runs ``handle`` when the ``at``-th line of the client begins on this thread.

    ``with`` and ``try`` are no points, as the interpreter looks after signals only at calls and
    loops: a ``with`` begins once more at the end of its block, when the lock is still held.

    Attributes:
        line: where it came; "": there were not so many lines.
        passed: how many points there were before.
    """

    def __init__(self, at: int, handle: Callable[[], object]) -> None:
        self._at = at
        self.passed = 0
        self._handle = handle
        self.line = ""
        self._tracer = self._trace
        """Held: the interpreter looks after its own reference badly.

        Before it calls the tracer it makes a frame object, which can start a collection of garbage,
        which can run a finalizer of the client, whose line can be the one where we raise: then it
        forgets the tracer, and goes on to call what it has just freed.
        """

    def __enter__(self) -> Handler:
        sys.settrace(self._tracer)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE) or self.line:
            return None
        if event == "line":
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            if not text.startswith(("with ", "try:")):
                self.passed += 1
                if self.passed > self._at:
                    self.line = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}: {text}"
                    self._handle()
        return self._tracer
