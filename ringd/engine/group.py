"""A process group on one rank: its epoch, its order of operations, how past ones ended."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ringd.errors import RingdError
from ringd.kernels import kernel_for, torch_is_ready
from ringd.schedules.build import build
from ringd.schedules.formula import partition
from ringd.schedules.plan import Plan, compile_plan
from ringd.schedules.select import DEFAULT_THRESHOLDS, Thresholds, choose
from ringd.vocabulary import DTYPES, Collective, OpSpec

if TYPE_CHECKING:
    from ringd.engine.operation import Operation
    from ringd.kernels.base import Kernel

MAX_REMEMBERED = 1024
MAX_PLANS = 512


@dataclass(frozen=True, slots=True)
class Compiled:
    """A call, ready to run on this rank."""

    spec: OpSpec
    algorithm: str
    plan: Plan
    kernel: Kernel | None
    region_bytes: int
    wants_torch: bool = False
    """Its 16-bit kernel is numpy's, because torch was not there."""


@dataclass(slots=True)
class Group:
    """One group in one epoch.

    Attributes:
        next_seq: the number of the next call here.
        ops: operations in flight, by seq.
        verdicts: errors of operations that were ended before this rank entered them.
        pending: an error of an operation that had returned here; the next call raises it.
        returned: the calls of rooted operations that returned here, perhaps too early to know.
        broken: why the epoch is over for this group, if it is.
        left: ranks that said goodbye, and the seq from which on they take no part.
    """

    number: int
    rank: int
    world_size: int
    epoch: int = 0
    next_seq: int = 0
    ops: dict[int, Operation] = field(default_factory=dict)
    verdicts: OrderedDict[int, RingdError] = field(default_factory=OrderedDict)
    pending: RingdError | None = None
    returned: OrderedDict[int, OpSpec] = field(default_factory=OrderedDict)
    broken: RingdError | None = None
    left: dict[int, int] = field(default_factory=dict)
    stream: int = 1

    def remember(self, seq: int, error: RingdError) -> None:
        """Store the verdict on an operation, for late entrants."""
        self.verdicts[seq] = error
        if len(self.verdicts) > MAX_REMEMBERED:
            self.verdicts.popitem(last=False)

    def note_return(self, seq: int, spec: OpSpec) -> None:
        """Keep the call of an operation whose mismatch may show only now."""
        self.returned[seq] = spec
        if len(self.returned) > MAX_REMEMBERED:
            self.returned.popitem(last=False)

    def begin_epoch(self, epoch: int) -> None:
        """A fresh order of operations."""
        self.epoch = epoch
        self.next_seq = 0
        self.ops.clear()
        self.verdicts.clear()
        self.returned.clear()
        self.left.clear()
        self.pending = self.broken = None


class Compiler:
    """Specs to plans, cached: the same call twice costs one dictionary look-up."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        segment_bytes: int,
        eager_bytes: int,
        bring_torch: Callable[[], None] | None,
    ) -> None:
        self._rank = rank
        self._world_size = world_size
        self._segment_bytes = segment_bytes
        self._eager_bytes = eager_bytes
        self._bring_torch = bring_torch
        self._thresholds = DEFAULT_THRESHOLDS
        self._cache: dict[bytes, Compiled] = {}

    def choose_by(self, thresholds: Thresholds) -> None:
        """From the next call on "auto" goes by ``thresholds``, the same on all ranks."""
        if thresholds != self._thresholds:
            self._thresholds = thresholds
            self._cache.clear()

    def known(self, packed: bytes) -> Compiled | None:
        """The plan behind a packed spec that was compiled before, unless a better one is due."""
        found = self._cache.get(packed)
        if found is not None and found.wants_torch and torch_is_ready():
            return None
        return found

    def compile(self, packed: bytes, spec: OpSpec) -> Compiled:
        """Compile a checked spec, and remember the plan.

        Raises:
            InvalidArgumentError: the algorithm is not one that the collective has.
        """
        if len(self._cache) >= MAX_PLANS:
            self._cache.clear()
        found = self._cache[packed] = self._compile(spec)
        if found.wants_torch and self._bring_torch is not None:
            self._bring_torch()
        return found

    def _compile(self, spec: OpSpec) -> Compiled:
        algorithm = choose(spec, self._world_size, thresholds=self._thresholds)
        widened = bool(spec.reduce_op and DTYPES[spec.dtype].widened)
        schedule = build(
            spec.collective,
            algorithm,
            rank=self._rank,
            world_size=self._world_size,
            root=spec.root,
            widened=widened,
        )
        count = spec.region_count(self._world_size)
        plan = compile_plan(
            schedule,
            chunks=partition(count, schedule.n_chunks),
            itemsize=spec.itemsize,
            wide_itemsize=4 if widened else spec.itemsize,
            segment_bytes=self._segment_bytes,
            eager_bytes=self._eager_bytes,
        )
        kernel = None
        if spec.reduce_op and spec.collective != Collective.BARRIER.value:
            kernel = kernel_for(
                spec.dtype,
                spec.reduce_op,
                self._world_size,
                every_rank_folds=algorithm == "exchange",
            )
        wants_torch = widened and algorithm != "exchange" and not torch_is_ready()
        return Compiled(spec, algorithm, plan, kernel, count * spec.itemsize, wants_torch)
