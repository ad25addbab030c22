"""The definitions of the demo, against values worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ringd.demo.cases import LISTS, MESSAGES, UNEVEN, Case
from ringd.demo.workers import definition


def tensors(*values: list[Any], dtype: str = "float32") -> list[torch.Tensor]:
    return [torch.tensor(x, dtype=getattr(torch, dtype)) for x in values]


def results(case: Case, inputs: list[torch.Tensor]) -> list[list[Any]]:
    return [definition.result(case, inputs, rank).tolist() for rank in range(len(inputs))]


@pytest.mark.parametrize(
    ("collective", "root", "expected"),
    [
        ("all_reduce", -1, [[11, 22, 33, 44]] * 2),
        ("reduce", 1, [[1, 2, 3, 4], [11, 22, 33, 44]]),
        ("reduce_scatter", -1, [[11, 22], [33, 44]]),
        ("broadcast", 1, [[10, 20, 30, 40]] * 2),
        ("all_gather", -1, [[1, 2, 3, 4, 10, 20, 30, 40]] * 2),
        ("gather", 1, [[], [1, 2, 3, 4, 10, 20, 30, 40]]),
        ("scatter", 0, [[1, 2], [3, 4]]),
        ("all_to_all", -1, [[1, 2, 10, 20], [3, 4, 30, 40]]),
        (MESSAGES, -1, [[10, 20, 30, 40], [1, 2, 3, 4]]),
    ],
)
def test_what_two_ranks_get(collective: str, root: int, expected: list[list[int]]) -> None:
    op = "sum" if "reduce" in collective else ""
    count = 2 if collective in ("reduce_scatter", "scatter", "all_to_all") else 4
    case = Case(collective, "int32", op, "ring", count, root)
    assert results(case, tensors([1, 2, 3, 4], [10, 20, 30, 40], dtype="int32")) == expected


@pytest.mark.parametrize("form", [UNEVEN, LISTS])
def test_uneven_parts_go_where_they_belong(form: str) -> None:
    scatter = Case("scatter", "int32", "", "tree", 1, 1, form)
    assert results(scatter, tensors([0] * 3, [7, 8, 9], [0] * 3, dtype="int32")) == [
        [],
        [7],
        [8, 9],
    ]
    to_all = Case("all_to_all", "int32", "", "direct", 1, form=form)
    assert [to_all.splits(rank, 3) for rank in range(3)] == [[0, 2, 1], [1, 0, 2], [2, 1, 0]]
    inputs = tensors([1, 2, 3], [4, 5, 6], [7, 8, 9], dtype="int32")
    assert results(to_all, inputs) == [[4, 7, 8], [1, 2, 9], [3, 5, 6]]


def fold(dtype: str, op: str, *values: Any) -> Any:
    case = Case("all_reduce", dtype, op, "ring", 1)
    return definition.left_fold(case, tensors(*([x] for x in values), dtype=dtype)).item()


@pytest.mark.parametrize(
    ("dtype", "op", "values", "expected"),
    [
        ("int8", "sum", (100, 100), -56),
        ("uint8", "prod", (16, 17), 16),
        ("int32", "premul_sum", (5, 7), 2 * 5 + 3 * 7),
        ("float32", "premul_sum", (5.0, 7.0), 1 * 5.0 + 1.5 * 7.0),
        ("int16", "band", (6, 3), 2),
        ("int16", "bor", (6, 3), 7),
        ("int16", "bxor", (6, 3), 5),
        ("bool", "sum", (True, True, True), True),
        ("bool", "prod", (True, False), False),
        ("bool", "min", (True, False), False),
        ("bool", "max", (True, False), True),
        ("bool", "bxor", (True, True), False),
        ("complex64", "prod", (1 + 2j, 3 + 4j), -5 + 10j),
        ("complex64", "avg", (1 + 2j, 3 + 4j), 2 + 3j),
    ],
)
def test_a_fold_of_each_kind(dtype: str, op: str, values: Any, expected: Any) -> None:
    assert fold(dtype, op, *values) == expected


def test_the_fold_rounds_once() -> None:
    # 1 + 2**-8 is no bfloat16: rounding after each addition would lose both small terms.
    assert fold("bfloat16", "sum", 1.0, 2.0**-8, 2.0**-8) == 1.0 + 2.0**-7


def test_the_fold_goes_from_the_left() -> None:
    values = (2.0**60, -(2.0**60), 1.0)
    assert fold("bfloat16", "sum", *values) == 1.0
    assert fold("bfloat16", "sum", *values[::-1]) == 0.0


def test_an_average_is_divided_after_the_sum() -> None:
    assert fold("float16", "avg", 60_000.0, 60_000.0) == 60_000.0


def test_the_error_is_relative_to_what_was_combined() -> None:
    inputs = tensors([100.0, 1.0], [-100.0, 3.0])

    def magnitude(op: str) -> list[float]:
        found = definition.magnitude(Case("all_reduce", "float32", op, "ring", 2), inputs)
        return [float(x) for x in found]

    assert magnitude("sum") == [200.0, 4.0]
    assert magnitude("avg") == [100.0, 2.0]
    assert magnitude("prod") == [10_000.0, 3.0]
    assert magnitude("premul_sum") == [100.0 + 150.0, 1.0 + 4.5]
