"""What every collective must give, written out in numpy: the reference of the sweeps.

All inputs are such that every sum and product is exact in its dtype, in every order. So whatever
algorithm folds them, the result is one value, and nothing needs a tolerance. What rounding does
is a subject of its own (see :mod:`tests.processes.programs.values`).

Values are kept in a *carrier* dtype that numpy has: float64 for all floats, complex128 for complex
numbers, bytes for float8, which only moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

Array = Any

INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
DTYPES = ("bool", *INTEGERS, *FLOATS, *COMPLEX, *FLOAT8)
OF_NUMPY = ("bool", *INTEGERS, "float16", "float32", "float64", *COMPLEX)

ORDERED, BITWISE = ("min", "max"), ("band", "bor", "bxor")
OPS: dict[str, tuple[str, ...]] = {
    "bool": ("sum", "prod", *ORDERED, *BITWISE),
    **dict.fromkeys(INTEGERS, ("sum", "prod", *ORDERED, *BITWISE, "premul_sum")),
    **dict.fromkeys(FLOATS, ("sum", "prod", *ORDERED, "avg", "premul_sum")),
    **dict.fromkeys(COMPLEX, ("sum", "prod", "avg", "premul_sum")),
    **dict.fromkeys(FLOAT8, ()),
}
"""The table of docs/dtypes.md, once more."""
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("reduce", "broadcast", "gather", "scatter")
IN_PARTS = ("reduce_scatter", "scatter", "all_to_all")
"""Where a rank's input has a part for each rank."""
MOVES = ("broadcast", "all_gather", "gather", "scatter", "all_to_all", "shift")
"""shift: every rank sends to its right neighbour and receives from its left one."""
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "all_reduce": (
        "auto", "ring", "tree", "direct", "exchange",
        "recursive_doubling", "halving_doubling", "chain",
    ),
    "reduce": ("auto", "tree", "chain", "direct"),
    "reduce_scatter": ("auto", "ring", "direct"),
    "broadcast": ("auto", "tree", "chain"),
    "all_gather": ("auto", "ring", "direct"),
    "gather": ("auto", "tree", "direct"),
    "scatter": ("auto", "tree", "direct"),
    "all_to_all": ("auto", "pairwise", "direct"),
    "shift": ("auto",),
}  # fmt: skip

FOLDS: dict[str, Any] = {
    "sum": np.add,
    "avg": np.add,
    "premul_sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


@dataclass(frozen=True)
class Case:
    """One call, the same on every rank.

    Attributes:
        count: elements of a rank's tensor; of one part, where there are parts.
    """

    collective: str
    dtype: str
    count: int
    op: str = ""
    root: int = -1
    algorithm: str = "auto"

    def __str__(self) -> str:
        told = [self.collective, self.dtype, str(self.count), self.op, self.algorithm]
        return " ".join([*filter(None, told), *([f"root {self.root}"] if self.root >= 0 else [])])


def carrier(dtype: str) -> str:
    """The dtype in which the reference keeps values of ``dtype``."""
    if dtype in FLOATS:
        return "float64"
    if dtype in COMPLEX:
        return "complex128"
    return "uint8" if dtype in FLOAT8 else dtype


def contribution(case: Case, rank: int, n: int) -> Array:
    """A rank's whole input: other values at each rank and position."""
    count = case.count * (n if case.collective in IN_PARTS else 1)
    at = np.arange(count, dtype=np.int64)
    mixed = at * 7 + rank * 5 + at * rank + at // 11
    if case.dtype == "bool":
        return mixed % 3 > 0
    if case.dtype in FLOAT8:
        return (mixed % 256).astype(np.uint8)
    if case.dtype in INTEGERS:  # over the whole range, so that sums and products wrap
        spread = (mixed + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return (spread >> np.uint64(64 - 8 * np.dtype(case.dtype).itemsize)).astype(case.dtype)
    if case.dtype in COMPLEX:
        few = np.array([1, 1j, -1, 1 + 1j, 2])
        values = few[mixed % 5] if case.op == "prod" else mixed % 13 - 6 + 1j * (mixed % 7)
    else:
        few = np.array([1, 2, -1, 0.5, -2])
        values = few[mixed % 5] if case.op == "prod" else mixed % 13 - 6
    return values.astype(carrier(case.dtype)) * (n if case.op == "avg" else 1)


def factor(dtype: str, rank: int) -> int | float | complex:
    """A rank's factor for premul_sum."""
    if dtype in INTEGERS:
        return rank + 2
    return complex(rank, 1) if dtype in COMPLEX else (rank + 1) / 2


def fold(case: Case, inputs: list[Array]) -> Array:
    """All inputs, combined."""
    if case.op == "premul_sum":
        kind = inputs[0].dtype
        inputs = [
            value * np.array(factor(case.dtype, rank)).astype(kind)
            for rank, value in enumerate(inputs)
        ]
    with np.errstate(over="ignore"):
        folded = reduce(FOLDS[case.op], inputs)
    return folded / len(inputs) if case.op == "avg" else folded


def expected(case: Case, rank: int, n: int) -> Array | None:
    """What this rank's output holds; None where it gets none."""
    inputs = [contribution(case, r, n) for r in range(n)]
    part = slice(rank * case.count, (rank + 1) * case.count)
    match case.collective:
        case "all_reduce":
            return fold(case, inputs)
        case "reduce":
            return fold(case, inputs) if rank == case.root else inputs[rank]
        case "reduce_scatter":
            return fold(case, inputs)[part]
        case "broadcast":
            return inputs[case.root]
        case "all_gather":
            return np.concatenate(inputs)
        case "gather":
            return np.concatenate(inputs) if rank == case.root else None
        case "scatter":
            return inputs[case.root][part]
        case "all_to_all":
            return np.concatenate([data[part] for data in inputs])
    return inputs[(rank - 1) % n]  # shift


def every_pair(count: int, root: int) -> Iterator[Case]:
    """Every collective with every dtype and every op that the dtype has."""
    for dtype in DTYPES:
        for collective in REDUCING:
            for op in OPS[dtype]:
                yield Case(collective, dtype, count, op, root if collective in ROOTED else -1)
        for collective in MOVES:
            yield Case(collective, dtype, count, "", root if collective in ROOTED else -1)


def every_algorithm(n: int, counts: list[int], dtypes: list[str]) -> Iterator[Case]:
    """Every algorithm and every root, for some dtypes and one op."""
    for collective, algorithms in ALGORITHMS.items():
        for algorithm in algorithms:
            for number, dtype in enumerate(dtypes):
                op = "sum" if collective in REDUCING else ""
                for count in counts:
                    if collective not in ROOTED:
                        yield Case(collective, dtype, count, op, -1, algorithm)
                        continue
                    # All roots for the first dtype, one for each other.
                    for root in range(n) if number == 0 else [number % n]:
                        yield Case(collective, dtype, count, op, root, algorithm)
