"""A channel that speaks frames: decoder in front, exchangeable handler behind.

The handshake and the link (or control conversation) that follows it share one Connection;
the handler is exchanged between two frames, so no byte is lost in the hand-over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ringd.transport.base import Buffer, Channel
from ringd.wire.decoder import FrameDecoder, FrameHandler, Sink
from ringd.wire.frame import FrameError, Limits


class ConnectionHandler(FrameHandler, Protocol):
    """Who takes a connection's frames and its end."""

    def on_drained(self) -> None:
        """The send backlog is empty again."""

    def on_closed(self, error: BaseException | None) -> None:
        """The connection is at its end, told once; None: the peer ended it cleanly."""


class Connection:
    """One framed connection. Not thread-safe: everything runs on the loop's thread."""

    def __init__(self, channel: Channel, handler: ConnectionHandler, limits: Limits) -> None:
        self.channel = channel
        self.handler = handler
        self._decoder = FrameDecoder(handler, limits)
        self.closed = False
        self.send: Callable[[Sequence[Buffer], int], None] = channel.send
        channel.attach(self)

    @property
    def head_bytes(self) -> int:
        """Preamble and header of the frame that is being handed over."""
        return self._decoder.head_bytes

    @property
    def missing_bytes(self) -> int:
        """What is still to come of the payload that is landing."""
        return self._decoder.missing_bytes

    def hand_over(self, handler: ConnectionHandler, limits: Limits) -> None:
        """From the next frame on, ``handler`` takes the frames."""
        self.handler = handler
        self._decoder.trust(handler, limits)

    def send_frame(self, frame: bytes) -> None:
        """Send a frame without payload (as ``wire.frame.encode`` made it)."""
        if not self.closed:
            self.channel.send((frame,), len(frame))

    def close(self) -> None:
        """Flush, then end; the handler hears no more."""
        if not self.closed:
            self._deafen()
            self.channel.close()

    def abort(self) -> None:
        """End at once; the handler hears no more."""
        if not self.closed:
            self._deafen()
            self.channel.abort()

    def _deafen(self) -> None:
        """The rest of a read in which a frame's handler ended the connection goes to nobody."""
        self.closed = True
        self._decoder.handler = _DEAF

    # Receiver of the channel

    def next_buffers(self) -> Sequence[memoryview]:
        return self._decoder.next_buffers()

    def received(self, count: int) -> None:
        try:
            self._decoder.received(count)
        except Exception as exc:  # any failure in mid-stream loses the position: end the stream
            self.fail(exc)

    def drained(self) -> None:
        self.handler.on_drained()

    def ended(self, error: BaseException | None) -> None:
        if not self.closed:
            self.closed = True
            self.handler.on_closed(error)

    def fail(self, error: Exception) -> None:
        """The peer broke the protocol, or we failed to take its bytes: the stream is lost."""
        if self.closed:
            return
        self.closed = True
        self.channel.abort()
        self.handler.on_closed(error)


class _Deaf:
    """Stands in for the handler of a connection that was ended."""

    def on_frame(self, *head: Any) -> Sink | None:
        raise FrameError("the connection was ended by its handler")

    def on_payload_end(self) -> None:
        """Nobody waits for it."""


_DEAF = _Deaf()


class FrameCollector:
    """A handler base that refuses payloads; subclasses override ``on_control``."""

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
        if payload_bytes:
            raise FrameError(f"a frame of kind {kind} may not carry a payload here")
        self.on_message(kind, header)
        return None

    def on_payload_end(self) -> None:
        """Never called: payloads are refused."""

    def on_drained(self) -> None:
        """Nothing waits for it."""

    def on_message(self, kind: int, header: Any) -> None:
        """A frame without payload came."""
        raise NotImplementedError

    def on_closed(self, error: BaseException | None) -> None:
        """The connection is at its end."""
        raise NotImplementedError
