"""What the bench puts in and takes for right, against numpy on all ranks at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ringd.bench.ops import OPS
from ringd.bench.tensors import Tensors, allocate, fill, holds
from ringd.vocabulary import DTYPES, reductions

COUNT = 120
"""Divisible by 2, 3, 4 and 5; more than the pattern's period."""


def make(op: str, rank: int, n: int, dtype: torch.dtype = torch.float32) -> Tensors:
    def empty(size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((size,), 99, dtype=torch.float32).to(dtype)

    tensors = allocate(op, COUNT, dtype, rank, n, empty)
    fill(tensors, rank)
    return tensors


def outputs(op: str, inputs: list[np.ndarray | None], n: int) -> list[np.ndarray | None]:
    """By numpy, of all ranks."""
    present = [x for x in inputs if x is not None]
    parts = [np.array_split(x, n) for x in present]
    match op:
        case "all_reduce":
            return [np.sum(present, axis=0)] * n
        case "reduce":
            return [np.sum(present, axis=0), *present[1:]]
        case "broadcast":
            return [present[0]] * n
        case "all_gather":
            return [np.concatenate(present)] * n
        case "gather":
            return [np.concatenate(present), *[None] * (n - 1)]
        case "scatter":
            return list(parts[0])
        case "reduce_scatter":
            return list(np.split(np.sum(present, axis=0), n))
        case "all_to_all":
            return [np.concatenate([p[k] for p in parts]) for k in range(n)]
        case "sendrecv":
            return [present[rank - 1] for rank in range(n)]
    return [None] * n


@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.parametrize("op", OPS)
def test_what_is_taken_for_right_is_right_and_nothing_else(op: str, n: int) -> None:
    ranks = [make(op, rank, n) for rank in range(n)]
    inputs = [None if t.input is None else t.input.numpy().copy() for t in ranks]
    for rank, expected in enumerate(outputs(op, inputs, n)):
        tensors = ranks[rank]
        if expected is None:
            assert tensors.output is None
            continue
        assert tensors.output is not None
        tensors.output.copy_(torch.from_numpy(expected))
        assert holds(tensors, op, COUNT, rank, n)
        tensors.output[-1] += 1
        assert holds(tensors, op, COUNT, rank, n) == (op == "reduce" and rank > 0)


@pytest.mark.parametrize("op", [op for op in OPS if op not in ("barrier", "reduce")])
def test_an_operation_that_did_nothing_is_noticed(op: str) -> None:
    assert not holds(make(op, 1, 4), op, COUNT, 1, 4) or op == "gather"
    assert not holds(make(op, 0, 4), op, COUNT, 0, 4) or op == "broadcast"


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_exact_in_every_dtype(dtype: str) -> None:
    torch_dtype = getattr(torch, dtype)
    ranks = [make("all_reduce", rank, 4, torch_dtype) for rank in range(4)]
    inputs = [t.input for t in ranks]
    assert all(x is not None for x in inputs)
    if not reductions(dtype):
        distinct = {bytes(x.view(torch.uint8).numpy()) for x in inputs if x is not None}
        assert len(distinct) == 4
        return
    total = sum(x.to(torch.complex128) for x in inputs if x is not None)
    if dtype == "bool":
        total = total != 0
    elif DTYPES[dtype].kind != "complex":
        assert isinstance(total, torch.Tensor)
        total = total.real.to(torch.int64)
    assert isinstance(total, torch.Tensor)
    for tensors in ranks:
        assert tensors.output is not None
        tensors.output.copy_(total.to(torch_dtype))
        assert holds(tensors, "all_reduce", COUNT, 0, 4)


def test_there_is_only_one_tensor_where_the_input_is_overwritten() -> None:
    tensors = make("all_reduce", 0, 2)
    assert tensors.output is tensors.input


def test_only_the_root_has_the_whole() -> None:
    assert [make("gather", rank, 3).output is None for rank in range(3)] == [False, True, True]
    assert [make("scatter", rank, 3).input is None for rank in range(3)] == [False, True, True]


def test_cleared_tensors_are_zeros() -> None:
    tensors = make("all_gather", 2, 3)
    tensors.clear()
    for tensor in (tensors.input, tensors.output):
        assert tensor is not None
        assert not tensor.any()
