"""Messages of one group: whole ones, offered ones, and what either side says of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgpack

from tests.wire.foreign.frames import (
    ACK_NOW,
    MESSAGE,
    OFFER,
    PART,
    PATIENCE_S,
    REVOKE,
    TAKE,
    TAKEN,
    Failed,
    Frame,
)
from tests.wire.foreign.moves import ELEMENT, SEGMENT_BYTES

if TYPE_CHECKING:
    from tests.wire.foreign.link import Link
    from tests.wire.foreign.rank import Group

EAGER_BYTES = 64 * 1024
MAX_UNTAKEN = 1024, 4 * 1024 * 1024


@dataclass
class Letter:
    """A message that came, or the offer of one."""

    number: int
    tag: int
    dtype: str
    count: int
    whole: bool
    data: bytearray = field(default_factory=bytearray)
    parts: int = 0


@dataclass
class Lane:
    """Both directions between us and one peer."""

    sent: int = 0
    got: int = 0
    whole_sent: tuple[int, int] = (0, 0)
    peer_used: tuple[int, int] = (0, 0)
    used: tuple[int, int] = (0, 0)
    waiting: list[Letter] = field(default_factory=list)
    coming: dict[int, Letter] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    """Offers of ours that the peer took."""
    revoked: dict[tuple[int, bool], dict[str, Any]] = field(default_factory=dict)


class Mail:
    """Our messages of one group; peers are ranks of the world."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._me = group.me
        self.lanes: dict[int, Lane] = defaultdict(Lane)
        self.kinds: list[int] = []
        """Of all that came as messages: MESSAGE or OFFER."""
        self.says_taken = True

    # Sending

    def post(self, peer: int, tag: int, dtype: str, data: bytes, *, offer: bool = False) -> int:
        """Send a message whole if it may go so, else offer it; its number."""
        group, lane = self._group, self.lanes[peer]
        number, lane.sent = lane.sent, lane.sent + 1
        shape = [len(data) // ELEMENT[dtype][1]]
        place = group.ranks.index(peer)
        spec = [group.number, "send", dtype, "", shape, place, "auto", False, "", [], []]
        header = [self._me.epoch, number, tag, msgpack.packb(spec), int(PATIENCE_S * 1000)]
        link = self._me.link_to(peer)
        if not offer and self._may_go_whole(lane, len(data)):
            link.note(MESSAGE, header, data, stream=group.stream)
        else:
            link.note(OFFER, header, stream=group.stream)
        return number

    def _may_go_whole(self, lane: Lane, size: int) -> bool:
        messages, held = (lane.whole_sent[i] - lane.peer_used[i] for i in range(2))
        fits = not held or held + size <= MAX_UNTAKEN[1]
        if size > EAGER_BYTES or messages >= MAX_UNTAKEN[0] or not fits:
            return False
        lane.whole_sent = (lane.whole_sent[0] + 1, lane.whole_sent[1] + size)
        return True

    def send(self, peer: int, tag: int, dtype: str, data: bytes) -> None:
        """Send a message; an offered one is done when the peer has all of it."""
        if len(data) <= EAGER_BYTES:
            self.post(peer, tag, dtype, data)
        else:
            self.deliver(peer, self.post(peer, tag, dtype, data), data)

    def deliver(self, peer: int, number: int, data: bytes) -> None:
        """Wait until an offer of ours is taken, then send its segments."""
        me, lane = self._me, self.lanes[peer]
        self.await_word(peer, number, lane.taken, by_sender=False)
        link = me.link_to(peer)
        starts = range(0, len(data), SEGMENT_BYTES)
        for index, start in enumerate(starts):
            flags = ACK_NOW if index == len(starts) - 1 else 0
            self.part(link, number, index, data[start : start + SEGMENT_BYTES], flags)
        me.until(lambda: link.acked >= link.sent or (number, False) in lane.revoked)
        self._check(lane, number, by_sender=False)

    def part(self, link: Link, number: int, index: int, data: bytes, flags: int = 0) -> None:
        header = [self._me.epoch, number, index]
        link.note(PART, header, data, stream=self._group.stream, flags=flags)

    def await_word(self, peer: int, number: int, taken: set[int], *, by_sender: bool) -> None:
        """Wait until the peer took a message, or gave it up."""
        lane = self.lanes[peer]
        self._me.until(lambda: number in taken or (number, by_sender) in lane.revoked)
        self._check(lane, number, by_sender=by_sender)

    def _check(self, lane: Lane, number: int, *, by_sender: bool) -> None:
        if (number, by_sender) in lane.revoked:
            raise Failed(lane.revoked[number, by_sender])

    def revoke(self, peer: int, number: int, *, by_sender: bool, code: str) -> None:
        """Give a message up."""
        error = {"code": code, "message": "the foreign rank gave it up", "fields": {}}
        header = [self._me.epoch, number, by_sender, error]
        self._me.link_to(peer).note(REVOKE, header, stream=self._group.stream)

    # Receiving

    def recv(self, peer: int, tag: int, dtype: str, count: int) -> bytes:
        """Receive a message of this peer, whole or offered."""
        letter = self.next_letter(peer, tag)
        if (letter.dtype, letter.count) != (dtype, count):
            if not letter.whole:
                self.revoke(peer, letter.number, by_sender=False, code="mismatch")
            raise AssertionError(f"{letter} came, where {count} of {dtype} were wanted")
        if letter.whole:
            self._used(peer, len(letter.data))
        else:
            self.take_offer(peer, letter)
        return bytes(letter.data)

    def next_letter(self, peer: int, tag: int) -> Letter:
        """Wait for the next message of the peer with this tag, and take it out."""
        lane = self.lanes[peer]
        self._me.until(lambda: any(letter.tag == tag for letter in lane.waiting))
        letter = next(letter for letter in lane.waiting if letter.tag == tag)
        lane.waiting.remove(letter)
        return letter

    def take_offer(self, peer: int, letter: Letter) -> None:
        """Say that there is a place for it, and wait for all of it."""
        lane, number = self.lanes[peer], letter.number
        lane.coming[number] = letter
        header = [self._me.epoch, number]
        self._me.link_to(peer).note(TAKE, header, stream=self._group.stream)
        size = letter.count * ELEMENT[letter.dtype][1]
        self._me.until(lambda: len(letter.data) == size or (number, True) in lane.revoked)
        del lane.coming[number]
        self._check(lane, number, by_sender=True)

    def _used(self, peer: int, size: int) -> None:
        lane = self.lanes[peer]
        lane.used = (lane.used[0] + 1, lane.used[1] + size)
        if self.says_taken:
            header = [self._me.epoch, *lane.used]
            self._me.link_to(peer).note(TAKEN, header, stream=self._group.stream)

    # What comes

    def take(self, link: Link, frame: Frame) -> None:
        """A frame of a message came."""
        lane = self.lanes[link.peer]
        number = frame.header[1]
        if frame.kind in (MESSAGE, OFFER):
            assert number == lane.got
            lane.got += 1
            self.kinds.append(frame.kind)
            lane.waiting.append(self._letter(frame))
        elif frame.kind == TAKE:
            lane.taken.add(number)
        elif frame.kind == PART:
            letter = lane.coming[number]
            assert frame.header[2] == letter.parts
            assert len(frame.payload) <= SEGMENT_BYTES
            letter.parts += 1
            letter.data += frame.payload
        elif frame.kind == TAKEN:
            lane.peer_used = (frame.header[1], frame.header[2])
        else:
            assert frame.kind == REVOKE
            lane.revoked[number, frame.header[2]] = frame.header[3]
            lane.waiting = [letter for letter in lane.waiting if letter.number != number]

    def _letter(self, frame: Frame) -> Letter:
        _, number, tag, packed, remaining_ms = frame.header
        assert remaining_ms >= 1
        group, collective, dtype, op, (count,), root, *_ = msgpack.unpackb(packed)
        assert (group, collective, op) == (self._group.number, "send", "")
        assert root == self._group.place
        whole = frame.kind == MESSAGE
        assert not whole or len(frame.payload) == count * ELEMENT[dtype][1] <= EAGER_BYTES
        return Letter(number, tag, dtype, count, whole, bytearray(frame.payload))
