"""The fold, the error and its bound, from their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from ringd.demo.cases import Case
from ringd.demo.workers import reference
from ringd.vocabulary import DTYPES, REDUCE_OPS


def case(dtype: str, op: str = "sum", algorithm: str = "ring", count: int = 999) -> Case:
    return Case("all_reduce", dtype, op, algorithm, count)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_inputs_depend_on_rank_and_position_and_can_be_computed_anywhere(
    dtype: str, op: str
) -> None:
    ours = reference.contribution(case(dtype, op), 1, 4)
    assert ours.dtype is getattr(torch, dtype)
    assert torch.equal(ours, reference.contribution(case(dtype, op), 1, 4))
    assert not torch.equal(ours, reference.contribution(case(dtype, op), 2, 4))
    assert len(ours.unique()) > 5


@pytest.mark.parametrize("dtype", [name for name, d in DTYPES.items() if d.is_float])
@pytest.mark.parametrize("op", [op for op in REDUCE_OPS if op != "avg"])
def test_no_reduction_of_the_inputs_leaves_the_range_of_its_dtype(dtype: str, op: str) -> None:
    inputs = [reference.contribution(case(dtype, op), rank, 4) for rank in range(4)]
    result = reference.left_fold(case(dtype, op), inputs)
    assert torch.isfinite(result).all()
    assert (result != 0).any()


def test_integer_sums_fit_and_no_double_could_hold_them() -> None:
    inputs = [reference.contribution(case("int64"), rank, 4) for rank in range(4)]
    exact = [sum(values) for values in zip(*(x.tolist() for x in inputs), strict=True)]
    assert max(map(abs, exact)) < 2**63
    assert any(int(float(value)) != value for value in exact)


def test_the_fold_rounds_once() -> None:
    # 1 + 2**-8 is no bfloat16: rounding after each addition would lose both small terms.
    inputs = [torch.tensor([x], dtype=torch.bfloat16) for x in (1.0, 2.0**-8, 2.0**-8)]
    assert reference.left_fold(case("bfloat16"), inputs).item() == 1.0 + 2.0**-7


def test_the_fold_goes_from_the_left() -> None:
    inputs = [torch.tensor([x], dtype=torch.bfloat16) for x in (2.0**60, -(2.0**60), 1.0)]
    assert reference.left_fold(case("bfloat16"), inputs).item() == 1.0
    assert reference.left_fold(case("bfloat16"), inputs[::-1]).item() == 0.0


def test_an_average_is_divided_after_the_sum() -> None:
    inputs = [torch.tensor([x], dtype=torch.float16) for x in (60_000.0, 60_000.0)]
    assert reference.left_fold(case("float16", "avg"), inputs).item() == 60_000.0


@pytest.mark.parametrize(
    ("dtype", "op", "algorithm", "expected"),
    [
        ("int32", "sum", "ring", 0.0),
        ("float32", "max", "ring", 0.0),
        ("float32", "sum", "direct", 3 * 2.0**-23),
        ("float64", "prod", "ring", 3 * 2.0**-52),
        ("float32", "avg", "ring", 4 * 2.0**-23),
        ("float16", "sum", "ring", 2.0**-10),
        ("bfloat16", "avg", "tree", 2.0**-7),
        ("bfloat16", "sum", "direct", 0.0),
        ("float16", "prod", "exchange", 0.0),
    ],
)
def test_tolerance(dtype: str, op: str, algorithm: str, expected: float) -> None:
    assert reference.tolerance(case(dtype, op, algorithm), 4) == expected


def test_the_error_is_relative_to_what_was_combined() -> None:
    inputs = [torch.tensor([100.0, 1.0]), torch.tensor([-100.0, 3.0])]
    magnitude = reference.magnitude(case("float32"), inputs)
    assert magnitude.tolist() == [200.0, 4.0]
    assert reference.magnitude(case("float32", "avg"), inputs).tolist() == [100.0, 2.0]
    assert reference.magnitude(case("float32", "prod"), inputs).tolist() == [10_000.0, 3.0]
    error = reference.max_error(torch.tensor([2.0, 4.0]), torch.tensor([0.0, 5.0]), magnitude)
    assert error == 0.25


def test_equal_values_have_no_error_and_others_always_some() -> None:
    ones = torch.ones(2, dtype=torch.float64)
    big = torch.tensor([2**60, 7])
    assert reference.max_error(big, big.clone(), ones) == 0.0
    assert reference.max_error(big, big + torch.tensor([1, 0]), ones * 2.0**60) > 0.0


def test_a_number_that_is_none_is_no_small_error() -> None:
    error = reference.max_error(torch.tensor([math.nan]), torch.ones(1), torch.ones(1))
    assert not math.isfinite(error)


def test_a_digest_sees_every_bit() -> None:
    zero = torch.zeros(3)
    assert reference.digest(zero) == reference.digest(torch.zeros(3))
    assert reference.digest(zero) != reference.digest(-zero)
