"""A plan: a schedule cut into segments for one size, ready to be executed.

Compiling is done once per (spec, world size, rank) and cached; an operation only moves cursors.
A *cell* is one segment of one chunk. Applications (see ``model``) are counted per cell: a cell's
version is the number of applications done, and a send waits for the version it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ringd.schedules.model import Recv, Schedule

PARK_BUDGET_BYTES = 8 * 1024 * 1024
"""Bound on scratch memory of one operation whose contributions wait for each other."""


class SendItem(NamedTuple):
    """One segment to send: ``size_bytes`` at ``offset`` of the region or, wide, the accumulator."""

    offset: int
    size_bytes: int
    cell: int
    needs: int
    wide: bool


class RecvItem(NamedTuple):
    """One segment to receive, as contribution number ``position`` of an application.

    It concerns elements [start, start + length) of the region; ``offset`` is in bytes.
    """

    start: int
    length: int
    offset: int
    size_bytes: int
    cell: int
    application: int
    position: int
    reduce: bool
    wide: bool


class Application(NamedTuple):
    """How a cell takes its contributions: ``own`` is our own place in the fold, -1 for a copy."""

    contributions: int
    own: int
    finalise: bool


@dataclass(frozen=True, slots=True)
class Flow:
    """All that passes between us and one peer in an operation, in order.

    Attributes:
        send_eager: what we send is small enough to need no credit; recv_eager alike.
        window: how many segments the peer may be ahead of our folds (0: no bound is needed).
    """

    peer: int
    sends: tuple[SendItem, ...]
    recvs: tuple[RecvItem, ...]
    send_bytes: int
    recv_bytes: int
    send_eager: bool
    recv_eager: bool
    window: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What one rank executes. ``applications[cell]`` lists the cell's applications in order."""

    schedule: Schedule
    flows: tuple[Flow, ...]
    n_cells: int
    applications: tuple[tuple[Application, ...], ...]
    cell_spans: tuple[tuple[int, int], ...]
    wide: bool
    send_items: int
    recv_items: int
    recv_bytes: int
    send_bytes: int


@dataclass(slots=True)
class _ChunkState:
    """While compiling: a chunk's closed applications, and the one that may still grow."""

    closed: list[list[Recv]] = field(default_factory=list)
    open: list[Recv] | None = None

    def seal(self) -> int:
        if self.open is not None:
            self.closed.append(self.open)
            self.open = None
        return len(self.closed)


def segments(start: int, count: int, segment: int) -> list[tuple[int, int]]:
    """Cut ``count`` elements from ``start`` on into segments; an empty chunk is one segment."""
    if not count:
        return [(start, 0)]
    return [(start + at, min(segment, count - at)) for at in range(0, count, segment)]


