"""Which algorithm "auto" means: a pure function of the spec and the world size.

Every rank resolves it for itself and must come to the same answer, so nothing that differs between
ranks (measurements, load, topology as one rank sees it) may enter.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringd.errors import InvalidArgumentError
from ringd.vocabulary import ALGORITHMS, DETERMINISTIC_ALGORITHMS, DTYPES, REDUCING, OpSpec

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
    """

    exchange_bytes: int = 32 * KIB
    exchange_total_bytes: int = 64 * KIB
    direct_max_world: int = 16
    direct_max_world_widened: int = 32
    tree_bytes: int = 256 * KIB

    def exchange_limit_bytes(self, world_size: int) -> int:
        """Largest region that ``world_size`` ranks exchange whole."""
        return min(self.exchange_bytes, self.exchange_total_bytes // max(1, world_size - 1))


DEFAULT_THRESHOLDS = Thresholds()


def choose(spec: OpSpec, world_size: int, *, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> str:
    """The concrete algorithm for an operation: what was asked for, or what "auto" means here.

    Args:
        spec: the operation; its dtype has been checked.
        world_size: how many ranks take part.
        thresholds: the same on all ranks.

    Returns:
        A name that :func:`ringd.schedules.build.build` takes for this collective.

    Raises:
        InvalidArgumentError: the collective has no such algorithm, or deterministic=True was asked
            for together with an algorithm that can't fold in rank order.
    """
    check(spec)
    if spec.algorithm != "auto":
        return spec.algorithm
    if spec.collective == "all_reduce":
        return _all_reduce(spec, world_size, thresholds)
    if spec.collective == "broadcast":
        return "tree"
    if spec.collective == "barrier":
        return "exchange" if world_size <= thresholds.direct_max_world else "tree"
    return "direct" if _direct(spec, world_size, thresholds) else "ring"


def check(spec: OpSpec) -> None:
    """Refuse an algorithm that the collective does not have, or that can't keep its promise.

    Raises:
        InvalidArgumentError: see :func:`choose`.
    """
    known = ALGORITHMS.get(spec.collective)
    if known is None:
        raise InvalidArgumentError(
            f"there is no collective {spec.collective!r}; use one of {', '.join(ALGORITHMS)}"
        )
    if spec.algorithm not in known:
        raise InvalidArgumentError(
            f"{spec.collective} has no algorithm {spec.algorithm!r}; use one of {', '.join(known)}"
        )
    if _in_rank_order(spec) and spec.algorithm not in DETERMINISTIC_ALGORITHMS:
        usable = [name for name in known if name in DETERMINISTIC_ALGORITHMS]
        raise InvalidArgumentError(
            f"{spec.collective} by {spec.algorithm!r} does not reduce in rank order, which "
            f"deterministic=True asks for; use one of {', '.join(usable)}, or deterministic=False"
        )


def is_widened(spec: OpSpec) -> bool:
    """Whether partial sums of this operation are kept, and travel, in a wider type."""
    dtype = DTYPES.get(spec.dtype)
    return spec.collective in REDUCING and dtype is not None and dtype.widened is not None


def _all_reduce(spec: OpSpec, world_size: int, thresholds: Thresholds) -> str:
    region_bytes = spec.region_count(world_size) * spec.itemsize
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
    return world_size <= thresholds.direct_max_world


def _in_rank_order(spec: OpSpec) -> bool:
    """Deterministic means nothing more where nothing is reduced."""
    return spec.deterministic and spec.collective in REDUCING
