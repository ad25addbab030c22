"""Which algorithm "auto" means: a pure function of the spec and the world size.

Every rank resolves it for itself and must come to the same answer, so nothing that differs between
ranks (measurements, load, topology as one rank sees it) may enter.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringd.vocabulary import DTYPES, REDUCING, OpSpec, check_algorithm

KIB = 1024


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Where "auto" changes its mind; must be the same on all ranks of a group.

    Attributes:
        exchange_bytes: largest region that is exchanged whole.
        exchange_total_bytes: bound on what one rank sends in an exchange, (N-1)T.
        direct_max_world: most ranks that all speak to all: N-1 links, and N-1 senders at once to
            each owner, are too many beyond.
        direct_max_world_widened: the same for 16-bit floats, where the alternative costs half as
            much again (all_reduce) or twice as much (reduce_scatter) in bytes.
        tree_bytes: with more ranks than that, largest region for which log2 N steps with all of T
            are taken rather than N-1 steps with T/N.
        tree_first_bytes: up to this region the tree is taken whatever N is: it has the fewest
            messages, 2(N-1) in all against N(N-1), though not the fewest rounds.
        ring_from_bytes: from this region on the ring is taken whatever N is.
    """

    exchange_bytes: int = 32 * KIB
    exchange_total_bytes: int = 64 * KIB
    direct_max_world: int = 16
    direct_max_world_widened: int = 32
    tree_bytes: int = 256 * KIB
    tree_first_bytes: int = -1
    ring_from_bytes: int = 1 << 62

    def exchange_limit_bytes(self, world_size: int) -> int:
        """Largest region that ``world_size`` ranks exchange whole."""
        return min(self.exchange_bytes, self.exchange_total_bytes // max(1, world_size - 1))


DEFAULT_THRESHOLDS = Thresholds()
"""Between hosts rounds cost most: each is a trip over the network."""
ONE_HOST = Thresholds(tree_first_bytes=256 * KIB, ring_from_bytes=512 * KIB)
"""All ranks on one host share its cores, where messages cost most: each is work for two processes,
and the ring touches the least memory at a time. `ringd bench --algorithm` shows it."""


def choose(spec: OpSpec, world_size: int, *, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> str:
    """The concrete algorithm for an operation: what was asked for, or what "auto" means here.

    Args:
        spec: the operation; its dtype has been checked.
        world_size: how many ranks take part.
        thresholds: the same on all ranks.

    Returns:
        A name that :func:`ringd.schedules.build.build` takes for this collective.

    Raises:
        InvalidArgumentError: see :func:`ringd.vocabulary.check_algorithm`.
    """
    check_algorithm(spec)
    if spec.algorithm != "auto":
        return spec.algorithm
    if spec.collective == "all_reduce":
        return _all_reduce(spec, world_size, thresholds)
    if spec.collective == "broadcast":
        return "tree"
    if spec.collective == "barrier":
        fewest_messages = world_size > 2 and thresholds.tree_first_bytes >= 0
        all_to_all = world_size <= thresholds.direct_max_world and not fewest_messages
        return "exchange" if all_to_all else "tree"
    return "direct" if _direct(spec, world_size, thresholds) else "ring"


def is_widened(spec: OpSpec) -> bool:
    """Whether partial sums of this operation are kept, and travel, in a wider type."""
    dtype = DTYPES.get(spec.dtype)
    return spec.collective in REDUCING and dtype is not None and dtype.widened is not None


def _all_reduce(spec: OpSpec, world_size: int, thresholds: Thresholds) -> str:
    region_bytes = spec.region_count(world_size) * spec.itemsize
    many = world_size > 2  # two ranks have nothing to gain from a tree or a ring
    if many and region_bytes <= thresholds.tree_first_bytes and not _in_rank_order(spec):
        return "tree"
    if region_bytes <= thresholds.exchange_limit_bytes(world_size):
        return "exchange"
    if _direct(spec, world_size, thresholds):
        return "direct"
    return "tree" if region_bytes <= thresholds.tree_bytes else "ring"


def _direct(spec: OpSpec, world_size: int, thresholds: Thresholds) -> bool:
    """Whether all may speak to all; whatever N is, where only this keeps the rank order."""
    if _in_rank_order(spec):
        return True
    if is_widened(spec):
        return world_size <= thresholds.direct_max_world_widened
    region_bytes = spec.region_count(world_size) * spec.itemsize
    if world_size > 2 and region_bytes >= thresholds.ring_from_bytes:
        return False
    return world_size <= thresholds.direct_max_world


def _in_rank_order(spec: OpSpec) -> bool:
    """Deterministic means nothing more where nothing is reduced."""
    return spec.deterministic and spec.collective in REDUCING
