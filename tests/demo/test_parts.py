"""Each part's verdict on what its ranks say."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ringd.demo import fault, timing, traffic, training, verify
from ringd.demo.cases import Case, cases
from ringd.demo.traffic import Call
from ringd.vocabulary import ALGORITHMS

Row = dict[str, Any]

ALL_REDUCE = Case("all_reduce", "float32", "sum", "ring", 8)


def result(**changes: Any) -> Row:
    right = {
        "reference": "gloo",
        "max_error": 1e-7,
        "tolerance": 3e-7,
        "digest": "a",
        "repeat_equal": True,
    }
    return right | changes


class TestVerify:
    def test_a_case_holds_when_all_ranks_agree_and_are_near_enough(self) -> None:
        row = verify.judge(ALL_REDUCE, [result(), result(max_error=2e-7)])
        assert (row["ok"], row["max_error"], row["bit_equal"]) == (True, 2e-7, True)
        assert (row["world_size"], row["reference"], row["collective"]) == (2, "gloo", "all_reduce")

    @pytest.mark.parametrize(
        "wrong",
        [
            {"max_error": 4e-7},
            {"max_error": None},
            {"digest": "b"},
            {"repeat_equal": False},
        ],
    )
    def test_one_rank_is_enough_to_fail_it(self, wrong: Row) -> None:
        assert not verify.judge(ALL_REDUCE, [result(), result(**wrong)])["ok"]

    def test_an_error_on_a_rank_fails_it_and_is_quoted(self) -> None:
        row = verify.judge(ALL_REDUCE, [result(), {"failure": "PeerLostError: gone"}])
        assert not row["ok"]
        assert row["failure"] == "rank 1: PeerLostError: gone"

    def test_parts_need_not_be_equal_on_all_ranks(self) -> None:
        case = Case("reduce_scatter", "float32", "sum", "ring", 8)
        row = verify.judge(case, [result(), result(digest="b")])
        assert (row["ok"], row["bit_equal"]) == (True, None)

    def test_cases_of_one_form_are_one_order(self) -> None:
        found = verify.batches(4)
        assert sum(map(len, found.values())) == len(cases(4))
        for name, batch in found.items():
            assert {case.form or case.collective for case in batch} == {name}

    def test_nobody_may_leave_a_barrier_before_the_last_has_come(self) -> None:
        case = Case("barrier", "", "", "tree", 0)
        stays = {"entered_ns": 0, "left_ns": 2_000_000_000}
        last = {"entered_ns": 1_000_000_000, "left_ns": 2_000_000_000}
        leaves = {"entered_ns": 0, "left_ns": 500_000_000}
        assert verify.judge(case, [stays, last])["ok"]
        row = verify.judge(case, [leaves, last])
        assert (row["ok"], row["max_error"]) == (False, 0.5)


def line(rank: int, sent: int, received: int, *, error: str | None = None) -> Row:
    other = str(1 - rank)
    return {
        "rank": rank,
        "world_size": 2,
        "algorithm": "ring",
        "dtype": "float32",
        "error": error,
        "sent": {other: {"payload": sent, "overhead": 90}},
        "received": {other: {"payload": received, "overhead": 50}},
    }


class TestTraffic:
    call = Call("all_reduce", "ring", "float32", "2T(N−1)/N", count=12)

    def test_a_ring_of_two_sends_the_tensor_once(self) -> None:
        rows = traffic.judge(self.call, [line(0, 48, 48), line(1, 48, 48)])
        assert [row["ok"] for row in rows] == [True, True]
        assert {row["formula_bytes"] for row in rows} == {48}
        assert {row["overhead_bytes"] for row in rows} == {90}

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (line(0, 52, 48), line(1, 48, 52)),
            (line(0, 44, 48), line(1, 48, 44)),
            (line(0, 48, 44), line(1, 48, 48)),
        ],
    )
    def test_a_byte_too_many_or_too_few_fails(self, first: Row, second: Row) -> None:
        assert not all(row["ok"] for row in traffic.judge(self.call, [first, second]))

    def test_an_operation_that_failed_is_no_measurement(self) -> None:
        rows = traffic.judge(self.call, [line(0, 48, 48), line(1, 48, 48, error="timeout")])
        assert [row["ok"] for row in rows] == [True, False]

    def test_sixteen_bit_sums_are_counted_at_their_width_on_the_wire(self) -> None:
        call = Call("all_reduce", "ring", "float16", "3T(N−1)/N", count=12)
        rows = traffic.judge(call, [line(0, 36, 36), line(1, 36, 36)])
        assert all(row["ok"] for row in rows)

    def test_every_region_can_be_cut_evenly_by_all_world_sizes(self) -> None:
        assert all(call.count % n == 0 for call in traffic.CALLS for n in (2, 3, 4))

    def test_every_collective_is_counted_by_every_algorithm(self) -> None:
        counted = {(call.collective, call.algorithm) for call in traffic.CALLS}
        assert counted == {
            (collective, algorithm)
            for collective, names in ALGORITHMS.items()
            for algorithm in names
            if algorithm != "auto" and collective not in ("barrier", "new_group")
        }

    def test_each_rank_of_an_all_to_all_sends_all_but_its_own_part(self) -> None:
        call = Call("all_to_all", "pairwise", "float32", "T(N−1)/N", count=12)
        rows = traffic.judge(call, [line(0, 24, 24), line(1, 24, 24)])
        assert [row["ok"] for row in rows] == [True, True]
        assert {row["formula_bytes"] for row in rows} == {24}

    def test_only_the_root_of_a_scatter_sends(self) -> None:
        call = Call("scatter", "direct", "float32", "T(N−1)/N", count=12)
        rows = traffic.judge(call, [line(0, 24, 0), line(1, 0, 24)])
        assert [row["ok"] for row in rows] == [True, True]
        assert not all(r["ok"] for r in traffic.judge(call, [line(0, 0, 24), line(1, 24, 0)]))


class TestTiming:
    def test_an_operation_takes_as_long_as_on_its_slowest_rank(self) -> None:
        assert timing.slowest([[1.0, 5.0], [2.0, 4.0]]) == [2.0, 5.0]

    def test_a_row_says_what_auto_takes(self) -> None:
        ran = timing.Samples([1.0, 2.0, 9.0], {"ring"})
        row = timing.row("ring", 1024, 4, ran, timing.Samples([], {"ring"}))
        assert (row["median_us"], row["min_us"], row["samples"]) == (2.0, 1.0, 3)
        assert (row["auto"], row["ok"]) == (True, True)
        assert not timing.row("ring", 1024, 4, ran, timing.Samples([], {"tree"}))["auto"]

    def test_what_ran_must_be_what_was_asked_for(self) -> None:
        auto = timing.Samples([], {"tree"})
        other = timing.Samples([1.0], {"tree"})
        assert not timing.row("ring", 1024, 4, other, auto)["ok"]
        right = timing.Samples([1.0], {"ring"})
        assert timing.row("ring", 1024, 4, right, auto)["ok"]
        undecided = timing.Samples([], {"tree", "ring"})
        assert not timing.row("ring", 1024, 4, right, undecided)["ok"]

    def test_a_wrong_sum_fails(self) -> None:
        wrong = timing.Samples([1.0], {"ring"}, ok=False)
        assert not timing.row("ring", 1024, 4, wrong, timing.Samples([], {"ring"}))["ok"]


def trained(**changes: Any) -> Row:
    right = {
        "losses": [2.0, 1.0],
        "seconds": 1.0,
        "parameters": 7,
        "digest": "a",
        "accuracy": 0.95,
    }
    return right | changes


class TestTraining:
    def test_it_holds_when_the_losses_are_those_of_gloo(self) -> None:
        near = trained(losses=[2.0, 1.000001])
        row = training.judge([trained(), trained()], [near, near])
        assert (row["ok"], row["bit_equal"]) == (True, True)
        assert row["max_relative_difference"] == pytest.approx(1e-6, rel=0.01)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"losses": [2.0, 1.1]},
            {"losses": [2.0, math.nan]},
            {"digest": "b"},
            {"accuracy": 0.5},
        ],
    )
    def test_a_rank_that_strays_fails_it(self, wrong: Row) -> None:
        assert not training.judge([trained(**wrong), trained()], [trained(), trained()])["ok"]

    def test_runs_of_different_length_are_not_compared(self) -> None:
        with pytest.raises(ValueError, match="zip"):
            training.relative_difference([1.0], [1.0, 2.0])


def survivor(**changes: Any) -> Row:
    right = {
        "raised_ns": 1_020_000_000,
        "error": "PeerLostError",
        "text": "rank 2 is lost",
        "fields": {"rank": 2, "seq": 3, "bytes_done": 1, "bytes_total": 9},
        "untouched": True,
    }
    return right | changes


SEEN = {"seq": 3, "algorithm": "direct", "bytes_done": 1, "bytes_total": 9}


class TestFault:
    def test_it_holds_when_all_survivors_name_the_rank_in_time(self) -> None:
        answers = {0: survivor(), 1: survivor(raised_ns=1_030_000_000), 3: survivor()}
        row = fault.judge(SEEN, 1_000_000_000, answers)
        assert (row["ok"], row["slowest_s"], row["world_size"]) == (True, 0.03, 4)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"error": "CollectiveTimeoutError"},
            {"fields": {"rank": 1, "seq": 3, "bytes_done": 1, "bytes_total": 9}},
            {"text": "somebody is lost"},
            {"raised_ns": 2_100_000_000},
            {"untouched": False},
        ],
    )
    def test_one_survivor_is_enough_to_fail_it(self, wrong: Row) -> None:
        answers = {0: survivor(), 1: survivor(**wrong), 3: survivor()}
        assert not fault.judge(SEEN, 1_000_000_000, answers)["ok"]
