"""Binomial trees: ceil(log2 N) rounds up to a root, or as many down from it.

Ranks are counted from the root, so that any rank can be one: that is a rank's *place*. The parent
of a place is the place without its lowest set bit; its children are itself with one lower bit set.
So the subtree of a place are the places from it on, as many as its lowest set bit says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ringd.schedules.model import Recv, Round, Schedule, Send

_Chunks = Callable[[int, int], Iterable[int]]
"""What passes between a place and its parent that is so far above it, in order."""


def all_reduce(rank: int, world_size: int, *, widened: bool) -> Schedule:
    """Reduce to rank 0, then broadcast: 2 ceil(log2 N) steps.

    The busiest rank sends T ceil(log2 N) bytes.

    Args:
        widened: what goes up travels as float32 (2T for 16-bit types); what comes down does not.
    """
    rounds = _fold_up(rank, world_size, 0, widened) + _down(rank, world_size, 0, _whole)
    return _schedule("all_reduce", rank, world_size, rounds, owner=0)


def reduce(rank: int, world_size: int, *, root: int, widened: bool) -> Schedule:
    """Everybody's sum to the root: ceil(log2 N) steps, T bytes per rank.

    Args:
        widened: partial sums travel as float32: 2T for 16-bit types.
    """
    rounds = _fold_up(rank, world_size, root, widened)
    return _schedule("reduce", rank, world_size, rounds, owner=root)


def broadcast(rank: int, world_size: int, *, root: int) -> Schedule:
    """The root's data to everybody: ceil(log2 N) steps, T ceil(log2 N) bytes at the root."""
    return _schedule("broadcast", rank, world_size, _down(rank, world_size, root, _whole))


def gather(rank: int, world_size: int, *, root: int) -> Schedule:
    """Each rank sends the parts of its whole subtree to its parent: ceil(log2 N) steps.

    The busiest sender, a child of the root, sends up to T/2 bytes; the root sends nothing.
    """

    def parts(place: int, distance: int) -> list[int]:
        """A subtree's, as they come: its own, then its children's, the nearest first."""
        end = min(place + distance, world_size)
        return [(root + below) % world_size for below in range(place, end)]

    rounds = _up(rank, world_size, root, parts, _copied)
    return _schedule("gather", rank, world_size, rounds, n_chunks=world_size)


def scatter(rank: int, world_size: int, *, root: int) -> Schedule:
    """Each rank sends to each child the parts of its whole subtree: ceil(log2 N) steps.

    The root sends T(N-1)/N bytes.
    """

    def parts(place: int, distance: int) -> list[int]:
        """A subtree's, the farthest place first: what is passed on comes before one's own."""
        end = min(place + distance, world_size)
        return [(root + below) % world_size for below in reversed(range(place, end))]

    rounds = _down(rank, world_size, root, parts)
    return _schedule("scatter", rank, world_size, rounds, n_chunks=world_size)


def _whole(_place: int, _distance: int) -> tuple[int, ...]:
    """The only chunk."""
    return (0,)


def _bits(world_size: int) -> list[int]:
    """1, 2, 4, ... below N: the distances that a binomial tree spans, the nearest first."""
    return [1 << level for level in range((world_size - 1).bit_length())]


def _copied(peer: int, chunk: int) -> Recv:
    return Recv(peer, chunk, "copy")


def _fold_up(rank: int, world_size: int, root: int, wide: bool) -> tuple[Round, ...]:
    def reduced(peer: int, chunk: int) -> Recv:
        return Recv(peer, chunk, "reduce", wide)

    return _up(rank, world_size, root, _whole, reduced, wide)


def _up(
    rank: int,
    world_size: int,
    root: int,
    chunks: _Chunks,
    received: Callable[[int, int], Recv],
    wide: bool = False,
) -> tuple[Round, ...]:
    """The nearest child first; rounds after one's own send to the parent are empty."""
    place = (rank - root) % world_size
    rounds = []
    for bit in _bits(world_size):
        round_ = Round()
        if place % bit == 0:
            parent, child = (rank - bit) % world_size, (rank + bit) % world_size
            if place & bit:
                round_ = Round(sends=tuple(Send(parent, c, wide) for c in chunks(place, bit)))
            elif place + bit < world_size:
                round_ = Round(recvs=tuple(received(child, c) for c in chunks(place + bit, bit)))
        rounds.append(round_)
    return tuple(rounds)


def _down(rank: int, world_size: int, root: int, chunks: _Chunks) -> tuple[Round, ...]:
    """The same tree backwards: the farthest child first, as it has the most ranks below it."""
    place = (rank - root) % world_size
    rounds = []
    for bit in reversed(_bits(world_size)):
        round_ = Round()
        if place % bit == 0:
            parent, child = (rank - bit) % world_size, (rank + bit) % world_size
            if place & bit:
                round_ = Round(recvs=tuple(_copied(parent, c) for c in chunks(place, bit)))
            elif place + bit < world_size:
                round_ = Round(sends=tuple(Send(child, c) for c in chunks(place + bit, bit)))
        rounds.append(round_)
    return tuple(rounds)


def _schedule(
    collective: str,
    rank: int,
    world_size: int,
    rounds: tuple[Round, ...],
    *,
    owner: int = -1,
    n_chunks: int = 1,
) -> Schedule:
    """``owner``: the rank at which a reduction ends."""
    return Schedule(
        collective=collective,
        algorithm="tree",
        rank=rank,
        world_size=world_size,
        n_chunks=n_chunks,
        rounds=rounds,
        fold="round" if owner >= 0 else "rank",
        owned=(0,) if rank == owner else (),
    )
