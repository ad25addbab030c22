"""The first words on a link's connection: which link it is, and what of it has arrived.

The dialler says which link the connection is for: a fresh one, or one whose connection broke. Then
both tell what they have, and send what the other lacks: nothing twice, nothing lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringd.engine.link import Link
from ringd.transport.connection import Connection
from ringd.wire.decoder import Sink
from ringd.wire.frame import FrameError, Kind, Limits, encode

if TYPE_CHECKING:
    from ringd.engine.engine import Engine

NUMBER_BYTES = 8
_RESUME = int(Kind.RESUME)
UNKNOWN = -1
AGAIN_S = 0.05
LIMIT_S = 10.0
"""How long the peer may take to say its word."""


class Reunion:
    """A link's connection before it is a link's.

    Args:
        number: for the dialler the number that a fresh link is to have; None: the peer dialled.
    """

    def __init__(
        self, engine: Engine, peer: int, connection: Connection, number: bytes | None
    ) -> None:
        self._engine = engine
        self._peer = peer
        self._connection = connection
        self._link: Link | None = None
        self._dials = number is not None
        self._timer = engine.loop.call_later(LIMIT_S, self._expire)
        if number is not None:
            engine.joining.add(peer)
            link = engine.links.get(peer) or engine.unborn.get(peer)
            if link is None:
                link = engine.unborn[peer] = Link(engine, peer, connection, number)
            self._link = link
            self._say(link.number, peer in engine.unborn, *link.position())

    def _say(self, number: bytes, fresh: bool, taken: int, partial: int) -> None:
        header = [number, fresh, taken, partial]
        self._connection.send_frame(encode(_RESUME, header))

    def on_frame(
        self,
        kind: int,
        flags: int,
        stream: int,
        frame_no: int,
        ack: int,
        header: Any,
        payload_bytes: int,
        inline: memoryview | None,
    ) -> Sink | None:
        """The peer's word; the link takes over."""
        if kind != _RESUME or payload_bytes:
            raise FrameError(f"a link begins with RESUME, not with a frame of kind {kind}")
        number, fresh, taken, partial = _checked(header)
        self._timer.cancel()
        if self._dials:
            self._engine.joining.discard(self._peer)
        if self._engine.leaving.over:
            self._connection.close()
        elif self._dials:
            self._answered(number, taken, partial)
        else:
            self._asked(number, fresh, taken, partial)
        return None

    def _asked(self, number: bytes, fresh: bool, taken: int, partial: int) -> None:
        engine, old = self._engine, self._engine.links.get(self._peer)
        if old is not None and old.number == number:
            if old.up:  # its end has not reached us yet
                old.connection.abort()
                old.broke()
            self._say(number, False, *old.position())
            self._take_over(old, taken, partial)
        elif not fresh:
            self._say(number, False, UNKNOWN, 0)
            self._connection.close()
        else:
            if old is not None:
                old.connection.abort()
                old.broke()
                engine.link_void(old, "the peer began a new one")
            self._say(number, True, 0, 0)
            self._begin(Link(engine, self._peer, self._connection, number))

    def _answered(self, number: bytes, taken: int, partial: int) -> None:
        link = self._link
        assert link is not None
        if number != link.number:
            raise FrameError("the answer is about another link")
        if taken == UNKNOWN:
            self._connection.close()
            self._engine.link_void(link, "the peer does not know it any more")
            self._engine.want_link(self._peer)
        elif self._engine.links.get(self._peer) is link and not link.up:
            self._take_over(link, taken, partial)
        elif self._engine.unborn.get(self._peer) is link and not (taken or partial):
            link.connection = self._connection
            self._begin(link)
        else:  # it was given up, or another one was made, while we dialled
            self._connection.close()

    def _begin(self, link: Link) -> None:
        engine = self._engine
        engine.unborn.pop(self._peer, None)
        engine.links[self._peer] = link
        self._connection.hand_over(link, Limits(inline_bytes=engine.options.inline_bytes))
        engine.loop.call_soon(self._announce, link)

    def _announce(self, link: Link) -> None:
        """The link is there, unless the peer, which needs it no more, has given it up at once."""
        if self._engine.links.get(self._peer) is link:
            self._engine.link_up(link)

    def _take_over(self, link: Link, taken: int, partial: int) -> None:
        engine = self._engine
        self._connection.hand_over(link, Limits(inline_bytes=engine.options.inline_bytes))
        link.resume(self._connection, taken, partial)

    def on_payload_end(self) -> None:
        """Never called: payloads are refused."""

    def on_drained(self) -> None:
        """Nothing waits for it."""

    def on_closed(self, error: BaseException | None) -> None:
        """It did not come to be: once more, in a while."""
        self._timer.cancel()
        if not self._dials:
            return
        self._engine.joining.discard(self._peer)
        if not self._connection_is_used():
            self._engine.loop.call_later(AGAIN_S, self._engine.want_link, self._peer)

    def _expire(self) -> None:
        self._connection.abort()
        self.on_closed(TimeoutError("the peer says nothing"))

    def _connection_is_used(self) -> bool:
        link = self._engine.links.get(self._peer)
        return link is not None and link.up


def _checked(header: Any) -> tuple[bytes, bool, int, int]:
    if not isinstance(header, list) or len(header) != 4:
        raise FrameError("RESUME is [link id, fresh, taken, partial]")
    number, fresh, taken, partial = header
    if type(number) is not bytes or len(number) != NUMBER_BYTES or type(fresh) is not bool:
        raise FrameError("RESUME: a link id of eight bytes and a truth value were expected")
    if type(taken) is not int or type(partial) is not int or taken < UNKNOWN or partial < 0:
        raise FrameError("RESUME: taken and partial are whole numbers")
    return number, fresh, taken, partial
