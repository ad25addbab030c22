"""Saying now and then that we live, and noticing that the other side does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LATE_S = 0.5
"""A timer later than this means that our own loop was held up: what came in meanwhile is read
before anybody is called silent."""
CATCH_UP_S = 0.05


class Heart:
    """Of one connection at a time.

    Args:
        beat: say that we live; the other side answers.
        silent: nothing came for ``limit_s``; told once, and no beat follows.
        every_s: between two beats.
    """

    def __init__(
        self,
        beat: Callable[[], None],
        silent: Callable[[], None],
        *,
        every_s: float,
        limit_s: float,
    ) -> None:
        self._beat = beat
        self._silent = silent
        self._every_s = every_s
        self._limit_s = limit_s
        self._heard_at = self._due = 0.0
        self._beat_at = 0.0  # of the first beat that has had no answer
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """A connection is there."""
        self.end()
        self.heard()
        self._set_timer()

    def heard(self) -> None:
        """Something came."""
        self._heard_at = asyncio.get_running_loop().time()
        self._beat_at = 0.0

    def unanswered_s(self) -> float:
        """For how long a beat has had no answer; 0.0: none is owed."""
        return asyncio.get_running_loop().time() - self._beat_at if self._beat_at else 0.0

    def end(self) -> None:
        """The connection is gone; may be called twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        now = asyncio.get_running_loop().time()
        self._wake_at(min(now + self._every_s, self._heard_at + self._limit_s))

    def _wake_at(self, due: float) -> None:
        self._due = due
        self._timer = asyncio.get_running_loop().call_at(due, self._wake)

    def _wake(self) -> None:
        now = asyncio.get_running_loop().time()
        if now > self._due + LATE_S:
            self._wake_at(now + CATCH_UP_S)
        elif now >= self._heard_at + self._limit_s:
            self._timer = None
            self._silent()
        else:
            self._beat()
            self._beat_at = self._beat_at or now
            self._set_timer()
