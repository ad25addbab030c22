"""Which peers answer: asked before this rank takes part in another epoch (ADR 15)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ringd.wire.frame import FrameError, Kind

if TYPE_CHECKING:
    from ringd.engine.engine import Engine
    from ringd.engine.link import Link

PROBE_S = 1.0
"""How long a peer may take to answer, or a lost link to come back."""


class Probing:
    """The questions of one rank; one round at a time, a new one ends the one before."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._number = 0
        self._silent: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._on_end: Callable[[frozenset[int]], None] | None = None

    def begin(self, peers: Iterable[int], on_end: Callable[[frozenset[int]], None]) -> None:
        """Ask those of ``peers`` to whom there is a link, or was one that is lost.

        Args:
            on_end: told who did not answer in PROBE_S; soon when all do, perhaps at once.
        """
        self.cancel()
        engine = self._engine
        self._number += 1
        self._on_end = on_end
        self._silent = {p for p in peers if p in engine.links or p in engine.cut_off}
        self._timer = engine.loop.call_later(PROBE_S, self._end)
        for peer in list(self._silent):
            link = engine.links.get(peer)
            if link is None:
                engine.want_link(peer)
            else:
                self._ask(link)
        self._end_if_all_answered()

    def cancel(self) -> None:
        """Nobody waits for the answers any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._on_end = None
        self._silent.clear()

    def link_up(self, link: Link) -> None:
        """A link is there (again)."""
        if link.peer in self._silent:
            self._ask(link)

    def _ask(self, link: Link) -> None:
        link.send_note(Kind.PING, 0, [self._number])

    def on_ping(self, link: Link, header: Any) -> None:
        """A peer asks: it is answered with its own number."""
        link.send_note(Kind.PONG, 0, [_number_in(header)])

    def on_pong(self, link: Link, header: Any) -> None:
        """A peer answers; an answer that nobody waits for is dropped."""
        if _number_in(header) == self._number:
            self._silent.discard(link.peer)
            self._end_if_all_answered()

    def _end_if_all_answered(self) -> None:
        if self._on_end is not None and not self._silent:
            self._end()

    def _end(self) -> None:
        silent, on_end = frozenset(self._silent), self._on_end
        self.cancel()
        if on_end is not None:
            on_end(silent)


def _number_in(header: Any) -> int:
    if not isinstance(header, list) or len(header) != 1 or type(header[0]) is not int:
        raise FrameError("a ping, and a pong, is [number]")
    return header[0]
