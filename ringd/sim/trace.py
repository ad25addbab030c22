"""What happened in a run, event by event: digested always, kept or shown where asked."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable

from ringd.transport.memory import TraceEvent

_STEP = struct.Struct("<dI")


class Trace(list[TraceEvent]):
    """A list of events that also has a digest of them, and of every step of the loop.

    Two runs with one digest had the same deliveries, timers, faults and outcomes, in one order at
    the same times.

    Args:
        keep: whether the events stay in the list; else only their digest does.
        show: told each event as a line.
    """

    def __init__(self, *, keep: bool = True, show: Callable[[str], None] | None = None) -> None:
        super().__init__()
        self._keep = keep
        self._show = show
        self._hash = hashlib.blake2b(digest_size=16)

    def append(self, event: TraceEvent) -> None:
        """Something happened."""
        self._hash.update(repr(event).encode())
        if self._keep:
            super().append(event)
        if self._show is not None:
            self._show(line_of(event))

    def step(self, now: float, ready: int) -> None:
        """The loop turns: at this time, with so many callbacks that are ready."""
        self._hash.update(_STEP.pack(now, ready))

    @property
    def digest(self) -> str:
        """Of all that was told so far, in hexadecimal."""
        return self._hash.hexdigest()


def line_of(event: TraceEvent) -> str:
    """An event for a reader."""
    when, what, *facts = event
    return f"{when:14.6f}  {what:12} {' '.join(map(str, facts))}".rstrip()
