"""What the engine needs of a network: channels that move bytes, a way to dial, a way to listen.

One implementation per file: ``tcp`` (real sockets), ``memory`` (in process, virtual time).
All callbacks run on the event loop's thread; none may block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Address:
    """Where something listens: an IP literal or a host name, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Receiver(Protocol):
    """Who takes a channel's bytes and events."""

    def next_buffers(self) -> Sequence[memoryview]:
        """Where the next bytes go, in order; never empty, no view of zero length."""

    def received(self, count: int) -> None:
        """``count`` bytes now lie in the buffers last handed out, from their start on."""

    def drained(self) -> None:
        """The channel had a backlog and has none any more."""

    def ended(self, error: BaseException | None) -> None:
        """The channel is at its end, once: None for a clean end of stream."""


class Channel(Protocol):
    """A duplex, ordered, reliable byte stream (a TCP connection, or its twin in memory)."""

    local: Address
    peer: Address
    backlog_bytes: int
    """Bytes given to ``send`` that the transport has not taken yet; their memory is in use."""

    def attach(self, receiver: Receiver) -> None:
        """Start to feed ``receiver``; may be called again to hand the channel to another."""

    def send(self, buffers: Sequence[Buffer], size_bytes: int) -> None:
        """Queue ``buffers`` (``size_bytes`` in all) and push out as much as goes at once.

        The memory is in use until the transport took it: see ``backlog_bytes``. Errors are
        told by ``Receiver.ended``, never raised here.
        """

    def own_backlog(self) -> None:
        """Replace what is still queued by private copies, so that its memory may be reused."""

    def close(self) -> None:
        """Flush the backlog, then end the stream. ``Receiver.ended`` is not called after this."""

    def abort(self) -> None:
        """End at once and drop the backlog. ``Receiver.ended`` is not called after this."""


class Listener(Protocol):
    """Something that accepts channels."""

    address: Address

    def close(self) -> None:
        """Stop accepting; channels that were accepted live on."""


class Transport(Protocol):
    """One kind of network."""

    name: str

    async def dial(self, address: Address, *, deadline: float) -> Channel:
        """A channel to ``address``, by the loop-time ``deadline``.

        One attempt: retries are the caller's. Raises:
            OSError: refused, unreachable, not resolved.
            TimeoutError: the deadline passed.
        """

    async def listen(self, address: Address, on_channel: Callable[[Channel], None]) -> Listener:
        """Accept at ``address`` (port 0: any).

        Raises:
            AddressInUseError: with host:port in its text.
        """
