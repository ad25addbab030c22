"""Runs the handshake of ``wire.handshake`` over a channel, as dialer and as acceptor.

Nothing is lost in the hand-over: the final handler is made and put in place inside the very
step that accepts, so a frame that came in the same read already goes to it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from ringd.errors import HandshakeRefusedError
from ringd.transport.base import Address, Channel
from ringd.transport.connection import Connection, ConnectionHandler, FrameCollector
from ringd.wire.frame import MAGIC, VERSION, FrameError, Kind, Limits
from ringd.wire.handshake import (
    NONCE_BYTES,
    Acceptor,
    Admission,
    Credentials,
    Dialer,
    Expectation,
    Identity,
    Moved,
    Refusal,
    Reply,
)

HANDSHAKE_TIMEOUT_S = 5.0
"""From the connection's begin to its acceptance, whatever the caller's deadline."""
MAX_TOLD_PER_SECOND = 50
MAX_PENDING = 128
"""Unauthenticated connections at one listener; one more, and the oldest is dropped."""
KNOCKS = frozenset({"wrong_direction"})
"""Refusals that the dialer wants: it has said that it waits (see ``ringd.daemon.mesh``)."""
_WAYS_OUT = {
    "job": "; give both the same job_id",
    "rank_taken": "; end that one first, or take another rank",
    "secret": "; give both the same secret file",
    "version": "; install the same ringd on both hosts",
    "world_size": "; give all the same world_size",
}
"""What who dialled can do, by the reason of the refusal. The text that travels has none of it."""
_GREETING = MAGIC + bytes([VERSION])

Established = tuple[Connection, Identity]
Establish = Callable[[Connection, Identity], tuple[ConnectionHandler, Limits]]
"""Called once, synchronously, when the handshake succeeded: who takes the frames from now on.
It may send at once."""


def fresh_nonce() -> bytes:
    """A nonce from the system's random source."""
    return secrets.token_bytes(NONCE_BYTES)


async def shake_hands_as_dialer(
    channel: Channel,
    credentials: Credentials,
    *,
    expect: Expectation,
    establish: Establish,
    deadline: float,
    nonce: bytes,
    timeout_s: float = HANDSHAKE_TIMEOUT_S,
) -> Established:
    """Open the handshake on a channel that was just dialled.

    Args:
        channel: owned by the handshake, and by the connection it becomes; closed on failure.
        credentials: who we are.
        expect: who must answer.
        establish: makes the final handler.
        deadline: loop time; the handshake ends by it, and within ``timeout_s`` anyway.
        nonce: 32 bytes never used before.

    Returns:
        The connection, handed over to the handler that ``establish`` made, and the peer.

    Raises:
        HandshakeRefusedError: by the peer, or by us. Final: the same try fails again.
        TimeoutError: the peer was silent.
        ConnectionError: the connection ended.

    A cancelled call aborts the connection.
    """
    machine = Dialer(credentials, expect=expect, nonce=nonce)
    return await _run(channel, machine, establish, deadline=deadline, timeout_s=timeout_s)


async def shake_hands_as_acceptor(
    channel: Channel,
    credentials: Credentials,
    *,
    roles: frozenset[str],
    admit: Admission,
    establish: Establish,
    deadline: float,
    nonce: bytes,
    timeout_s: float = HANDSHAKE_TIMEOUT_S,
) -> Established:
    """The twin of :func:`shake_hands_as_dialer`, for one channel that was accepted.

    A listener wants :class:`Reception`, which bounds how many strangers may wait.
    """
    machine = Acceptor(credentials, roles=roles, admit=admit, nonce=nonce)
    return await _run(channel, machine, establish, deadline=deadline, timeout_s=timeout_s)


async def _run(
    channel: Channel, machine: _Machine, establish: Establish, *, deadline: float, timeout_s: float
) -> Established:
    loop = asyncio.get_running_loop()
    until = min(deadline, loop.time() + timeout_s)
    opening = _Opening(loop, channel, machine, establish, until=until)
    try:
        return await opening.outcome
    except asyncio.CancelledError:
        opening.connection.abort()
        opening.settle(error=None)
        raise


@dataclass(frozen=True, slots=True)
class Door:
    """Who may come, as whom they are received, and what becomes of them.

    Attributes:
        credentials: who we are to them.
        roles: the roles that may come here.
        admit: has the last word about a peer that proved the secret.
        establish: makes the final handler of a connection.
    """

    credentials: Credentials
    roles: frozenset[str]
    admit: Admission
    establish: Establish

    def acceptor(self, nonce: bytes) -> Acceptor:
        """Our side of a handshake at this door."""
        return Acceptor(self.credentials, roles=self.roles, admit=self.admit, nonce=nonce)


