"""A link: numbered frames to one peer, over one connection after another."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from tests.wire.foreign.frames import ACK, ACK_NOW, REST, RESUME, VOID, Frame, Wire, expect

UNKNOWN = -1


@dataclass(frozen=True)
class Word:
    """What one end says of a link, first on each connection."""

    link_id: bytes
    fresh: bool
    taken: int
    partial: int


def say(wire: Wire, word: Word) -> None:
    wire.send(RESUME, list(vars(word).values()))


def hear(wire: Wire) -> Word:
    return Word(*expect(wire, RESUME))


class Link:
    """Numbered frames to one peer, and what it said of the link itself."""

    def __init__(self, wire: Wire, peer: int, link_id: bytes | None = None) -> None:
        self.wire = wire
        self.peer = peer
        self.link_id = link_id or os.urandom(8)
        self.sent = self.taken = self.acked = 0
        self.said: list[int] = []
        """GOODBYE, LEFT, IDLE and BUSY, in the order in which they came."""
        self.words: list[Word] = []
        """What the peer said when connections took over."""
        self.rests: list[int] = []
        """Where the REST of a payload began."""
        self.voids = 0
        self.break_sending_at = self.break_taking_at = 0
        """Break the connection in a payload that is longer, at this byte; 0: don't."""
        self._unacked: deque[Frame] = deque()
        self._cut: Frame | None = None
        self._partial = bytearray()

    @property
    def up(self) -> bool:
        return self.wire.sock.fileno() >= 0

    def position(self, *, fresh: bool = False) -> Word:
        return Word(self.link_id, fresh, self.taken, len(self._partial))

    # Sending

    def note(
        self, kind: int, header: Any, payload: bytes = b"", *, stream: int = 0, flags: int = 0
    ) -> int:
        """Send a numbered frame, now or when there is a connection again; its number."""
        self.sent += 1
        frame = Frame(kind, flags, stream, self.sent, self.taken, header, payload)
        self._unacked.append(frame)
        if self.up:
            self._send(frame)
        return self.sent

    def _send(self, frame: Frame) -> None:
        if 0 < self.break_sending_at < len(frame.payload):
            self._send_begin(frame, self.break_sending_at)
            self.break_sending_at = 0
        else:
            self.wire.send(**vars(frame))

    def _send_begin(self, frame: Frame, count: int) -> None:
        """Send so much of the payload, wait until the peer has it, and break the connection."""
        self.wire.send_begin(frame, count)
        self.wire.end()

    def resume(self, wire: Wire, word: Word) -> None:
        """A new connection takes over: send what did not arrive."""
        assert word.link_id == self.link_id
        assert self.acked <= word.taken <= self.sent
        self.words.append(word)
        self.wire = wire
        self._acknowledged(word.taken)
        for frame in list(self._unacked):
            if frame.number == word.taken + 1 and word.partial:
                rest = frame.payload[word.partial :]
                wire.send(REST, [frame.number, word.partial], rest)
            else:
                wire.send(**vars(frame))

    def _acknowledged(self, number: int) -> None:
        self.acked = max(self.acked, number)
        while self._unacked and self._unacked[0].number <= number:
            self._unacked.popleft()

    # Receiving

    def take(self) -> Frame | None:
        """Read a frame; None if it was only an ack, or did not come whole."""
        frame, size = self.wire.read_head()
        self._acknowledged(frame.ack)
        if frame.kind == ACK:
            assert (frame.number, frame.header, size) == (0, None, 0)
            return None
        if frame.kind == VOID:
            self._void(frame, size)
            return None
        if frame.kind == REST:
            assert frame.number == 0
            assert frame.header == [self.taken + 1, len(self._partial)]
            self.rests.append(len(self._partial))
        else:
            assert frame.number == self.taken + 1
            self._cut = frame
            self._partial.clear()
        return self._whole(size)

    def _void(self, frame: Frame, size: int) -> None:
        assert (frame.number, frame.header, size) == (0, [self.taken + 1], 0)
        self.taken += 1
        self.voids += 1
        self._cut = None
        self._partial.clear()

    def _whole(self, size: int) -> Frame | None:
        """Read the payload of the frame that has begun, or what is left of it."""
        if 0 < self.break_taking_at < size:
            self._partial += self.wire.exactly(self.break_taking_at)
            self.break_taking_at = 0
            self.wire.sock.close()
            return None
        self._partial += self.wire.exactly(size)
        assert self._cut is not None
        frame = replace(self._cut, payload=bytes(self._partial))
        self._cut = None
        self._partial.clear()
        self.taken += 1
        if frame.flags & ACK_NOW:
            self.wire.send(ACK, ack=self.taken)
        return frame
