"""Which kernel answers which question."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from ringd.errors import InvalidArgumentError, UnsupportedReductionError, UnsupportedTypeError
from ringd.kernels import kernel_for, loader
from ringd.kernels.numpy_kernels import NUMPY_CONVERSIONS, NativeKernel, WideningKernel
from ringd.vocabulary import DTYPES, REDUCE_OPS, reductions
from tests.kernels.reference import NATIVE, PAIRS, SIXTEEN_BIT, storage_of

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


@pytest.mark.parametrize(("dtype", "op"), PAIRS)
def test_a_kernel_says_what_it_is_bound_to(dtype: str, op: str) -> None:
    kernel = kernel_for(dtype, op, 5, every_rank_folds=True)
    assert (kernel.dtype, kernel.reduce_op, kernel.world_size) == (dtype, op, 5)
    assert kernel.storage == storage_of(dtype)
    assert kernel.storage.itemsize == DTYPES[dtype].itemsize
    assert kernel.accumulator == np.dtype(DTYPES[dtype].accumulator)


def test_the_same_question_has_the_same_answer() -> None:
    first = kernel_for("float32", "sum", 2, every_rank_folds=False)
    assert kernel_for("float32", "sum", 2, every_rank_folds=False) is first
    assert kernel_for("float32", "sum", 3, every_rank_folds=False) is not first


@needs_torch
@pytest.mark.parametrize("dtype", SIXTEEN_BIT)
@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize("every_rank_folds", [False, True])
def test_torch_converts_once_it_is_ready_unless_every_rank_folds(
    dtype: str, ready: bool, every_rank_folds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ringd.kernels.torch_kernels import torch_conversions

    monkeypatch.setattr(loader, "_torch_is_ready", ready)
    kernel = kernel_for(dtype, "sum", 2, every_rank_folds=every_rank_folds)
    assert isinstance(kernel, WideningKernel)
    by_torch = ready and not every_rank_folds
    expected = torch_conversions(dtype) if by_torch else NUMPY_CONVERSIONS[dtype]
    assert kernel.conversions is expected


@pytest.mark.parametrize("dtype", NATIVE)
def test_native_types_never_need_torch(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_torch_is_ready", True)
    assert isinstance(kernel_for(dtype, "sum", 2, every_rank_folds=False), NativeKernel)


def test_the_pairs_of_these_tests_are_all_that_there_are() -> None:
    assert set(PAIRS) == {(dtype, op) for dtype in DTYPES for op in reductions(dtype)}


@pytest.mark.parametrize(
    ("dtype", "op"), [(d, op) for d in DTYPES for op in REDUCE_OPS if (d, op) not in PAIRS]
)
def test_what_a_dtype_does_not_have_is_refused_and_the_next_question_is_answered(
    dtype: str, op: str
) -> None:
    for kind in (TypeError, ValueError, UnsupportedReductionError):
        with pytest.raises(kind, match=f"op {op} is not defined for {dtype}"):
            kernel_for(dtype, op, 2, every_rank_folds=False)
    assert kernel_for("int64", "bxor", 2, every_rank_folds=False).reduce_op == "bxor"


def test_unknown_names_and_an_empty_world_are_refused() -> None:
    with pytest.raises(UnsupportedTypeError, match="int128"):
        kernel_for("int128", "sum", 2, every_rank_folds=False)
    with pytest.raises(InvalidArgumentError, match="xor"):
        kernel_for("int32", "xor", 2, every_rank_folds=False)
    with pytest.raises(InvalidArgumentError, match="world size of 0"):
        kernel_for("int32", "sum", 0, every_rank_folds=False)
