"""One door to all builders: the schedule behind a (collective, algorithm) pair."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

from ringd.schedules import (
    chain,
    direct,
    doubling,
    exchange,
    pairwise,
    ring,
    tiny,
    tree,
)
from ringd.schedules.model import Schedule
from ringd.vocabulary import REDUCING, ROOTED

_Builder = Callable[..., Schedule]
_TINY = ("barrier", "agree", "new_group")

_BUILDERS: dict[tuple[str, str], _Builder] = {
    ("all_reduce", "ring"): ring.all_reduce,
    ("all_reduce", "tree"): tree.all_reduce,
    ("all_reduce", "direct"): direct.all_reduce,
    ("all_reduce", "exchange"): exchange.all_reduce,
    ("all_reduce", "recursive_doubling"): doubling.recursive_doubling,
    ("all_reduce", "halving_doubling"): doubling.halving_doubling,
    ("all_reduce", "chain"): chain.all_reduce,
    ("reduce", "tree"): tree.reduce,
    ("reduce", "chain"): chain.reduce,
    ("reduce", "direct"): direct.reduce,
    ("reduce_scatter", "ring"): ring.reduce_scatter,
    ("reduce_scatter", "direct"): direct.reduce_scatter,
    ("all_gather", "ring"): ring.all_gather,
    ("all_gather", "direct"): direct.all_gather,
    ("gather", "tree"): tree.gather,
    ("gather", "direct"): direct.gather,
    ("scatter", "tree"): tree.scatter,
    ("scatter", "direct"): direct.scatter,
    ("all_to_all", "pairwise"): pairwise.all_to_all,
    ("all_to_all", "direct"): direct.all_to_all,
    ("broadcast", "tree"): tree.broadcast,
    ("broadcast", "chain"): chain.broadcast,
    **{(word, "exchange"): partial(tiny.exchange, collective=word) for word in _TINY},
    **{(word, "tree"): partial(tiny.tree, collective=word) for word in _TINY},
}
_SENDS_PARTIAL_SUMS = frozenset({"ring", "tree", "chain", "recursive_doubling", "halving_doubling"})


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
        root: the rank that has the data (broadcast, scatter) or gets it (reduce, gather);
            elsewhere it is ignored.
        widened: partial sums travel in the accumulator's type (16-bit floats).

    Raises:
        ValueError: there is no such pair, or a rank is outside the group.
    """
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not in a group of {world_size}")
    if collective in ROOTED and not 0 <= root < world_size:
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
    builder = _BUILDERS.get((collective, algorithm))
    if builder is None:
        raise ValueError(f"there is no schedule for {collective} by {algorithm!r}")
    asked: dict[str, int | bool] = {}
    if collective in ROOTED:
        asked["root"] = root
    if collective in REDUCING and algorithm in _SENDS_PARTIAL_SUMS:
        asked["widened"] = widened
    return builder(rank, world_size, **asked)
