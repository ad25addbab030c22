"""deterministic=True: the left fold in rank order, whatever carries it out.

The fold is written out with torch, one term after another. Data is cancelling and of many
magnitudes, so that another order, or a rounding more, shows in many elements.
"""

from __future__ import annotations

from typing import Any

from tests.processes.programs.definition import ALGORITHMS
from tests.processes.programs.values import Book, digest
from tests.processes.trainer import Stage

IN_RANK_ORDER = ("auto", "direct", "exchange", "chain")
DTYPES = ("float32", "bfloat16", "float16", "complex64")
PART = 30_001
"""Elements of one rank's part: no multiple of any segment."""


def contributions(dtype: str, n: int) -> list[Any]:
    """Each rank's N parts."""
    import torch

    drawn = []
    for rank in range(n):
        generator = torch.Generator().manual_seed(100 + rank)
        draw = torch.randn(2, n * PART, generator=generator, dtype=torch.float64)
        values = draw[0] * 10 ** (draw[1] if dtype == "float16" else draw[1] * 3)
        if dtype == "complex64":
            values = torch.complex(values, values.roll(1))
        drawn.append(values.to(getattr(torch, dtype)))
    return drawn


def folds(stage: Stage) -> dict[str, Any]:
    """Every reducing collective, algorithm and slicing: the cases whose bits are not the fold's."""
    comm = stage.comm
    wrong: list[str] = []
    made = 0
    for dtype in DTYPES:
        inputs = contributions(dtype, comm.world_size)
        for op in ("sum", "prod") if dtype == "float32" else ("sum",):
            fold = Book(comm.world_size).left_fold(inputs, op)
            sweep = _Fold(comm, inputs[comm.rank], fold, op)
            wrong += [f"{dtype} {op} {case}" for case in sweep.wrong]
            made += sweep.made
    return {"wrong": wrong, "made": made}


class _Fold:
    """All ways to one fold."""

    def __init__(self, comm: Any, mine: Any, fold: Any, op: str) -> None:
        self.comm, self.mine, self.fold = comm, mine, fold
        self.op = op
        self.wrong: list[str] = []
        self.made = 0
        for algorithm in IN_RANK_ORDER:
            options = {"algorithm": algorithm, "deterministic": True}
            self._all_reduce(options)
            if algorithm in ALGORITHMS["reduce"]:
                self._reduce(options)
            if algorithm in ALGORITHMS["reduce_scatter"]:
                self._reduce_scatter(options)

    def _hold(self, what: str, got: Any, wanted: Any) -> None:
        self.made += 1
        if digest(got) != digest(wanted):
            self.wrong.append(what)

    def _slices(self) -> list[slice]:
        """All of it, a few elements of it, and two that cut it somewhere."""
        cut = PART + 77
        return [slice(None), slice(5, 6), slice(0, 1000), slice(0, cut), slice(cut, None)]

    def _all_reduce(self, options: dict[str, Any]) -> None:
        for part in self._slices():
            got = self.comm.all_reduce(self.mine[part].clone(), self.op, **options)
            self._hold(f"all_reduce {part} {options}", got, self.fold[part])

    def _reduce(self, options: dict[str, Any]) -> None:
        for root in range(self.comm.world_size):
            part = self._slices()[root % 5]
            got = self.comm.reduce(self.mine[part].clone(), root, self.op, **options)
            wanted = self.fold if root == self.comm.rank else self.mine
            self._hold(f"reduce {part} to {root} {options}", got, wanted[part])

    def _reduce_scatter(self, options: dict[str, Any]) -> None:
        rank, n = self.comm.rank, self.comm.world_size
        total = n * PART
        ends = [total // (n + 1) * (r + 1) for r in range(n - 1)] + [total]
        for name, bounds in (("equal", [PART * (r + 1) for r in range(n)]), ("uneven", ends)):
            starts = [0, *bounds[:-1]]
            counts = [end - start for start, end in zip(starts, bounds, strict=True)]
            part = self.fold[starts[rank] : bounds[rank]]
            output = part.clone().zero_()
            self.comm.reduce_scatter(output, self.mine, self.op, counts=counts, **options)
            self._hold(f"reduce_scatter {name} {options}", output, part)
