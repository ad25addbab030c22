"""Calls to plans, cached: the same call twice costs one dictionary look-up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringd.errors import InvalidArgumentError
from ringd.kernels import kernel_for, torch_is_ready
from ringd.schedules.build import build
from ringd.schedules.layout import largest_chunk, layout_of, region_of
from ringd.schedules.plan import Plan, compile_plan
from ringd.schedules.select import DEFAULT_THRESHOLDS, Thresholds, choose
from ringd.vocabulary import DTYPES, FOLDING, REDUCING, Collective, OpSpec

if TYPE_CHECKING:
    from ringd.kernels.base import Kernel
    from ringd.schedules.model import Schedule

MAX_PLANS = 512
_EVERY_RANK_FOLDS = frozenset({"exchange", "recursive_doubling"})

Splits = tuple[int, ...]
"""What of an all_to_all is this rank's own: rows for each rank, then rows from each rank."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A call, ready to run on this rank.

    Attributes:
        ranks: the plan's peers as ranks of the world.
        region_bytes: size of the region.
        wants_torch: its 16-bit kernel is numpy's, because torch was not there.
        pairs: of all_to_all, by rank of the group: rows to it, rows from it.
    """

    spec: OpSpec
    algorithm: str
    plan: Plan
    kernel: Kernel | None
    ranks: tuple[int, ...]
    region_bytes: int
    wants_torch: bool = False
    pairs: tuple[tuple[int, int], ...] = ()


class Compiler:
    """The plans of one group.

    Args:
        ranks: its members as ranks of the world, in group order.
        rank: our own place among them.
        bring_torch: called when torch's conversions would be quicker.
    """

    def __init__(
        self,
        ranks: tuple[int, ...],
        rank: int,
        segment_bytes: int,
        eager_bytes: int,
        bring_torch: Callable[[], None] | None,
        thresholds: Thresholds = DEFAULT_THRESHOLDS,
    ) -> None:
        self._ranks = ranks
        self._rank = rank
        self._segment_bytes = segment_bytes
        self._eager_bytes = eager_bytes
        self._bring_torch = bring_torch
        self._thresholds = thresholds
        self._cache: dict[tuple[bytes, Splits | None], Compiled] = {}

    def choose_by(self, thresholds: Thresholds) -> None:
        """From the next call on "auto" goes by ``thresholds``, the same on all ranks."""
        if thresholds != self._thresholds:
            self._thresholds = thresholds
            self._cache.clear()

    def known(self, packed: bytes, splits: Splits | None) -> Compiled | None:
        """The plan of a call that was compiled before, unless a better one is due."""
        found = self._cache.get((packed, splits))
        if found is not None and found.wants_torch and torch_is_ready():
            return None
        return found

    def region_bytes(self, spec: OpSpec, splits: Splits | None) -> int:
        """The size of a checked call's region.

        Raises:
            InvalidArgumentError: the splits are not those of an all_to_all in this group.
        """
        n = len(self._ranks)
        if spec.collective == Collective.ALL_TO_ALL.value:
            if splits is None or len(splits) != 2 * n:
                raise InvalidArgumentError(f"all_to_all in a group of {n} takes {2 * n} splits")
            if splits[self._rank] != splits[n + self._rank]:
                raise InvalidArgumentError(
                    f"all_to_all: {splits[self._rank]} rows for oneself, but "
                    f"{splits[n + self._rank]} rows from oneself"
                )
        elif splits is not None:
            raise InvalidArgumentError(f"{spec.collective} takes no splits")
        return region_of(spec, self._rank, n, splits or ()).count * spec.itemsize

    def compile(self, packed: bytes, spec: OpSpec, splits: Splits | None) -> Compiled:
        """Compile a checked call, and remember the plan.

        Raises:
            InvalidArgumentError: the algorithm is not one that the collective has.
        """
        if len(self._cache) >= MAX_PLANS:
            self._cache.clear()
        found = self._cache[packed, splits] = self._compile(spec, splits)
        if found.wants_torch and self._bring_torch is not None:
            self._bring_torch()
        return found

    def _segment_of(self, spec: OpSpec, schedule: Schedule) -> int:
        chunk = largest_chunk(spec, schedule)
        if chunk is None:
            return self._segment_bytes
        return self._thresholds.segment_bytes(chunk * spec.itemsize, self._segment_bytes)

    def _compile(self, spec: OpSpec, splits: Splits | None) -> Compiled:
        rank, ranks = self._rank, self._ranks
        if spec.collective == Collective.NEW_GROUP.value:
            # Among the members only; who is none is done at once.
            if rank in spec.counts:
                rank, ranks = spec.counts.index(rank), tuple(ranks[m] for m in spec.counts)
            else:
                rank, ranks = 0, (ranks[rank],)
        n = len(ranks)
        algorithm = choose(spec, n, thresholds=self._thresholds)
        reduces = spec.collective in REDUCING
        widened = bool(reduces and DTYPES[spec.dtype].widened)
        schedule = build(
            spec.collective, algorithm, rank=rank, world_size=n, root=spec.root, widened=widened
        )
        plan = compile_plan(
            schedule,
            layout=layout_of(spec, schedule, splits or ()),
            itemsize=spec.itemsize,
            wide_itemsize=4 if widened else spec.itemsize,
            segment_bytes=self._segment_of(spec, schedule),
            eager_bytes=self._eager_bytes,
        )
        kernel = None
        if spec.collective in FOLDING:
            kernel = kernel_for(
                spec.dtype, spec.reduce_op, n, every_rank_folds=algorithm in _EVERY_RANK_FOLDS
            )
        return Compiled(
            spec=spec,
            algorithm=algorithm,
            plan=plan,
            kernel=kernel,
            ranks=ranks,
            region_bytes=self.region_bytes(spec, splits),
            wants_torch=widened and algorithm not in _EVERY_RANK_FOLDS and not torch_is_ready(),
            pairs=tuple(zip(splits[:n], splits[n:], strict=True)) if splits is not None else (),
        )
