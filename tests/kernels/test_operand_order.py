"""Ranks that fold for themselves, in steps and in pieces of their own, get the same bits."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ringd.kernels import Array, Kernel, kernel_for
from tests.kernels.reference import PAIRS, plain_values, random_bits

LENGTHS = [*range(1, 20), 31, 32, 33, 64, 65, 1000]
SPECIAL = ("float32", "float64")


def widened(kernel: Kernel, values: Array) -> Array:
    out = np.empty(values.size, kernel.accumulator)
    kernel.widen(values, out)
    return out


def result_of(kernel: Kernel, acc: Array) -> Array:
    """Finalise as the engine does: where types allow it, in place, through another array."""
    if kernel.storage == kernel.accumulator:
        out = acc[:]
    else:
        out = np.empty(acc.size, kernel.storage)
    kernel.finalise(acc, out)
    return out


@pytest.mark.parametrize(("dtype", "op"), PAIRS)
@pytest.mark.parametrize("make", [plain_values, random_bits])
def test_contribution_first_swaps_the_operands(dtype: str, op: str, make: Any) -> None:
    kernel = kernel_for(dtype, op, 2, every_rank_folds=True)
    for size in (0, 1, 2, 17, 300):
        mine, theirs = make(dtype, size, 1), make(dtype, size, 2)
        acc = widened(kernel, mine)
        kernel.reduce_into(acc, widened(kernel, theirs), contribution_first=True)
        expected = np.empty(size, kernel.storage)
        kernel.fold([theirs, mine], expected)
        assert result_of(kernel, acc).tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", SPECIAL)
@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize(("lower", "higher"), list(itertools.permutations((0.0, -0.0))))
def test_one_order_of_two_zeros_gives_one_sign_whoever_accumulates_and_at_any_length(
    dtype: str, op: str, lower: float, higher: float
) -> None:
    kernel = kernel_for(dtype, op, 2, every_rank_folds=True)
    signs: set[bool] = set()
    for size in LENGTHS:
        a, b = np.full(size, lower, dtype), np.full(size, higher, dtype)
        at_lower, at_higher, folded = a.copy(), b.copy(), np.empty(size, dtype)
        kernel.reduce_into(at_lower, b)
        kernel.reduce_into(at_higher, a, contribution_first=True)
        kernel.fold([a, b], folded)
        for result in (at_lower, at_higher, folded):
            signs.update(np.signbit(result).tolist())
    assert len(signs) == 1


def partner_by_partner(kernel: Kernel, values: list[Array]) -> list[Array]:
    """Recursive doubling: in each round two ranks swap partial results; the lower's goes first.

    Rank r takes what comes in pieces of 7 + 5r elements, as a stream of bytes would have it.
    """
    partials = [widened(kernel, v) for v in values]
    distance = 1
    while distance < len(values):
        after = [p.copy() for p in partials]
        for rank, acc in enumerate(after):
            theirs, step = partials[rank ^ distance], 7 + 5 * rank
            for start in range(0, acc.size, step):
                part = slice(start, start + step)
                first = bool(rank & distance)
                kernel.reduce_into(acc[part], theirs[part], contribution_first=first)
        partials, distance = after, 2 * distance
    return [result_of(kernel, p) for p in partials]


def with_zeros_and_nans(dtype: str, count: int, seed: int) -> Array:
    """Every third element a zero of either sign; every fifth anything, NaNs of any payload too."""
    rng = np.random.default_rng(seed)
    values, anything = plain_values(dtype, count, seed), random_bits(dtype, count, seed)
    zeros = np.zeros(count, values.dtype)
    if dtype == "bfloat16":
        zeros[rng.random(count) < 0.5] = 0x8000
    elif zeros.dtype.kind in "fc":
        zeros[rng.random(count) < 0.5] = complex(-0.0, -0.0) if zeros.dtype.kind == "c" else -0.0
    values[::3] = zeros[::3]
    values[::5] = anything[::5]
    if values.dtype.kind in "fc":
        parts = values.view(f"f{values.itemsize // (2 if values.dtype.kind == 'c' else 1)}")
        bits = parts.view(f"u{parts.itemsize}")
        nans = rng.random(parts.size) < 0.1
        quiet = np.array(np.nan, parts.dtype).view(bits.dtype)
        bits[nans] = quiet | rng.integers(1, 100, nans.sum()).astype(bits.dtype)
    return values


@pytest.mark.parametrize(("dtype", "op"), PAIRS)
@pytest.mark.parametrize("world_size", [2, 4, 8])
@pytest.mark.parametrize("size", [1, 200])
def test_recursive_doubling_gives_every_rank_the_same_bits(
    dtype: str, op: str, world_size: int, size: int
) -> None:
    kernel = kernel_for(dtype, op, world_size, every_rank_folds=True)
    values = [with_zeros_and_nans(dtype, size, seed) for seed in range(world_size)]
    results = {r.tobytes() for r in partner_by_partner(kernel, values)}
    assert len(results) == 1


@pytest.mark.parametrize(("dtype", "op"), PAIRS)
@pytest.mark.parametrize("world_size", [2, 3, 5, 7])
def test_a_fold_cut_anywhere_gives_every_rank_the_same_bits(
    dtype: str, op: str, world_size: int
) -> None:
    kernel = kernel_for(dtype, op, world_size, every_rank_folds=True)
    values = [with_zeros_and_nans(dtype, 150, seed) for seed in range(world_size)]
    results = set()
    for rank in range(world_size):
        mine = [v.copy() for v in values]
        step = 1 + 11 * rank
        for start in range(0, 150, step):
            part = [v[start : start + step] for v in mine]
            kernel.fold(part, part[rank])
        results.add(mine[rank].tobytes())
    assert len(results) == 1
