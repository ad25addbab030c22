"""Inputs that every rank can compute for every rank, the fold of 16-bit floats, and errors."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from functools import reduce

import torch

from ringd.demo.cases import Case
from ringd.vocabulary import DTYPES

_INTEGERS = {"int32": 2**29, "int64": 2**60}
"""Bounds of what is summed: the sum of four fits, and of int64 no double could hold it."""
_FOLDS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


def dtype_of(name: str) -> torch.dtype:
    """The torch dtype of a name."""
    found = getattr(torch, DTYPES[name].name)
    assert isinstance(found, torch.dtype)
    return found


def contribution(case: Case, rank: int, world_size: int) -> torch.Tensor:
    """What ``rank`` puts in: chance, but the same for all who ask, and another for each rank.

    Floats to be summed differ in size by a factor of up to 2**16, so that the order of their
    additions shows; factors of a product stay near 1.
    """
    count = case.input_count(world_size)
    chance = torch.Generator().manual_seed(1_000 * count + rank)
    dtype = dtype_of(case.dtype)
    if not DTYPES[case.dtype].is_float:
        bound = 4 if case.reduce_op == "prod" else _INTEGERS[case.dtype]
        return torch.randint(1 - bound, bound, (count,), generator=chance, dtype=dtype)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    values = torch.rand(count, generator=chance, dtype=wide) + 0.5
    values *= torch.randint(0, 2, (count,), generator=chance) * 2 - 1
    if case.reduce_op != "prod":
        values *= torch.pow(2.0, torch.randint(-8, 9, (count,), generator=chance))
    return values.to(dtype)


def left_fold(case: Case, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """((x₀ ∘ x₁) ∘ x₂) … in float32, rounded once: what 16-bit floats are to give."""
    folded = reduce(_FOLDS[case.reduce_op], [x.to(torch.float32) for x in inputs])
    if case.reduce_op == "avg":
        folded = folded / len(inputs)
    return folded.to(inputs[0].dtype)


def magnitude(case: Case, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """What errors are relative to, by element: Σ|x| of what is added, ∏|x| of what is multiplied.

    It does not vanish where terms of a sum cancel, and the bound on the error of a sum in any order
    is a multiple of it (Higham, Accuracy and Stability of Numerical Algorithms, 4.2).
    """
    fold = torch.mul if case.reduce_op == "prod" else torch.add
    total = reduce(fold, [x.to(torch.float64).abs() for x in inputs])
    return total / len(inputs) if case.reduce_op == "avg" else total


def tolerance(case: Case, world_size: int) -> float:
    """The largest relative error that is right.

    0: the same values. Otherwise two orders of N-1 roundings in float32 or float64, each off by
    half of eps at most, and an average's division; or one rounding step of a 16-bit float whose
    float32 sum was added in another order.
    """
    if not DTYPES[case.dtype].is_float or case.reduce_op not in ("sum", "prod", "avg"):
        return 0.0
    if case.is_folded and case.algorithm in ("direct", "exchange"):
        return 0.0
    eps = float(torch.finfo(dtype_of(case.dtype)).eps)
    if case.is_folded:
        return eps
    return (world_size if case.reduce_op == "avg" else world_size - 1) * eps


def max_error(result: torch.Tensor, expected: torch.Tensor, relative_to: torch.Tensor) -> float:
    """The largest error relative to ``relative_to``.

    0.0 only if all values are equal, and not finite if one of them is no number.
    """
    if torch.equal(result, expected):
        return 0.0
    off = (result.to(torch.float64) - expected.to(torch.float64)).abs()
    worst = float((off / relative_to.clamp(min=torch.finfo(torch.float64).tiny)).max())
    return worst if worst != 0 else math.ulp(0.0)


def digest(tensor: torch.Tensor) -> str:
    """A fingerprint of a tensor's bits."""
    data = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(data, digest_size=16).hexdigest()
