"""The error and its bound, from their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from ringd.demo.cases import ORDERED, Case
from ringd.demo.workers import reference


@pytest.mark.parametrize(
    ("dtype", "op", "algorithm", "expected"),
    [
        ("int32", "sum", "ring", 0.0),
        ("bool", "sum", "ring", 0.0),
        ("float32", "max", "ring", 0.0),
        ("float32", "sum", "direct", 3 * 2.0**-23),
        ("float64", "prod", "ring", 3 * 2.0**-52),
        ("float32", "avg", "ring", 4 * 2.0**-23),
        ("float32", "premul_sum", "ring", 3 * 2.0**-23),
        ("complex64", "sum", "tree", 3 * 2.0**-23),
        ("complex128", "prod", "tree", 3 * math.sqrt(5) * 2.0**-52),
        ("float16", "sum", "ring", 2.0**-10),
        ("bfloat16", "avg", "tree", 2.0**-7),
        ("bfloat16", "sum", "halving_doubling", 2.0**-7),
        ("bfloat16", "sum", "direct", 0.0),
        ("bfloat16", "sum", "chain", 0.0),
        ("float16", "prod", "exchange", 0.0),
        ("", "", "", 0.0),
    ],
)
def test_tolerance(dtype: str, op: str, algorithm: str, expected: float) -> None:
    assert reference.tolerance(Case("all_reduce", dtype, op, algorithm, 9), 4) == expected


def test_a_deterministic_call_has_no_tolerance() -> None:
    case = Case("all_reduce", "float32", "sum", "chain", 9, form=ORDERED)
    assert reference.tolerance(case, 4) == 0.0


def test_the_error_is_the_worst_of_all_elements() -> None:
    magnitude = torch.tensor([200.0, 4.0])
    error = reference.max_error(torch.tensor([2.0, 4.0]), torch.tensor([0.0, 5.0]), magnitude)
    assert error == 0.25
    complex_error = reference.max_error(
        torch.tensor([3 + 4j]), torch.tensor([0j]), torch.tensor([10.0])
    )
    assert complex_error == 0.5


def test_equal_values_have_no_error_and_others_always_some() -> None:
    ones = torch.ones(2, dtype=torch.float64)
    big = torch.tensor([2**60, 7])
    assert reference.max_error(big, big.clone(), ones) == 0.0
    assert reference.max_error(big, big + torch.tensor([1, 0]), ones * 2.0**60) > 0.0
    zero = torch.zeros(2)
    assert reference.max_error(zero, -zero, ones) == 0.0


@pytest.mark.parametrize("dtype", [torch.bool, torch.float8_e4m3fn, torch.uint8])
def test_what_was_moved_wrongly_is_off_by_much(dtype: torch.dtype) -> None:
    right = torch.tensor([1, 0, 1]).to(dtype)
    wrong = torch.tensor([1, 1, 1]).to(dtype)
    nothing_combined = torch.zeros(1)
    assert reference.max_error(right, right.clone(), nothing_combined) == 0.0
    assert reference.max_error(wrong, right, nothing_combined) > 1.0


@pytest.mark.parametrize(
    "result", [torch.tensor([math.nan]), torch.ones(2), torch.ones(1, dtype=torch.float64)]
)
def test_what_is_no_number_or_no_such_tensor_is_no_small_error(result: torch.Tensor) -> None:
    error = reference.max_error(result, torch.ones(1), torch.ones(1))
    assert not math.isfinite(error)


def test_a_digest_sees_every_bit() -> None:
    zero = torch.zeros(3)
    assert reference.digest(zero) == reference.digest(torch.zeros(3))
    assert reference.digest(zero) != reference.digest(-zero)