class Reception:
    """Takes a listener's channels through the handshake; a bounded number of them at once.

    Needs no task. A channel that fails is closed, with one log line that names the peer.

    Args:
        credentials: who we are.
        roles: the roles that may come here.
        admit: has the last word about a peer that proved the secret.
        establish: makes the final handler of a connection.
        log: where refusals are told.
        second: asked for each channel: the door for other roles, if there is one now.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        roles: frozenset[str],
        admit: Admission,
        establish: Establish,
        log: logging.Logger,
        make_nonce: Callable[[], bytes] = fresh_nonce,
        timeout_s: float = HANDSHAKE_TIMEOUT_S,
        max_pending: int = MAX_PENDING,
        second: Callable[[], Door | None] = lambda: None,
    ) -> None:
        self._door = Door(credentials, roles, admit, establish)
        self._second = second
        self._log = log
        self._make_nonce = make_nonce
        self._timeout_s = timeout_s
        self._max_pending = max_pending
        self._pending: dict[_Opening, None] = {}  # oldest first
        self._second_began = -1.0
        self._told = self._left_out = 0

    @property
    def pending(self) -> int:
        """Connections in mid-handshake."""
        return len(self._pending)

    def on_channel(self, channel: Channel) -> None:
        """Begin with a channel: to be given to ``Transport.listen``."""
        if len(self._pending) >= self._max_pending:
            oldest = next(iter(self._pending))
            text = f"the oldest of {self._max_pending} connections in mid-handshake was dropped"
            oldest.fail(ConnectionAbortedError(text))
            self._pending.pop(oldest, None)
        loop = asyncio.get_running_loop()
        until = loop.time() + self._timeout_s
        second, nonce = self._second(), self._make_nonce()
        if second is None:
            machine: _Machine = self._door.acceptor(nonce)
            opening = _Opening(loop, channel, machine, self._door.establish, until=until)
        else:
            machine = _TwoDoors(self._door.acceptor(nonce), second.roles, second.acceptor(nonce))
            establish = partial(_establish_at, self._door, second)
            opening = _Opening(loop, channel, machine, establish, until=until)
        self._pending[opening] = None
        opening.outcome.add_done_callback(lambda outcome: self._ended(opening, outcome))

    def close(self) -> None:
        """Drop all that is in mid-handshake; stop the listener before."""
        for opening in list(self._pending):
            opening.fail(ConnectionAbortedError("the listener was closed"))

    def _ended(self, opening: _Opening, outcome: asyncio.Future[Established]) -> None:
        self._pending.pop(opening, None)
        error = outcome.exception()
        if error is None:
            return
        peer = opening.peer
        if isinstance(error, HandshakeRefusedError) and error.fields["reason"] in KNOCKS:
            self._log.debug("%s", error)
        elif isinstance(error, HandshakeRefusedError):
            self._tell("%s", error)
        elif isinstance(error, OSError):
            self._tell("no handshake with %s: %s", peer, error)
        else:
            self._log.error("handshake with %s failed", peer, exc_info=error)

    def _tell(self, text: str, *facts: object) -> None:
        """Log a failed handshake; of a flood only so many a second, and how many were left out."""
        now = asyncio.get_running_loop().time()
        if now - self._second_began >= 1.0:
            if self._left_out:
                self._log.warning("%d more handshakes failed", self._left_out)
            self._second_began, self._told, self._left_out = now, 0, 0
        if self._told < MAX_TOLD_PER_SECOND:
            self._told += 1
            self._log.warning(text, *facts)
        else:
            self._left_out += 1


class _Machine(Protocol):
    def begin(self) -> bytes: ...
    def receive(self, kind: int, header: Any) -> Reply: ...
    def refuse(self, reason: str, text: str) -> Reply: ...


class _TwoDoors:
    """An acceptor that is one of two, by the role that the dialer says it has."""

    def __init__(self, first: Acceptor, roles: frozenset[str], second: Acceptor) -> None:
        self._machine = first
        self._roles = roles
        self._second = second
        self._begun = False

    def begin(self) -> bytes:
        return b""

    def receive(self, kind: int, header: Any) -> Reply:
        role = header.get("role") if kind == Kind.HELLO and isinstance(header, dict) else None
        if isinstance(role, str) and role in self._roles and not self._begun:
            self._machine = self._second
        self._begun = True
        return self._machine.receive(kind, header)

    def refuse(self, reason: str, text: str) -> Reply:
        return self._machine.refuse(reason, text)


def _establish_at(
    first: Door, second: Door, connection: Connection, peer: Identity
) -> tuple[ConnectionHandler, Limits]:
    door = second if peer.role in second.roles else first
    return door.establish(connection, peer)


class _Opening(FrameCollector):
    """One handshake in progress: the connection's first handler."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        channel: Channel,
        machine: _Machine,
        establish: Establish,
        *,
        until: float,
    ) -> None:
        self.peer: Address = channel.peer
        self.outcome: asyncio.Future[Established] = loop.create_future()
        self._machine = machine
        self._establish = establish
        # TLS: the channel is wrapped here, on both sides, before the first frame; the handshake
        # then binds to the TLS session by one more item in its transcript.
        self.connection = _OpeningConnection(channel, self)
        channel.attach(_FirstBytes(channel, self.connection, self))
        self._timer = loop.call_at(until, self._expire)
        hello = machine.begin()
        if hello:
            self.connection.send_frame(hello)

    def on_message(self, kind: int, header: Any) -> None:
        """Take one step; the one that accepts puts the final handler in place."""
        if self.outcome.done():
            return
        reply = self._machine.receive(kind, header)
        if reply.frame:
            self.connection.send_frame(reply.frame)
        if reply.refusal is not None:
            self._refused(reply.refusal)
        elif reply.peer is not None:
            handler, limits = self._establish(self.connection, reply.peer)
            self.connection.hand_over(handler, limits)
            self.settle(error=None, result=(self.connection, reply.peer))

    def on_closed(self, error: BaseException | None) -> None:
        """The peer ended the connection in mid-handshake."""
        why = "the peer closed the connection" if error is None else str(error)
        self.settle(error=ConnectionResetError(f"{self.peer}: {why} during the handshake"))

    def broken(self, error: Exception) -> None:
        """Bytes came that are no frames, or a step of ours failed."""
        if self.outcome.done():
            return
        if isinstance(error, FrameError):
            self.refuse("protocol", str(error))
        else:
            self.fail(error)

    def refuse(self, reason: str, text: str) -> None:
        """Tell the peer why, and close in order, so that it arrives."""
        reply = self._machine.refuse(reason, text)
        self.connection.send_frame(reply.frame)
        assert reply.refusal is not None
        self._refused(reply.refusal)

    def fail(self, error: Exception) -> None:
        """End at once, without a word."""
        self.connection.abort()
        self.settle(error=error)

    def stranger(self, text: str) -> None:
        """What speaks there is not ringd: nothing is told to it."""
        refusal = self._machine.refuse("protocol", text).refusal
        assert refusal is not None
        self.connection.abort()
        self._refused(refusal)

    def settle(self, *, error: Exception | None, result: Established | None = None) -> None:
        """Fix the outcome, once."""
        self._timer.cancel()
        if self.outcome.done():
            return
        if error is not None:
            self.outcome.set_exception(error)
        elif result is not None:
            self.outcome.set_result(result)

    def _refused(self, refusal: Refusal) -> None:
        self.connection.close()
        who = f"{self.peer} refused us"
        way_out = _WAYS_OUT.get(refusal.reason, "") if isinstance(self._machine, Dialer) else ""
        if isinstance(self._machine, Dialer) == (refusal.by == "dialer"):
            who = f"refused {self.peer}"
        error = HandshakeRefusedError(
            f"{who}: {refusal.text}{way_out}",
            reason=refusal.reason,
            text=refusal.text,
            refused_by=refusal.by,
            address=str(self.peer),
            **_way(refusal.moved),
        )
        self.settle(error=error)

    def _expire(self) -> None:
        # Without a REFUSED: a peer that was only slow may try again, and a refusal is final.
        self.connection.close()
        self.settle(error=TimeoutError(f"{self.peer} did not complete the handshake in time"))


