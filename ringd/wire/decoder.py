"""From bytes to frames: pure, incremental, and without a copy for large payloads.

The decoder says where the next bytes should be written (``next_buffers``) and is told how
many came (``received``). Preambles, headers and small payloads pass through a staging buffer;
a large payload goes straight to the memory that the handler's sink names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ringd.wire.frame import (
    PREAMBLE,
    PREAMBLE_BYTES,
    FrameError,
    Limits,
    check_preamble,
    unpack_header,
)

STAGING_BYTES = 96 * 1024
"""For a peer that proved who it is."""
FIRST_STAGING_BYTES = 2 * 1024
"""Before that: a stranger costs no more."""
PEEK_BYTES = 64
"""In a run of large frames: how much is read ahead, so that payload does not land in staging."""


class Sink(Protocol):
    """Where a payload goes that is not handed over inline."""

    def room(self, remaining_bytes: int) -> memoryview:
        """Memory for the next bytes: at least 1, at most ``remaining_bytes``."""

    def filled(self, count: int) -> None:
        """``count`` bytes of the room last given are there."""


class FrameHandler(Protocol):
    """Who takes frames. A handler may be exchanged between two frames."""

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
        """A frame's head came. Its payload is ``inline`` (valid during the call), or goes to
        the sink that is returned; None is returned for inline and empty payloads.

        Raises:
            FrameError: the frame may not come here and now; the connection ends.
        """

    def on_payload_end(self) -> None:
        """The payload whose sink ``on_frame`` returned is complete."""


class FrameDecoder:
    """Incremental decoder of one direction of one connection.

    Raises FrameError from ``received``; after that the position is lost and the decoder refuses
    to go on.
    """

    def __init__(self, handler: FrameHandler, limits: Limits) -> None:
        self.handler = handler
        self.limits = limits
        self.head_bytes = 0
        """Of the frame that is being handed over: preamble and header."""
        strangers = limits == Limits.for_handshake()
        self._staging = bytearray(FIRST_STAGING_BYTES if strangers else STAGING_BYTES)
        self._view = memoryview(self._staging)
        self._start = 0  # first byte in staging that was not taken
        self._end = 0
        self._sink: Sink | None = None
        self._remaining = 0  # bytes of the current payload still to come
        self._room: memoryview | None = None
        self._bulk = False
        self._need = PREAMBLE_BYTES
        self._broken = False

    @property
    def missing_bytes(self) -> int:
        """What is still to come of the payload that is landing."""
        return self._remaining if self._sink is not None else 0

    def trust(self, handler: FrameHandler, limits: Limits) -> None:
        """From the next frame on another handler takes the frames, under other limits."""
        self.handler = handler
        self.limits = limits
        self._grow(STAGING_BYTES)

    def _grow(self, size_bytes: int) -> None:
        """A larger staging buffer, with the same bytes in the same places."""
        if size_bytes > len(self._staging):
            grown = bytearray(size_bytes)
            grown[: self._end] = self._view[: self._end]
            self._staging, self._view = grown, memoryview(grown)

    def next_buffers(self) -> Sequence[memoryview]:
        """Where the next bytes go; valid until the next ``received``."""
        if self._broken:
            raise FrameError("the decoder lost its position")
        sink = self._sink
        if sink is not None:
            room = sink.room(self._remaining)
            self._room = room
            if len(room) == self._remaining:
                return (room, self._view[:PEEK_BYTES])
            return (room,)
        if self._start:
            self._compact()
        if self._bulk:
            return (self._view[self._end : max(self._end + PEEK_BYTES, self._need)],)
        return (self._view[self._end :],)

    def _compact(self) -> None:
        size = self._end - self._start
        if size:
            self._view[:size] = self._view[self._start : self._end]
        self._start, self._end = 0, size

    def received(self, count: int) -> None:
        """``count`` bytes lie in the buffers last handed out."""
        try:
            sink = self._sink
            if sink is not None:
                room = self._room
                assert room is not None
                taken = min(count, len(room))
                self._advance_payload(sink, taken)
                count -= taken
            if count:
                self._end += count
            if self._sink is None and self._end - self._start >= PREAMBLE_BYTES:
                self._take_frames()
        except BaseException:
            self._broken = True
            raise

    def _advance_payload(self, sink: Sink, count: int) -> None:
        self._remaining -= count
        sink.filled(count)
        if not self._remaining:
            self._sink = self._room = None
            self._start = self._end = 0
            self._need = PREAMBLE_BYTES
            self.handler.on_payload_end()

    def _take_frames(self) -> None:
        """Take all frames that lie whole in staging; start the payload of one that does not."""
        while True:
            view = self._view  # a handler that gives way to another one may have exchanged it
            start = self._start
            have = self._end - start
            if have < PREAMBLE_BYTES:
                self._need = PREAMBLE_BYTES
                return
            fields = PREAMBLE.unpack_from(view, start)
            check_preamble(fields, self.limits)
            _, _, kind, flags, header_bytes, stream, payload_bytes, frame_no, ack = fields
            body = PREAMBLE_BYTES + header_bytes
            if have < body:
                self._expect(body)
                return
            self._bulk = payload_bytes > self.limits.inline_bytes
            whole = body + payload_bytes
            inline = None
            if payload_bytes and not self._bulk:
                if have < whole:
                    self._expect(whole)
                    return
                inline = view[start + body : start + whole]
            header = unpack_header(view[start + PREAMBLE_BYTES : start + body])
            self._start = start + (whole if inline is not None else body)
            self.head_bytes = body
            sink = self.handler.on_frame(
                kind, flags, stream, frame_no, ack, header, payload_bytes, inline
            )
            if payload_bytes and inline is None:
                if sink is None:
                    raise FrameError(f"a frame of kind {kind} may not carry a payload here")
                self._begin_payload(sink, payload_bytes)
                if self._sink is not None:
                    return

    def _expect(self, need: int) -> None:
        """Make room for a frame head (or a small frame) of ``need`` bytes, already checked."""
        self._need = need
        self._compact()
        self._grow(need)

    def _begin_payload(self, sink: Sink, payload_bytes: int) -> None:
        """Move what lies in staging to the sink; the rest will be received in place."""
        self._sink, self._remaining = sink, payload_bytes
        view = self._view
        while self._remaining and self._start < self._end:
            room = sink.room(self._remaining)
            count = min(len(room), self._end - self._start)
            room[:count] = view[self._start : self._start + count]
            self._start += count
            self._remaining -= count
            sink.filled(count)
        if not self._remaining:
            self._sink = None
            self.handler.on_payload_end()
        elif self._start == self._end:
            self._start = self._end = 0
