"""The arithmetic of one operation: its region as numbers, and the folds of what arrives into it."""

from __future__ import annotations

from time import perf_counter_ns

import numpy as np

from ringd.engine.landing import Parked
from ringd.kernels.base import Kernel
from ringd.schedules.plan import Application, Plan, RecvItem


class Folding:
    """Folds contributions into a region, piece by piece or parked ones together.

    Attributes:
        reduce_ns: time spent in kernels.
        wide_mem: the partial sums of a widened operation, in memory of their own: float32 for
            16-bit data. Otherwise the region.
    """

    __slots__ = ("_acc", "_array", "_kernel", "_raw", "reduce_ns", "wide_mem")

    def __init__(self, kernel: Kernel, plan: Plan, mem: memoryview) -> None:
        self._kernel = kernel
        self._raw = plan.schedule.fold == "rank"
        self._array = self._acc = np.frombuffer(mem, kernel.storage)
        self.wide_mem = mem
        self.reduce_ns = 0
        if plan.wide:
            self._acc = np.empty(len(self._array), kernel.accumulator)
            kernel.widen(self._array, self._acc)
            self.wide_mem = self._acc.data.cast("B")

    def one(
        self, item: RecvItem, app: Application, data: memoryview, done: int, count: int
    ) -> None:
        """Fold ``count`` elements of a lone contribution, from element ``done`` of the item on."""
        begun = perf_counter_ns()
        kernel = self._kernel
        start = item.start + done
        mine = self._array[start : start + count]
        if self._is_raw(app, item.wide):
            other = np.frombuffer(data, kernel.storage)
            kernel.fold((other, mine) if app.own else (mine, other), mine)
        else:
            acc = self._acc[start : start + count]
            term = np.frombuffer(data, kernel.accumulator)
            kernel.reduce_into(acc, term, contribution_first=app.own > 0)
            if app.finalise and kernel.needs_finalise:
                kernel.finalise(acc, mine)
        self.reduce_ns += perf_counter_ns() - begun

    def together(
        self, parked: Parked, app: Application, start: int, count: int, *, wide: bool
    ) -> None:
        """Fold all contributions of an application, in their order, our own in its place."""
        begun = perf_counter_ns()
        kernel = self._kernel
        mine = self._array[start : start + count]
        if self._is_raw(app, wide):
            kernel.fold(parked.arrays(kernel.storage, app.own, mine), mine)
        else:
            self._add_up(parked, app, self._acc[start : start + count])
            if app.finalise and kernel.needs_finalise:
                kernel.finalise(self._acc[start : start + count], mine)
        self.reduce_ns += perf_counter_ns() - begun

    def _add_up(self, parked: Parked, app: Application, acc: np.ndarray) -> None:
        reduce_into = self._kernel.reduce_into
        terms = parked.arrays(self._kernel.accumulator, app.own, acc)
        before, after = terms[: app.own], terms[app.own + 1 :]
        if before:
            left = before[0]
            if len(before) > 1:  # what comes before ours is a fold of its own
                left = left.copy()
                for term in before[1:]:
                    reduce_into(left, term)
            reduce_into(acc, left, contribution_first=True)
        for term in after:
            reduce_into(acc, term)

    def _is_raw(self, app: Application, wide: bool) -> bool:
        """Contributions as ranks gave them, folded to the end in rank order (not partial sums)."""
        return app.finalise and not wide and self._raw
