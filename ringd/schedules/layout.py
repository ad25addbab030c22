"""Where the data of an operation lies: the caller's region, and each chunk's place at a rank.

The *region* is what client and daemon share: it depends on the call alone, never on the
algorithm. A schedule's chunks are laid over it; chunks that only pass through a rank (an inner
node of a gather's tree) lie in scratch memory of the daemon's, the *transit*.

Everything is counted in elements.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

from ringd.schedules.formula import partition
from ringd.schedules.model import Schedule
from ringd.vocabulary import IN_PARTS, Collective, OpSpec

Span = tuple[int, int]
"""Start and count."""
_NOTHING: Span = (0, 0)


@dataclass(frozen=True, slots=True)
class Region:
    """The caller's side of one rank's region.

    Attributes:
        count: the whole region.
        load: where the caller's input goes before the call.
        result: where the result is after it; (0, 0) if this rank gets none.
        own: (from, to, count) of what the caller moves itself within the region before the call:
            of all_to_all, the part for oneself.
    """

    count: int
    load: Span
    result: Span
    own: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Layout:
    """The daemon's side: where a rank keeps the chunks of a schedule.

    Attributes:
        spans: chunk to its place in the region.
        transit: chunk to its place in the transit.
        transit_count: the size of the transit.
    """

    spans: dict[int, Span]
    transit: dict[int, Span] = field(default_factory=dict)
    transit_count: int = 0


def spans_of(counts: tuple[int, ...]) -> tuple[Span, ...]:
    """Where parts of these sizes lie, one after another."""
    return tuple(zip(accumulate(counts, initial=0), counts, strict=False))


def region_of(spec: OpSpec, rank: int, world_size: int, splits: tuple[int, ...] = ()) -> Region:
    """The region of a call on one rank.

    Args:
        rank: of the group.
        splits: of all_to_all: rows for each rank, then rows from each rank. They are this rank's
            own; the other calls have none.
    """
    match spec.collective:
        case Collective.BARRIER.value:
            return Region(0, _NOTHING, _NOTHING)
        case Collective.NEW_GROUP.value:
            return Region(1, (0, 1), (0, 1))
        case Collective.ALL_TO_ALL.value:
            return _all_to_all(spec, rank, world_size, splits)
    if spec.collective not in IN_PARTS:
        whole = (0, spec.count)
        gets = spec.collective != Collective.REDUCE.value or rank == spec.root
        return Region(spec.count, whole, whole if gets else _NOTHING)
    parts = spans_of(spec.part_counts(world_size))
    total, mine = sum(count for _, count in parts), parts[rank]
    alone = (0, mine[1])
    match spec.collective:
        case Collective.ALL_GATHER.value:
            return Region(total, mine, (0, total))
        case Collective.REDUCE_SCATTER.value:
            return Region(total, (0, total), mine)
        case Collective.GATHER.value:
            if rank == spec.root:
                return Region(total, mine, (0, total))
            return Region(mine[1], alone, _NOTHING)
    if rank == spec.root:  # scatter
        return Region(total, (0, total), mine)
    return Region(mine[1], _NOTHING, alone)


def _all_to_all(spec: OpSpec, rank: int, world_size: int, splits: tuple[int, ...]) -> Region:
    counts = tuple(rows * spec.count for rows in splits)
    outgoing, incoming = counts[:world_size], counts[world_size:]
    sent, got = sum(outgoing), sum(incoming)
    source, target = spans_of(outgoing)[rank], spans_of(incoming)[rank]
    own = (source[0], sent + target[0], source[1])
    return Region(sent + got, (0, sent), (sent, got), own)


def layout_of(spec: OpSpec, schedule: Schedule, splits: tuple[int, ...] = ()) -> Layout:
    """Where the rank of a schedule keeps its chunks.

    Args:
        splits: as for :func:`region_of`.
    """
    rank, n = schedule.rank, schedule.world_size
    if spec.collective == Collective.ALL_TO_ALL.value:
        return Layout(_pairs(spec, rank, n, splits))
    if spec.collective not in IN_PARTS:
        count = region_of(spec, rank, n).count
        return Layout(dict(enumerate(partition(count, schedule.n_chunks))))
    counts = spec.part_counts(n)
    rooted = spec.collective in (Collective.GATHER.value, Collective.SCATTER.value)
    if not rooted or rank == spec.root:
        return Layout(dict(enumerate(spans_of(counts))))
    passing = sorted(_touched(schedule) - {rank})
    places = spans_of(tuple(counts[chunk] for chunk in passing))
    transit = dict(zip(passing, places, strict=True))
    return Layout({rank: (0, counts[rank])}, transit, sum(counts[c] for c in passing))


def largest_chunk(spec: OpSpec, schedule: Schedule) -> int | None:
    """Elements of the largest chunk of a call; None: only two ranks know of a chunk."""
    if spec.collective == Collective.ALL_TO_ALL.value:
        return None
    if spec.collective in IN_PARTS:
        return max(spec.part_counts(schedule.world_size))
    count = region_of(spec, schedule.rank, schedule.world_size).count
    return -(-count // schedule.n_chunks)


def _pairs(spec: OpSpec, rank: int, n: int, splits: tuple[int, ...]) -> dict[int, Span]:
    """Chunk a*n + b is what rank a has for rank b: a row of the outgoing, a column of the rest."""
    counts = tuple(rows * spec.count for rows in splits)
    sent = sum(counts[:n])
    outgoing = {rank * n + peer: span for peer, span in enumerate(spans_of(counts[:n]))}
    incoming = {
        peer * n + rank: (sent + start, count)
        for peer, (start, count) in enumerate(spans_of(counts[n:]))
        if peer != rank
    }
    return outgoing | incoming


def _touched(schedule: Schedule) -> set[int]:
    sent = {send.chunk for round_ in schedule.rounds for send in round_.sends}
    return sent | {recv.chunk for round_ in schedule.rounds for recv in round_.recvs}
