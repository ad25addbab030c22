"""complex64 and complex128: what numpy's own complex loops would get wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ringd.kernels import Array, Kernel, kernel_for
from tests.kernels.reference import (
    COMPLEX,
    FOLDED_IN,
    assert_same,
    block_of,
    fold,
    plain_values,
    random_bits,
)

OPS = ("sum", "prod", "avg", "premul_sum")


def parts_of(values: Array) -> Array:
    return values.view(FOLDED_IN[values.dtype.name])


def folded(kernel: Kernel, contributions: list[Array]) -> Array:
    out = np.empty(contributions[0].size, kernel.storage)
    kernel.fold(contributions, out)
    return out


@pytest.mark.parametrize("dtype", COMPLEX)
def test_known_numbers(dtype: str) -> None:
    values = [np.array([1 + 2j], dtype), np.array([3 + 4j], dtype)]
    for op, expected in (("sum", 4 + 6j), ("prod", -5 + 10j), ("avg", 2 + 3j)):
        result = folded(kernel_for(dtype, op, 2, every_rank_folds=False), values)
        assert result.dtype == dtype
        assert result.tolist() == [expected]


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("make", [plain_values, random_bits])
def test_one_by_one_gives_the_bits_of_all_at_once(dtype: str, op: str, make: Any) -> None:
    kernel = kernel_for(dtype, op, 2, every_rank_folds=True)
    values = [make(dtype, 300, seed) for seed in range(2)]
    expected = fold(dtype, op, 2, values)
    assert_same(folded(kernel, values), expected)
    acc = values[0].copy()
    for i in range(300):
        one = acc[i : i + 1]
        kernel.reduce_into(one, values[1][i : i + 1], contribution_first=i % 2 == 1)
        kernel.finalise(one, one)
    assert_same(acc, expected)


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_out_of_place_and_in_place_agree_around_the_border_of_a_block(
    dtype: str, op: str, more: int
) -> None:
    size = block_of(dtype) + more
    kernel = kernel_for(dtype, op, 2, every_rank_folds=False)
    values = [plain_values(dtype, size, seed) for seed in range(2)]
    expected = folded(kernel, values)
    edges = [slice(0, 20), slice(size - 20, size)]
    for edge in edges:
        assert_same(expected[edge], fold(dtype, op, 2, [v[edge] for v in values]))
    for index in range(2):
        mine = [v.copy() for v in values]
        kernel.fold(mine, mine[index])
        assert mine[index].tobytes() == expected.tobytes()
    for first in (False, True):
        acc = values[0].copy()
        kernel.reduce_into(acc, values[1], contribution_first=first)
        kernel.finalise(acc, acc)
        assert acc.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("offset_bytes", [1, 4, 8])
def test_unaligned_memory_gives_the_same_bits(dtype: str, op: str, offset_bytes: int) -> None:
    kernel = kernel_for(dtype, op, 3, every_rank_folds=False)
    values = [plain_values(dtype, 77, seed) for seed in range(3)]
    moved = [
        np.frombuffer(bytearray(offset_bytes) + v.tobytes(), v.dtype, offset=offset_bytes)
        for v in values
    ]
    kernel.fold(moved, moved[1])
    assert_same(moved[1], fold(dtype, op, 3, values))


@pytest.mark.parametrize("dtype", COMPLEX)
def test_an_average_divides_each_part_and_keeps_infinities(dtype: str) -> None:
    values = [np.array([complex(np.inf, 10), complex(1, -np.inf)] * 20, dtype)] * 3
    values[1] = np.zeros(40, dtype)
    result = folded(kernel_for(dtype, "avg", 3, every_rank_folds=False), values)
    twenty, two = np.array([20, 2], FOLDED_IN[dtype]) / 3
    assert parts_of(result).tolist() == [np.inf, twenty, two, -np.inf] * 20


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_a_nan_in_one_part_leaves_the_other(dtype: str, op: str) -> None:
    values = [np.full(30, complex(np.nan, 2), dtype), np.full(30, complex(1, 4), dtype)]
    result = folded(kernel_for(dtype, op, 2, every_rank_folds=True), values)
    assert np.isnan(result.real).all()
    assert (result.imag == (6 if op == "sum" else 3)).all()


@pytest.mark.parametrize("dtype", COMPLEX)
def test_a_sum_of_negative_zeros_is_a_negative_zero(dtype: str) -> None:
    zeros = [np.full(30, complex(-0.0, -0.0), dtype) for _ in range(3)]
    assert np.signbit(
        parts_of(folded(kernel_for(dtype, "sum", 3, every_rank_folds=True), zeros))
    ).all()
