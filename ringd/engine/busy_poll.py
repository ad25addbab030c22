"""Staying awake for a moment after a call began, instead of sleeping at once.

A small collective is over in less time than it takes to wake a sleeping process on an idle core
(tens of microseconds in a virtual machine). So for a bounded time after each call the loop polls
without blocking, and gives the processor away at every turn to whoever wants it.
"""

from __future__ import annotations

import asyncio
from os import sched_yield
from time import perf_counter
from typing import Final

POLL_BYTES: Final = 64 * 1024
"""Collectives of more than this do not ask for it: they take longer than a wake-up, and the
processor is needed for their bytes, which trainers and other daemons copy."""


class BusyPoll:
    """Keeps ``loop`` polling for ``span_s`` seconds after the last ``begin``; 0: never.

    ``is_on``: it polls now.

    Virtual time stands while callbacks run, so a simulation must leave it off.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, span_s: float) -> None:
        self._loop = loop
        self._span_s = span_s
        self._until = 0.0
        self.is_on = False

    def begin(self) -> None:
        """A call began: what it waits for will come soon."""
        if self._span_s:
            self._until = perf_counter() + self._span_s
            if not self.is_on:
                self.is_on = True
                self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        if perf_counter() < self._until:
            sched_yield()
            self._loop.call_soon(self._turn)
        else:
            self.is_on = False
