"""Marks: what a process has begun to do, and when, in one number each.

The clock is CLOCK_MONOTONIC, one for all processes of a host, so the marks of a trainer and of its
daemon are one story when they are sorted.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final

BITS: Final = 4
"""Of a mark, from the lowest on: what; all others: when, in ns."""
MOST: Final = 1 << 20
"""Marks that a process keeps until they are taken; older ones are lost."""

# What a trainer has begun.
PREPARE, REQUEST, FINISH, NOTHING = 0, 1, 2, 3
# What a daemon has begun.
IDLE, READ, ENTER, SEND, RECEIVE, FOLD, ANSWER = 4, 5, 6, 7, 8, 9, 10
TRAINERS: Final = frozenset({PREPARE, REQUEST, FINISH, NOTHING})


def mark(what: int, at_ns: int) -> int:
    """A mark of its own."""
    return at_ns << BITS | what


def read(mark: int) -> tuple[int, int]:
    """What, and when in ns."""
    return mark & ((1 << BITS) - 1), mark >> BITS


class Recorder:
    """The marks of one process. A method that is marked takes about 1 µs more.

    One thread marks; any may take.
    """

    def __init__(self) -> None:
        self._marks: deque[int] = deque(maxlen=MOST)
        self._what = IDLE
        self.mark = self._marker()

    def _marker(self) -> Callable[[int], None]:
        append, now = self._marks.append, perf_counter_ns

        def mark(what: int) -> None:
            append(now() << BITS | what)

        return mark

    def during(self, what: int, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, which marks when it begins, and what goes on when it ends."""
        append, now = self._marks.append, perf_counter_ns

        @functools.wraps(function)
        def marked(*args: Any) -> Any:
            before = self._what
            self._what = what
            append(now() << BITS | what)
            try:
                return function(*args)
            finally:
                self._what = before
                append(now() << BITS | before)

        return marked

    def take(self) -> dict[str, Any]:
        """What was marked since the last time: "marks", and whether some were "lost"."""
        kept = self._marks
        marks = [kept.popleft() for _ in range(len(kept))]  # one may be added meanwhile
        return {"marks": marks, "lost": len(marks) == MOST}
