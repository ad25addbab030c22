"""A plan: a schedule cut into segments for one size, ready to be executed.

Compiling is done once per (spec, world size, rank) and cached; an operation only moves cursors.
A *cell* is one segment of one chunk. Applications (see ``model``) are counted per cell: a cell's
version is the number of applications done, and a send waits for the version it needs.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from ringd.schedules.layout import Layout
from ringd.schedules.model import Recv, Schedule, Send

PARK_BUDGET_BYTES = 8 * 1024 * 1024
"""Bound on scratch memory of one operation whose contributions wait for each other."""


REGION, WIDE, TRANSIT = range(3)
"""Spaces of memory: the caller's region, the accumulators of a widened operation, what passes."""


class SendItem(NamedTuple):
    """One segment to send: ``size_bytes`` at ``offset`` of a space, once ``cell`` is at ``needs``.

    ``reads`` is the cell that it reads: another one than ``cell`` for a send that is paced.
    """

    offset: int
    size_bytes: int
    cell: int
    needs: int
    space: int
    reads: int


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
    space: int

    @property
    def wide(self) -> bool:
        """It is a partial sum in the accumulator's type."""
        return self.space == WIDE


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
    """What one rank executes. ``applications[cell]`` lists the cell's applications in order.

    Attributes:
        cell_spans: (start, count) of each cell in its space, in elements.
        cell_in_transit: whether that space is the transit.
        readers: where the schedule is guarded, per cell and version how many sends read it.
        transit_bytes: scratch memory for what passes through.
    """

    schedule: Schedule
    flows: tuple[Flow, ...]
    n_cells: int
    applications: tuple[tuple[Application, ...], ...]
    cell_spans: tuple[tuple[int, int], ...]
    cell_in_transit: tuple[bool, ...]
    readers: tuple[tuple[int, ...], ...]
    transit_bytes: int
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
    readers: dict[int, int] = field(default_factory=dict)

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
    layout: Layout,
    itemsize: int,
    wide_itemsize: int,
    segment_bytes: int,
    eager_bytes: int,
) -> Plan:
    """The plan of ``schedule`` over chunks that lie as ``layout`` says.

    Cost: O(rounds x segments); cached by the caller.
    """
    cut = _Cut(layout, max(1, segment_bytes // itemsize), itemsize, wide_itemsize)
    walk = _Walk(schedule)
    applications: list[tuple[Application, ...]] = []
    readers: list[tuple[int, ...]] = []
    for chunk, cells in cut.cells.items():
        state = walk.states[chunk]
        per_cell = tuple(
            _application(
                schedule, group, ends=chunk in schedule.owned and group is state.closed[-1]
            )
            for group in state.closed
        )
        applications.extend([per_cell] * len(cells))
        counts = tuple(state.readers.get(v, 0) for v in range(len(state.closed) + 1))
        readers.extend([counts] * len(cells))
    peers = sorted(set(walk.sends) | set(walk.recvs), key=lambda p: _distance(schedule, p))
    flows = tuple(_flow(peer, walk, cut, schedule, eager_bytes) for peer in peers)
    return Plan(
        schedule=schedule,
        flows=flows,
        n_cells=len(applications),
        applications=tuple(applications),
        cell_spans=tuple(span for spans in cut.cells.values() for span in spans),
        cell_in_transit=tuple(c in layout.transit for c, spans in cut.cells.items() for _ in spans),
        readers=tuple(readers) if schedule.guarded else (),
        transit_bytes=layout.transit_count * itemsize,
        wide=any(s.space == WIDE for f in flows for s in f.sends)
        or any(r.space == WIDE for f in flows for r in f.recvs),
        send_items=sum(len(f.sends) for f in flows),
        recv_items=sum(len(f.recvs) for f in flows),
        recv_bytes=sum(f.recv_bytes for f in flows),
        send_bytes=sum(f.send_bytes for f in flows),
    )


def _distance(schedule: Schedule, peer: int) -> int:
    return (peer - schedule.rank) % schedule.world_size


class _Cut:
    """Chunks cut into cells."""

    def __init__(self, layout: Layout, segment: int, itemsize: int, wide_itemsize: int) -> None:
        places = layout.spans | layout.transit
        self.cells = {c: segments(start, count, segment) for c, (start, count) in places.items()}
        self._transit = layout.transit
        self._first_cell: dict[int, int] = {}
        at = 0
        for chunk, spans in self.cells.items():
            self._first_cell[chunk] = at
            at += len(spans)
        self._itemsize, self._wide_itemsize = itemsize, wide_itemsize

    def items(self, chunk: int, wide: bool) -> list[tuple[int, int, int, int, int]]:
        """(start, count, offset, size_bytes, cell) for each segment of a chunk."""
        size = self._wide_itemsize if wide else self._itemsize
        first = self._first_cell[chunk]
        return [(s, n, s * size, n * size, first + i) for i, (s, n) in enumerate(self.cells[chunk])]

    def last_cell(self, chunk: int) -> int:
        """The cell of a chunk that comes last."""
        return self._first_cell[chunk] + len(self.cells[chunk]) - 1

    def space(self, chunk: int, wide: bool) -> int:
        """Where a chunk's elements lie."""
        if wide:
            return WIDE
        return TRANSIT if chunk in self._transit else REGION


class _Walk:
    """One pass over the rounds of a schedule.

    Attributes:
        sends: per peer the sends in order, each with the version of its chunk that it reads, and
            with that of the chunk that it comes after.
        recvs: per peer the receives in order, each with the number of its application.
        states: per chunk the applications in order.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.states: dict[int, _ChunkState] = defaultdict(_ChunkState)
        self.sends: dict[int, list[tuple[Send, int, int]]] = {}
        self.recvs: dict[int, list[tuple[Recv, int]]] = {}
        for round_ in schedule.rounds:
            for send in round_.sends:
                state = self.states[send.chunk]
                reads = state.seal()
                state.readers[reads] = state.readers.get(reads, 0) + 1
                after = self.states[send.after].seal() if send.after >= 0 else 0
                self.sends.setdefault(send.peer, []).append((send, reads, after))
            for recv in round_.recvs:
                self.recvs.setdefault(recv.peer, []).append((recv, self._receive(recv)))
        for state in self.states.values():
            state.seal()

    def _receive(self, recv: Recv) -> int:
        state = self.states[recv.chunk]
        if recv.action == "copy":
            state.seal()
            state.open = [recv]
            return state.seal() - 1
        state.open = [*(state.open or []), recv]
        return len(state.closed)


def _order(schedule: Schedule, group: list[Recv]) -> list[int]:
    """Peers of one reduce application, with our own rank, in the order of the fold."""
    peers = [r.peer for r in group]
    if schedule.fold == "round":
        return [schedule.rank, *peers]
    return sorted([*peers, schedule.rank])


def _application(schedule: Schedule, group: list[Recv], *, ends: bool) -> Application:
    """``ends``: with it the chunk is reduced, and finalised."""
    if group[0].action == "copy":
        return Application(1, -1, False)
    own = _order(schedule, group).index(schedule.rank)
    return Application(len(group), own, ends)


def _flow(peer: int, walk: _Walk, cut: _Cut, schedule: Schedule, eager_bytes: int) -> Flow:
    send_items = [item for send in walk.sends.get(peer, ()) for item in _send_items(send, cut)]
    recv_items: list[RecvItem] = []
    widest = 1
    for recv, number in walk.recvs.get(peer, ()):
        group = walk.states[recv.chunk].closed[number]
        reduce = recv.action == "reduce"
        position = _order(schedule, group).index(peer) if reduce else 0
        widest = max(widest, len(group))
        space = cut.space(recv.chunk, recv.wide)
        recv_items.extend(
            RecvItem(start, count, offset, size, cell, number, position, reduce, space)
            for start, count, offset, size, cell in cut.items(recv.chunk, recv.wide)
        )
    send_bytes = sum(item.size_bytes for item in send_items)
    recv_bytes = sum(item.size_bytes for item in recv_items)
    largest = max((item.size_bytes for item in recv_items), default=0)
    bounded = widest > 1 or schedule.guarded
    return Flow(
        peer,
        tuple(send_items),
        tuple(recv_items),
        send_bytes,
        recv_bytes,
        send_bytes <= eager_bytes,
        recv_bytes <= eager_bytes,
        max(2, PARK_BUDGET_BYTES // max(1, widest * largest)) if bounded else 0,
    )


def _send_items(placed: tuple[Send, int, int], cut: _Cut) -> list[SendItem]:
    send, reads, after = placed
    space = cut.space(send.chunk, send.wide)
    items = []
    for _start, _count, offset, size, cell in cut.items(send.chunk, send.wide):
        gate = (cut.last_cell(send.after), after) if after else (cell, reads)
        items.append(SendItem(offset, size, *gate, space, cell))
    return items
