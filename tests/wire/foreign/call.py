"""Collectives of two ranks: the introduction, flows by credit, and the order of folds."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgpack

from tests.wire.foreign import moves
from tests.wire.foreign.frames import ACK_NOW, CREDIT, DATA, ENVELOPE, PATIENCE_S, Failed, Frame
from tests.wire.foreign.moves import ELEMENT, Plan, Region, segments
from tests.wire.foreign.rank import EAGER_BYTES, Group


class Call:
    """One operation of ours, of which one other rank takes part."""

    WINDOW = 2
    """Segments that we take in advance, to see that nobody sends more."""

    def __init__(
        self,
        group: Group,
        peer: int,
        fields: list[Any],
        region: Region,
        plan: Plan,
        pair: list[int] | None = None,
    ) -> None:
        self.me = group.me
        self.group = group
        self.peer = peer
        self.region = region
        self.op = (group.number, self.me.epoch, group.seq)
        self.at = [self.me.epoch, group.seq]
        self.me.running[self.op] = peer
        group.seq += 1
        self.spec = msgpack.packb(fields)
        self.pair = pair
        self.sends = segments(plan.sends, plan.spans, region.itemsize)
        self.recvs = segments(plan.recvs, plan.spans, region.itemsize)
        send_eager = sum(map(region.size_bytes, self.sends)) <= EAGER_BYTES
        recv_eager = sum(map(region.size_bytes, self.recvs)) <= EAGER_BYTES
        self.credit = len(self.sends) if send_eager else 0
        self.granted = len(self.recvs) if recv_eager else 0
        self.sent = self.came = 0
        self.introduced = False
        self.changes: dict[int, int] = defaultdict(int)
        self.last_number = 0

    def run(self) -> bytes:
        while not self.advance():
            self.wait()
        del self.me.running[self.op]
        return self.region.data()

    def advance(self) -> bool:
        """Send what may be sent now; whether that was all."""
        self._grant()
        self._send()
        return self._complete()

    def send_ahead(self) -> None:
        """Send what is eager, and return when the peer says that it has it."""
        self._send()
        link = self.me.link_to(self.peer)
        self.me.until(lambda: link.acked >= self.last_number)

    def _note(self, kind: int, header: list[Any], payload: bytes = b"", flags: int = 0) -> int:
        if not self.introduced:
            self.introduced = True
            header = [*header, self.spec, int(PATIENCE_S * 1000)]
            if self.pair is not None:
                header.append(self.pair)
        link = self.me.link_to(self.peer)
        return link.note(kind, header, payload, stream=self.group.stream, flags=flags)

    def _complete(self) -> bool:
        whole = self.sent == len(self.sends) and self.came == len(self.recvs)
        return whole and self.me.link_to(self.peer).acked >= self.last_number

    def _grant(self) -> None:
        allowed = min(len(self.recvs), self.came + self.WINDOW)
        if allowed > self.granted:
            self.granted = allowed
            self._note(CREDIT, [*self.at, allowed])

    def _send(self) -> None:
        while self.sent < min(self.credit, len(self.sends)):
            segment = self.sends[self.sent]
            if self.changes[segment.cell] < segment.needs:
                return
            payload = self.region.data(segment.start, segment.count, wide=segment.wide)
            header = [*self.at, self.sent]
            self.sent += 1
            last = self.sent == len(self.sends)
            number = self._note(DATA, header, payload, ACK_NOW if last else 0)
            if last:
                self.last_number = number

    def wait(self) -> None:
        """Wait for what is next: a frame of this operation, its failure, or its end."""
        frames, failures = self.me.frames[self.op], self.me.failures
        self.me.until(lambda: bool(frames) or self.op in failures or self._complete())
        if frames:
            self._take(frames.popleft())
        elif self.op in failures:
            self.me.running.pop(self.op, None)
            raise Failed(failures[self.op])

    def _take(self, frame: Frame) -> None:
        fields = frame.header[2:]
        number, *introduction = [0, *fields] if frame.kind == ENVELOPE else fields
        if introduction:
            self._compare(*introduction)
        if frame.kind == CREDIT:
            self.credit = max(self.credit, number)
        elif frame.kind == DATA:
            assert number == self.came < self.granted
            segment = self.recvs[number]
            self.came += 1
            self.region.take(segment, frame.payload)
            self.changes[segment.cell] += 1

    def _compare(self, spec: bytes, remaining_ms: int, pair: list[int] | None = None) -> None:
        assert remaining_ms >= 1
        ours = self.pair[::-1] if self.pair is not None else None
        if spec != self.spec or pair != ours:
            message = "the foreign rank called something else"
            self.me.fail(self.group, self.op, "mismatch", message)
            self.me.until(lambda: self.op in self.me.failures)
            self.me.running.pop(self.op, None)
            raise Failed(self.me.failures[self.op])


def all_reduce(group: Group, dtype: str, data: bytes, algorithm: str) -> Call:
    """A sum in a group of two; ``algorithm`` is a name, not "auto"."""
    region = Region(dtype, data)
    shape = [region.count]
    fields = [group.number, "all_reduce", dtype, "sum", shape, -1, algorithm, False, "", [], []]
    plan = moves.all_reduce(algorithm, group.place, region.count)
    return Call(group, group.ranks[1 - group.place], fields, region, plan)


class AllToAll:
    """An all_to_all in a group of two, of rows of so many elements.

    Args:
        parts: what we have for each rank.
        incoming: how many rows we want of each rank.
    """

    def __init__(
        self, group: Group, dtype: str, row: int, parts: Sequence[bytes], incoming: Sequence[int]
    ) -> None:
        row_bytes = row * ELEMENT[dtype][1]
        outgoing = [len(part) // row_bytes for part in parts]
        data = b"".join(parts) + bytes(sum(incoming) * row_bytes)
        place, other = group.place, 1 - group.place
        plan = moves.all_to_all(place, [n * row for n in outgoing], [n * row for n in incoming])
        fields = [group.number, "all_to_all", dtype, "", [row], -1, "auto", False, "", [], []]
        pair = [outgoing[other], incoming[other]]
        peer = group.ranks[other]
        self.call = Call(group, peer, fields, Region(dtype, data), plan, pair)
        self._own = parts[place]
        self._came = slice(*plan.spans[2 * other + place])
        self._itemsize = ELEMENT[dtype][1]
        self._place = place

    def run(self) -> list[bytes]:
        """What came from each rank; our own part never travels."""
        data = self.call.run()
        start, count = self._came.start, self._came.stop
        theirs = data[start * self._itemsize : (start + count) * self._itemsize]
        return [self._own, theirs] if self._place == 0 else [theirs, self._own]


class NewGroup:
    """A new group of two of the parent's ranks, of which we are one."""

    def __init__(self, parent: Group, members: list[int]) -> None:
        self._me = parent.me
        self._ranks = [parent.ranks[member] for member in members]
        fields = [parent.number, "new_group", "int64", "max", [1], -1, "auto", False, ""]
        proposal = struct.pack("<q", self._me.free_number)
        place = members.index(parent.place)
        self.call = Call(
            parent,
            self._ranks[1 - place],
            [*fields, members, []],
            Region("int64", proposal, op="max"),
            moves.all_reduce("exchange", place, 1),
        )

    def run(self) -> Group:
        (number,) = struct.unpack("<q", self.call.run())
        return self.open(number)

    def open(self, number: int) -> Group:
        """The group has this number."""
        me = self._me
        me.free_number = number + 1
        group = me.groups[number] = Group(me, number, self._ranks)
        return group
