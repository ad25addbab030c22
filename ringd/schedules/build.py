"""One door to all builders: the schedule behind a (collective, algorithm) pair."""

from __future__ import annotations

from functools import lru_cache

from ringd.schedules import barrier, direct, exchange, ring, tree
from ringd.schedules.model import Schedule


def build(
    collective: str,
    algorithm: str,
    *,
    rank: int,
    world_size: int,
    root: int = -1,
    widened: bool = False,
) -> Schedule:
    """What ``rank`` does in this collective; the same object each time it is asked for.

    Args:
        collective: a value of :class:`ringd.vocabulary.Collective`.
        algorithm: a concrete one, never "auto": see :func:`ringd.schedules.select.choose`.
        rank: a rank of the group, from 0 on.
        world_size: how many ranks the group has.
        root: the rank that has the data of a broadcast; elsewhere it is ignored.
        widened: partial sums travel in the accumulator's type (16-bit floats).

    Raises:
        ValueError: there is no such pair, or a rank is outside the group.
    """
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not in a group of {world_size}")
    if collective == "broadcast" and not 0 <= root < world_size:
        raise ValueError(f"root {root} is not in a group of {world_size}")
    return _build(collective, algorithm, rank, world_size, root, widened)


def build_group(
    collective: str, algorithm: str, *, world_size: int, root: int = -1, widened: bool = False
) -> tuple[Schedule, ...]:
    """The schedules of all ranks, as :func:`ringd.schedules.proof.prove` takes them."""
    return tuple(
        build(collective, algorithm, rank=rank, world_size=world_size, root=root, widened=widened)
        for rank in range(world_size)
    )


@lru_cache(maxsize=1024)
def _build(
    collective: str, algorithm: str, rank: int, world_size: int, root: int, widened: bool
) -> Schedule:
    match collective, algorithm:
        case "all_reduce", "ring":
            return ring.all_reduce(rank, world_size, widened=widened)
        case "all_reduce", "tree":
            return tree.all_reduce(rank, world_size, widened=widened)
        case "all_reduce", "direct":
            return direct.all_reduce(rank, world_size)
        case "all_reduce", "exchange":
            return exchange.all_reduce(rank, world_size)
        case "reduce_scatter", "ring":
            return ring.reduce_scatter(rank, world_size, widened=widened)
        case "reduce_scatter", "direct":
            return direct.reduce_scatter(rank, world_size)
        case "all_gather", "ring":
            return ring.all_gather(rank, world_size)
        case "all_gather", "direct":
            return direct.all_gather(rank, world_size)
        case "broadcast", "tree":
            return tree.broadcast(rank, world_size, root=root)
        case "barrier", "exchange":
            return barrier.exchange(rank, world_size)
        case "barrier", "tree":
            return barrier.tree(rank, world_size)
    raise ValueError(f"there is no schedule for {collective} by {algorithm!r}")