def compile_plan(
    schedule: Schedule,
    *,
    chunks: Sequence[tuple[int, int]],
    itemsize: int,
    wide_itemsize: int,
    segment_bytes: int,
    eager_bytes: int,
) -> Plan:
    """The plan of ``schedule`` over a region whose chunks are (start, count) in elements.

    Cost: O(rounds x segments); cached by the caller.
    """
    cut = _Cut(chunks, max(1, segment_bytes // itemsize), itemsize, wide_itemsize)
    sends, recvs, states = _walk(schedule)
    applications: list[tuple[Application, ...]] = []
    for chunk, state in enumerate(states):
        per_cell = tuple(_application(schedule, chunk, group) for group in state.closed)
        applications.extend([per_cell] * len(cut.cells[chunk]))
    flows = tuple(
        _flow(peer, sends.get(peer, []), recvs.get(peer, []), cut, states, schedule, eager_bytes)
        for peer in sorted(set(sends) | set(recvs), key=lambda p: _distance(schedule, p))
    )
    return Plan(
        schedule=schedule,
        flows=flows,
        n_cells=len(applications),
        applications=tuple(applications),
        cell_spans=tuple(span for spans in cut.cells for span in spans),
        wide=any(s.wide for f in flows for s in f.sends)
        or any(r.wide for f in flows for r in f.recvs),
        send_items=sum(len(f.sends) for f in flows),
        recv_items=sum(len(f.recvs) for f in flows),
        recv_bytes=sum(f.recv_bytes for f in flows),
        send_bytes=sum(f.send_bytes for f in flows),
    )


def _distance(schedule: Schedule, peer: int) -> int:
    return (peer - schedule.rank) % schedule.world_size


class _Cut:
    """Chunks cut into cells."""

    def __init__(
        self, chunks: Sequence[tuple[int, int]], segment: int, itemsize: int, wide_itemsize: int
    ) -> None:
        self.cells = [segments(start, count, segment) for start, count in chunks]
        self.first_cell = [0]
        for spans in self.cells:
            self.first_cell.append(self.first_cell[-1] + len(spans))
        self.itemsize, self.wide_itemsize = itemsize, wide_itemsize

    def items(self, chunk: int, wide: bool) -> list[tuple[int, int, int, int, int]]:
        """(start, count, offset, size_bytes, cell) for each segment of a chunk."""
        size = self.wide_itemsize if wide else self.itemsize
        first = self.first_cell[chunk]
        return [(s, n, s * size, n * size, first + i) for i, (s, n) in enumerate(self.cells[chunk])]


_Moves = dict[int, list[tuple[int, bool, int, Recv | None]]]


def _walk(schedule: Schedule) -> tuple[_Moves, _Moves, list[_ChunkState]]:
    """Per peer the moves in order, and per chunk the applications in order.

    A send carries the version it needs; a receive the number of its application.
    """
    states = [_ChunkState() for _ in range(schedule.n_chunks)]
    sends: _Moves = {}
    recvs: _Moves = {}
    for round_ in schedule.rounds:
        for send in round_.sends:
            needs = states[send.chunk].seal()
            sends.setdefault(send.peer, []).append((send.chunk, send.wide, needs, None))
        for recv in round_.recvs:
            state = states[recv.chunk]
            if recv.action == "copy":
                state.seal()
                state.open = [recv]
                number = state.seal() - 1
            else:
                state.open = [*(state.open or []), recv]
                number = len(state.closed)
            recvs.setdefault(recv.peer, []).append((recv.chunk, recv.wide, number, recv))
    for state in states:
        state.seal()
    return sends, recvs, states


def _order(schedule: Schedule, group: list[Recv]) -> list[int]:
    """Peers of one reduce application, with our own rank, in the order of the fold."""
    peers = [r.peer for r in group]
    if schedule.fold == "rank":
        return sorted([*peers, schedule.rank])
    return [schedule.rank, *peers]


def _application(schedule: Schedule, chunk: int, group: list[Recv]) -> Application:
    if group[0].action == "copy":
        return Application(1, -1, False)
    own = _order(schedule, group).index(schedule.rank)
    return Application(len(group), own, chunk in schedule.owned)


def _flow(
    peer: int,
    sends: list[tuple[int, bool, int, Recv | None]],
    recvs: list[tuple[int, bool, int, Recv | None]],
    cut: _Cut,
    states: list[_ChunkState],
    schedule: Schedule,
    eager_bytes: int,
) -> Flow:
    send_items = tuple(
        SendItem(offset, size, cell, needs, wide)
        for chunk, wide, needs, _ in sends
        for _start, _count, offset, size, cell in cut.items(chunk, wide)
    )
    recv_items: list[RecvItem] = []
    widest = 1
    for chunk, wide, number, recv in recvs:
        assert recv is not None
        group = states[chunk].closed[number]
        position = _order(schedule, group).index(peer) if recv.action == "reduce" else 0
        widest = max(widest, len(group))
        reduce = recv.action == "reduce"
        recv_items.extend(
            RecvItem(start, count, offset, size, cell, number, position, reduce, wide)
            for start, count, offset, size, cell in cut.items(chunk, wide)
        )
    send_bytes = sum(item.size_bytes for item in send_items)
    recv_bytes = sum(item.size_bytes for item in recv_items)
    largest = max((item.size_bytes for item in recv_items), default=0)
    window = 0 if widest == 1 else max(2, PARK_BUDGET_BYTES // max(1, widest * largest))
    return Flow(
        peer,
        send_items,
        tuple(recv_items),
        send_bytes,
        recv_bytes,
        send_bytes <= eager_bytes,
        recv_bytes <= eager_bytes,
        window,
    )
