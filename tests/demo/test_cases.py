"""What is verified covers all there is."""

from __future__ import annotations

from collections import Counter

import pytest

from ringd.demo.cases import (
    BARRIER,
    COALESCED,
    GROUPS,
    LISTS,
    MESSAGES,
    OBJECTS,
    ORDERED,
    UNEVEN,
    Case,
    algorithms,
    cases,
)
from ringd.vocabulary import ALGORITHMS, DTYPES, REDUCING, OpSpec, check_spec, reductions

PLAIN = [c for c in cases(4) if not c.form]


def test_every_collective_meets_every_dtype_and_reduce_op() -> None:
    seen = {(c.collective, c.dtype, c.reduce_op) for c in PLAIN}
    for collective in set(ALGORITHMS) - {"agree", "new_group", "barrier"}:
        for dtype in DTYPES:
            for op in reductions(dtype) if collective in REDUCING else ("",):
                assert (collective, dtype, op) in seen
    assert {(MESSAGES, dtype, "") for dtype in DTYPES} <= seen


def test_every_algorithm_is_taken_several_times_with_different_dtypes_and_ops() -> None:
    taken = Counter((c.collective, c.algorithm) for c in PLAIN)
    for collective in set(ALGORITHMS) - {"agree", "new_group"}:
        for algorithm in algorithms(collective):
            assert taken[collective, algorithm] >= 4
            met = [c for c in PLAIN if (c.collective, c.algorithm) == (collective, algorithm)]
            if collective != BARRIER:
                assert len({c.dtype for c in met}) >= 8
            if collective in REDUCING:
                assert len({c.reduce_op for c in met}) >= 7


def test_every_algorithm_is_taken_with_more_than_a_segment() -> None:
    large = {(c.collective, c.algorithm) for c in PLAIN if c.count > 70_000}
    pairs = {(c, a) for c in ALGORITHMS for a in algorithms(c) if c not in ("new_group", BARRIER)}
    assert large == {*pairs, (MESSAGES, "")}


def test_every_form_of_call_is_there() -> None:
    forms: dict[str, set[str]] = {}
    for c in cases(4):
        forms.setdefault(c.form, set()).add(c.collective)
    parts = {"all_gather", "gather", "scatter", "reduce_scatter", "all_to_all"}
    assert forms[UNEVEN] == forms[LISTS] == parts
    assert forms[ORDERED] == REDUCING
    assert forms[COALESCED] == {*REDUCING, "all_gather", "broadcast"}
    assert forms[GROUPS] == {*ALGORITHMS, MESSAGES} - {"agree", "new_group", BARRIER}
    assert len(forms[OBJECTS]) == 4


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7])
def test_all_cases_are_calls_that_ringd_takes(n: int) -> None:
    for c in cases(n):
        if c.collective in ALGORITHMS:
            root = -1 if c.collective == BARRIER else c.root
            spec = OpSpec(c.collective, c.dtype, c.reduce_op, (c.count,), root, c.algorithm)
            check_spec(spec, n)


def test_every_rank_comes_last_to_a_barrier() -> None:
    assert {c.root for c in PLAIN if c.collective == BARRIER} == {0, 1, 2, 3}


def test_no_whole_can_be_cut_evenly() -> None:
    reduced = [c for c in cases(4) if c.collective == "all_reduce"]
    assert all(c.count % 4 for c in reduced)


def test_only_reductions_of_sixteen_bit_floats_are_held_against_the_fold() -> None:
    assert Case("all_reduce", "bfloat16", "max", "ring", 8).is_folded
    assert not Case("all_gather", "bfloat16", "", "ring", 8).is_folded
    assert not Case("all_reduce", "float32", "sum", "ring", 8).is_folded


@pytest.mark.parametrize(
    ("collective", "form", "elements"),
    [
        ("all_reduce", "", [8, 8, 8]),
        ("reduce_scatter", "", [24, 24, 24]),
        ("all_gather", "", [8, 8, 8]),
        ("scatter", "", [24, 24, 24]),
        ("all_to_all", "", [24, 24, 24]),
        ("gather", UNEVEN, [0, 8, 16]),
        ("reduce_scatter", LISTS, [24, 24, 24]),
        ("all_to_all", UNEVEN, [24, 24, 24]),
    ],
)
def test_what_a_rank_puts_in(collective: str, form: str, elements: list[int]) -> None:
    case = Case(collective, "int32", "", "", 8, form=form)
    assert [case.input_count(rank, 3) for rank in range(3)] == elements


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7])
def test_uneven_parts_are_uneven_and_make_up_the_whole(n: int) -> None:
    case = Case("all_gather", "int32", "", "", 8, form=UNEVEN)
    whole = list(range(sum(case.parts(n))))
    assert [i for rank in range(n) for i in whole[case.own(rank, n)]] == whole
    assert len({*case.parts(n)}) == n


def test_only_calls_that_give_all_the_same_must_have_equal_bits_on_all() -> None:
    same = {c.collective for c in cases(4) if c.is_same_on_all}
    assert same == {
        "all_reduce", "all_gather", "broadcast", "all_gather_object", "broadcast_object"
    }  # fmt: skip
    assert not Case("all_reduce", "float32", "sum", "auto", 8, form=GROUPS).is_same_on_all
