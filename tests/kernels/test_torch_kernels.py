"""With torch's conversions a kernel gives numpy's results."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ringd.kernels.numpy_kernels import NUMPY_CONVERSIONS, WideningKernel
from ringd.kernels.scratch import block_count
from tests.kernels.reference import OPS, SIXTEEN_BIT, plain_values, random_bits, to_float32

torch: Any = pytest.importorskip("torch", reason="these kernels are torch's")
from ringd.kernels.torch_kernels import torch_conversions  # noqa: E402

BLOCK = block_count(4)


@pytest.fixture(autouse=True)
def warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def both_kernels(dtype: str, op: str, world_size: int) -> list[WideningKernel]:
    return [
        WideningKernel(dtype, op, world_size, every_rank_folds=False, conversions=conversions)
        for conversions in (NUMPY_CONVERSIONS[dtype], torch_conversions(dtype))
    ]


def assert_equal_numbers(dtype: str, ours: Any, theirs: Any) -> None:
    nan = np.isnan(to_float32(dtype, theirs))
    np.testing.assert_array_equal(np.isnan(to_float32(dtype, ours)), nan)
    np.testing.assert_array_equal(ours.view(np.uint16)[~nan], theirs.view(np.uint16)[~nan])


@pytest.mark.parametrize("dtype", SIXTEEN_BIT)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 5000, BLOCK + 1])
def test_a_fold_has_the_same_bits_at_every_index_of_out(dtype: str, op: str, size: int) -> None:
    by_numpy, by_torch = both_kernels(dtype, op, 3)
    originals = [random_bits(dtype, size, seed) for seed in range(3)]
    expected = np.empty(size, by_numpy.storage)
    by_numpy.fold(originals, expected)
    for index in range(3):
        contributions = [c.copy() for c in originals]
        by_torch.fold(contributions, contributions[index])
        assert_equal_numbers(dtype, contributions[index], expected)


@pytest.mark.parametrize("dtype", SIXTEEN_BIT)
def test_it_equals_a_fold_that_torch_makes_in_float32(dtype: str) -> None:
    kind = getattr(torch, dtype)
    contributions = [random_bits(dtype, 3 * BLOCK, seed) for seed in range(4)]
    tensors = [torch.from_numpy(c).view(kind).to(torch.float32) for c in contributions]
    total = tensors[0] + tensors[1] + tensors[2] + tensors[3]
    expected = (total / 4).to(kind).view(torch.int16).numpy().view(np.uint16)
    for kernel in both_kernels(dtype, "avg", 4):
        out = np.empty(3 * BLOCK, kernel.storage)
        kernel.fold(contributions, out)
        assert_equal_numbers(dtype, out, expected.view(kernel.storage))


@pytest.mark.parametrize("dtype", SIXTEEN_BIT)
@pytest.mark.parametrize("offset_bytes", [1, 2, 6])
def test_unaligned_and_read_only_memory_serve(dtype: str, offset_bytes: int) -> None:
    size = BLOCK + 3
    by_numpy, by_torch = both_kernels(dtype, "sum", 2)
    values = [random_bits(dtype, size, seed) for seed in range(2)]
    expected = np.empty(size, by_numpy.storage)
    by_numpy.fold(values, expected)
    moved = [
        np.frombuffer(b"\0" * offset_bytes + v.tobytes(), v.dtype, offset=offset_bytes)
        for v in values
    ]
    out = np.frombuffer(bytearray(offset_bytes + 2 * size), by_torch.storage, offset=offset_bytes)
    by_torch.fold(moved, out)
    assert_equal_numbers(dtype, out, expected)


@pytest.mark.parametrize("dtype", SIXTEEN_BIT)
def test_widen_and_finalise_agree_too(dtype: str) -> None:
    size = 2 * BLOCK + 7
    values = plain_values(dtype, size, 5)
    results = []
    for kernel in both_kernels(dtype, "avg", 2):
        acc = np.empty(size, np.float32)
        kernel.widen(values, acc)
        kernel.reduce_into(acc, acc.copy())
        out = np.empty(size, kernel.storage)
        kernel.finalise(acc, out)
        results.append(out)
    assert_equal_numbers(dtype, results[1], results[0])
    assert_equal_numbers(dtype, results[0], values)
