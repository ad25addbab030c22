"""What an operation of two ranks sends, and what becomes of what it receives."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SEGMENT_BYTES = 1024 * 1024
ELEMENT = {"float32": ("f", 4), "float16": ("e", 2), "int64": ("q", 8)}
Span = tuple[int, int]
"""Where a chunk lies in the region: start and count, in elements."""


@dataclass(frozen=True)
class Segment:
    """Elements [start, start + count); ``cell`` numbers segments of all chunks."""

    cell: int
    start: int
    count: int
    wide: bool
    adds: bool = False  # received: folded into ours, else copied
    finishes: bool = False  # received: the last contribution, at the rank that owns the chunk
    needs: int = 0  # sent: so many receives of its cell come before


@dataclass(frozen=True)
class Move:
    chunk: int
    wide: bool = False
    adds: bool = False
    finishes: bool = False
    needs: int = 0


@dataclass(frozen=True)
class Plan:
    """Our sends and receives, in order, and where the chunks lie."""

    spans: dict[int, Span]
    sends: list[Move]
    recvs: list[Move]


def all_reduce(algorithm: str, rank: int, elements: int) -> Plan:
    """Also what a new_group sends among its two members, by exchange."""
    peer = 1 - rank
    if algorithm == "exchange":
        return Plan(cut(elements, 1), [Move(0)], [Move(0, adds=True, finishes=True)])
    if algorithm == "direct":
        sends = [Move(peer), Move(rank, needs=1)]
        return Plan(cut(elements, 2), sends, [Move(rank, adds=True, finishes=True), Move(peer)])
    assert algorithm == "ring"
    sends = [Move(rank, wide=True), Move(peer, needs=1)]
    recvs = [Move(peer, wide=True, adds=True, finishes=True), Move(rank)]
    return Plan(cut(elements, 2), sends, recvs)


def all_to_all(rank: int, outgoing: Sequence[int], incoming: Sequence[int]) -> Plan:
    """Elements for each rank, and from each rank; chunk aN + b is what a has for b."""
    peer = 1 - rank
    to_peer, from_peer = 2 * rank + peer, 2 * peer + rank
    spans = {
        to_peer: (sum(outgoing[:peer]), outgoing[peer]),
        from_peer: (sum(outgoing) + sum(incoming[:peer]), incoming[peer]),
    }
    return Plan(spans, [Move(to_peer)], [Move(from_peer)])


def cut(elements: int, chunks: int) -> dict[int, Span]:
    """The chunks of a whole tensor."""
    length, longer = divmod(elements, chunks)
    sizes = [length + (chunk < longer) for chunk in range(chunks)]
    return {chunk: (sum(sizes[:chunk]), size) for chunk, size in enumerate(sizes)}


def segments(moves: list[Move], spans: dict[int, Span], itemsize: int) -> list[Segment]:
    """The moves of one direction, cut into segments: a flow."""
    step = SEGMENT_BYTES // itemsize
    cells: dict[int, list[tuple[int, int, int]]] = {}
    number = 0
    for chunk, (start, count) in spans.items():
        starts = range(start, start + count, step)
        pieces = [(at, min(step, start + count - at)) for at in starts] or [(start, 0)]
        cells[chunk] = [(number + i, *piece) for i, piece in enumerate(pieces)]
        number += len(pieces)
    return [
        Segment(cell, at, count, m.wide, m.adds, m.finishes, m.needs)
        for m in moves
        for cell, at, count in cells[m.chunk]
    ]


class Region:
    """The values of one operation, as Python numbers that the dtype can hold."""

    def __init__(self, dtype: str, data: bytes, *, op: str = "sum") -> None:
        self.letter, self.itemsize = ELEMENT[dtype]
        self.op = op
        self.count = len(data) // self.itemsize
        self.values = list(self._unpack(self.letter, data))

    def _unpack(self, letter: str, data: bytes) -> tuple[Any, ...]:
        return struct.unpack(f"<{len(data) // struct.calcsize(letter)}{letter}", data)

    def data(self, start: int = 0, count: int | None = None, *, wide: bool = False) -> bytes:
        part = self.values[start : self.count if count is None else start + count]
        return struct.pack(f"<{len(part)}{'f' if wide else self.letter}", *part)

    def size_bytes(self, segment: Segment) -> int:
        return segment.count * (4 if segment.wide else self.itemsize)

    def take(self, segment: Segment, payload: bytes) -> None:
        assert len(payload) == self.size_bytes(segment)
        here = slice(segment.start, segment.start + segment.count)
        came = self._unpack("f" if segment.wide else self.letter, payload)
        if segment.adds and self.op == "max":
            came = tuple(map(max, came, self.values[here]))
        elif segment.adds:
            # A sum of two float32 in double precision, rounded once, is their float32 sum.
            sums = [a + b for a, b in zip(came, self.values[here], strict=True)]
            came = self._unpack("f", struct.pack(f"<{len(sums)}f", *sums))
            if segment.finishes:
                came = self._unpack(self.letter, struct.pack(f"<{len(sums)}{self.letter}", *came))
        self.values[here] = came