def _way(moved: Moved | None) -> dict[str, Any]:
    """A referral as fields of an error."""
    return {} if moved is None else {"to": [moved.host, moved.port], "epoch": moved.epoch}


class _OpeningConnection(Connection):
    """While the handshake lasts, a peer whose bytes are not taken is told why."""

    def __init__(self, channel: Channel, opening: _Opening) -> None:
        self._opening = opening
        super().__init__(channel, opening, Limits.for_handshake())

    def fail(self, error: Exception) -> None:
        """In mid-handshake the peer is told why; afterwards as any connection."""
        if self.handler is self._opening:
            self._opening.broken(error)
        else:
            super().fail(error)


class _FirstBytes:
    """Judges the first bytes as they come, and steps aside.

    A whole preamble is longer than many a stranger's first message ("GET / HTTP/1.1"); waiting
    for the rest would hold the stranger until the time limit.
    """

    def __init__(self, channel: Channel, connection: Connection, opening: _Opening) -> None:
        self._channel = channel
        self._connection = connection
        self._opening = opening
        self._seen = b""
        self._view = memoryview(b"")

    def next_buffers(self) -> Sequence[memoryview]:
        buffers = self._connection.next_buffers()
        self._view = buffers[0]
        return buffers

    def received(self, count: int) -> None:
        self._seen += bytes(self._view[: min(count, len(_GREETING) - len(self._seen))])
        seen = self._seen
        if not _GREETING.startswith(seen):
            if seen.startswith(MAGIC):
                text = f"protocol version {seen[len(MAGIC)]}, this side's is {VERSION}"
                self._opening.refuse("version", text)
            else:
                self._opening.stranger(f"not ringd's protocol: the first bytes are {seen!r}")
            return
        if len(seen) == len(_GREETING):
            self._channel.attach(self._connection)
        self._connection.received(count)

    def drained(self) -> None:
        self._connection.drained()

    def ended(self, error: BaseException | None) -> None:
        self._connection.ended(error)
