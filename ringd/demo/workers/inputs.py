"""What each rank puts in: chance that every rank can compute for every rank."""

from __future__ import annotations

from typing import Any

import torch

from ringd.bench.tensors import dtype_of
from ringd.demo.cases import Case
from ringd.vocabulary import DTYPES

_WIDE_INTEGERS = {"int32": 2**29, "int64": 2**60}
"""Bounds of what is summed: the sum of four fits, and of int64 no double could hold it. Narrow ones
are of any value and wrap."""


def contribution(case: Case, rank: int, n: int, *, salt: int = 0) -> torch.Tensor:
    """What ``rank`` of ``n`` puts in: the same for all who ask, and another for each rank.

    Floats to be summed differ in size by a factor of up to 2**16, so that the order of their
    additions shows; factors of a product stay near 1.

    Args:
        salt: makes the data of groups differ.
    """
    count = case.input_count(rank, n)
    chance = torch.Generator().manual_seed(10_000 * case.count + 100 * salt + rank)
    dtype, is_product = dtype_of(case.dtype), case.reduce_op == "prod"
    match DTYPES[case.dtype].kind:
        case "bool":
            return torch.randint(0, 2, (count,), generator=chance).to(dtype)
        case "int":
            low, high = _bounds(case.dtype, is_product)
            return torch.randint(low, high, (count,), generator=chance, dtype=dtype)
        case "complex":
            wide = torch.float64 if case.dtype == "complex128" else torch.float32
            real, imag = (_floats(count, wide, is_product, chance) for _ in range(2))
            return torch.complex(real, imag)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    return _floats(count, wide, is_product, chance).to(dtype)


def factor(case: Case, rank: int) -> float | complex:
    """Of premul_sum: another one for each rank, and exact in every dtype."""
    kind = DTYPES[case.dtype].kind
    if kind == "int":
        return rank + 2
    return complex(rank + 2, 1) / 2 if kind == "complex" else (rank + 2) / 2


def thing(count: int, rank: int) -> Any:
    """An object for the calls that take objects: of nearly ``count`` bytes, and of many types."""
    text = "".join(chr(0x3B1 + (rank + i) % 20) for i in range(count // 4))
    return {
        "rank": rank,
        "text": text,
        "bytes": bytes((rank + i) % 256 for i in range(count // 2)),
        "list": [None, True, -rank, 0.5 * rank, {7: []}],
    }


def _bounds(dtype: str, is_product: bool) -> tuple[int, int]:
    if is_product:
        return (0, 4) if dtype == "uint8" else (-3, 4)
    limits = torch.iinfo(dtype_of(dtype))
    bound = _WIDE_INTEGERS.get(dtype)
    return (1 - bound, bound) if bound else (limits.min, limits.max + 1)


def _floats(
    count: int, dtype: torch.dtype, is_product: bool, chance: torch.Generator
) -> torch.Tensor:
    values = torch.rand(count, generator=chance, dtype=dtype) + 0.5
    values *= torch.randint(0, 2, (count,), generator=chance) * 2 - 1
    if not is_product:
        values *= torch.pow(2.0, torch.randint(-8, 9, (count,), generator=chance))
    return values
