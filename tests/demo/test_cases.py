"""What is verified covers all there is."""

from __future__ import annotations

from itertools import groupby

from ringd.demo.cases import Case, algorithms, cases
from ringd.vocabulary import ALGORITHMS, DTYPES, OpSpec, check_spec


def test_every_collective_meets_every_dtype_and_every_algorithm() -> None:
    seen = {(c.collective, c.dtype, c.algorithm) for c in cases(4)}
    for collective in ALGORITHMS:
        for dtype in [""] if collective == "barrier" else DTYPES:
            for algorithm in algorithms(collective):
                assert (collective, dtype, algorithm) in seen


def test_all_cases_are_calls_that_ringd_takes() -> None:
    for c in cases(4):
        spec = OpSpec(c.collective, c.dtype, c.reduce_op, (c.count,), c.root, c.algorithm)
        check_spec(spec, 4)


def test_cases_of_one_question_stand_together() -> None:
    questions = [question for question, _ in groupby(cases(4), key=lambda c: c.question)]
    assert len(questions) == len(set(questions))


def test_no_whole_can_be_cut_evenly() -> None:
    reduced = [c for c in cases(4) if c.collective == "all_reduce"]
    assert all(c.count % 4 for c in reduced)


def test_only_reductions_of_sixteen_bit_floats_are_held_against_the_fold() -> None:
    assert Case("all_reduce", "bfloat16", "max", "ring", 8).is_folded
    assert not Case("all_gather", "bfloat16", "", "ring", 8).is_folded
    assert not Case("all_reduce", "float32", "sum", "ring", 8).is_folded


def test_a_rank_puts_in_a_part_for_each_rank_of_a_reduce_scatter() -> None:
    assert Case("reduce_scatter", "int32", "sum", "ring", 8).input_count(4) == 32
    assert Case("all_gather", "int32", "", "ring", 8).input_count(4) == 8
