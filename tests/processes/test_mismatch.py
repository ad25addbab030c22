"""Ranks that call different things, and calls that are refused on one rank."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.processes.harness import WIDER, Daemons
from tests.processes.programs import calls

Standing = Callable[[int], Daemons]
Result = dict[str, Any]


def the_next_call_works(results: list[Result]) -> None:
    n = len(results)
    total = float(sum(range(1, n + 1)))
    for rank, result in enumerate(results):
        assert result["next"]["error"] is None, f"rank {rank}: {result['next']}"
        assert result["next"]["value"] == [total] * 3, f"rank {rank}"
    assert len({result["seq"] for result in results}) == 1


def all_mismatch(results: list[Result]) -> None:
    for rank, result in enumerate(results):
        first = result["first"]
        assert first["error"] == "CollectiveMismatchError", f"rank {rank}: {first}"
        assert first["retry"] == "same_epoch"
        assert first["took_s"] < 1.0 * WIDER
        assert first["untouched"], f"rank {rank}"


def all_hear_of_it(group: Daemons, results: list[Result]) -> None:
    """After a rooted call a rank may learn of a mismatch late; then a later call raises it."""
    for result in results:
        errors = [result[call]["error"] for call in ("first", "next", "last")]
        assert "CollectiveMismatchError" in errors, results
        assert set(errors) <= {"CollectiveMismatchError", None}
    assert len({result["seq"] for result in results}) == 1
    plain = [{"shape": [3]}]
    for told in group.do(calls.sequence, calls=plain):
        assert told[0]["error"] is None, told


@pytest.mark.parametrize(
    ("one", "others"), [([10], [12]), ([409600], [409598]), ([3, 4], [4, 3]), ([1, 12], [12])]
)
@pytest.mark.parametrize("odd", [0, 1, 2])
def test_m1_different_shapes_raise_on_all_ranks_and_say_both(
    standing: Standing, one: list[int], others: list[int], odd: int
) -> None:
    by_rank = [{"shape": one if rank == odd else others} for rank in range(3)]
    results = standing(3).do(calls.each_its_own, calls=by_rank)
    all_mismatch(results)
    for result in results:
        text = result["first"]["text"]
        for shape in (one, others):
            assert f"dtype=float32 shape={tuple(shape)}" in text
        assert re.search(r"operation \d+ of the world differs", text)
        assert f"rank {odd} called all_reduce op=sum" in text
        assert odd in result["first"]["fields"]["ranks"]
        assert result["first"]["fields"]["op"] == "all_reduce"
    the_next_call_works(results)


ALL_DEPEND_ON_ALL = [
    ({"shape": [25]}, {"collective": "broadcast", "shape": [1], "dtype": "int64"}),
    ({"shape": [5]}, {"shape": [5], "op": "max"}),
    ({"collective": "all_gather"}, {"collective": "barrier"}),
    ({"dtype": "float32"}, {"dtype": "int32"}),
    ({"algorithm": "ring"}, {"algorithm": "direct"}),
    ({}, {"deterministic": True}),
    ({"shape": [300_000]}, {"shape": [300_000], "algorithm": "tree"}),
    ({"collective": "reduce_scatter", "shape": [7]}, {"shape": [21]}),
    (
        {"collective": "reduce_scatter"},
        {"collective": "reduce_scatter", "op": "bor", "dtype": "int8"},
    ),
    ({"collective": "all_to_all"}, {"collective": "all_gather"}),
    ({"collective": "all_to_all", "shape": [5]}, {"collective": "all_to_all", "shape": [6]}),
    ({"collective": "all_gather"}, {"collective": "all_gather", "counts": [1, 2]}),
    (
        {"collective": "all_gather", "counts": [3, 1]},
        {"collective": "all_gather", "counts": [3, 2]},
    ),
    (
        {"collective": "reduce_scatter", "counts": [2, 2, 0]},
        {"collective": "reduce_scatter", "counts": [2, 0, 2]},
    ),
]
ROOTED = [
    ({"collective": "all_gather"}, {"collective": "gather", "root": 1}),
    ({"collective": "broadcast", "root": 0}, {"collective": "broadcast", "root": 1}),
    ({"collective": "reduce", "root": 0}, {"collective": "reduce", "root": 1}),
    ({"collective": "reduce", "root": 0}, {"collective": "reduce", "root": 0, "op": "prod"}),
    ({"collective": "gather", "root": 1}, {"collective": "scatter", "root": 1}),
    ({"collective": "scatter", "root": 0}, {"collective": "scatter", "root": 0, "dtype": "int64"}),
    (
        {"collective": "gather", "root": 0, "counts": [1, 2, 3]},
        {"collective": "gather", "root": 0, "counts": [2, 2, 3]},
    ),
]


def as_words(call: calls.Call) -> list[str]:
    """What an error must say of a call."""
    collective = call.get("collective", "all_reduce")
    reducing = collective in ("all_reduce", "reduce", "reduce_scatter")
    return [
        collective,
        *([f"op={call.get('op', 'sum')}"] if reducing else []),
        *([f"root={call['root']}"] if "root" in call else []),
        *([f"dtype={call.get('dtype', 'float32')}"] if collective != "barrier" else []),
    ]


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize(("usual", "odd"), ALL_DEPEND_ON_ALL)
def test_different_calls_raise_on_every_rank_and_say_both(
    standing: Standing, usual: calls.Call, odd: calls.Call, n: int
) -> None:
    usual, odd = fitted(usual, n), fitted(odd, n)
    results = standing(n).do(calls.each_its_own, calls=[usual] * (n - 1) + [odd])
    all_mismatch(results)
    for result in results:
        for word in (*as_words(usual), *as_words(odd)):
            assert word in result["first"]["text"]
        assert n - 1 in result["first"]["fields"]["ranks"]
    the_next_call_works(results)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize(("usual", "odd"), ROOTED)
def test_different_rooted_calls_raise_on_every_rank_then_or_at_the_next_call(
    standing: Standing, usual: calls.Call, odd: calls.Call, n: int
) -> None:
    group = standing(n)
    usual, odd = fitted(usual, n), fitted(odd, n)
    results = group.do(calls.each_its_own, calls=[usual] * (n - 1) + [odd])
    for result in results:
        told = [result[call] for call in ("first", "next", "last")]
        (failed,) = [call for call in told if call["error"] is not None][:1]
        assert failed["took_s"] < 1.0 * WIDER
        for word in (*as_words(usual), *as_words(odd)):
            assert word in failed["text"]
    all_hear_of_it(group, results)


def fitted(call: calls.Call, n: int) -> calls.Call:
    """The call with as many counts as there are ranks."""
    if "counts" not in call:
        return call
    return call | {"counts": (call["counts"] * n)[:n]}


REFUSED: dict[str, tuple[calls.Call, str]] = {
    "a dtype ringd has not": ({"dtype": "uint16"}, "TypeError"),
    "a complex maximum": ({"dtype": "complex64", "op": "max"}, "TypeError"),
    "an unknown reduction": ({"op": "median"}, "ValueError"),
    "an average of whole numbers": ({"op": "avg", "dtype": "int32"}, "TypeError"),
    "premul_sum without a factor": ({"op": "premul_sum"}, "ValueError"),
    "no tensor": ({"tensor": "list"}, "TypeError"),
    "nothing": ({"tensor": "none"}, "TypeError"),
    "a read-only output": ({"tensor": "read-only"}, "ValueError"),
    "an output that overlaps itself": ({"tensor": "overlapping"}, "ValueError"),
    "a root that is no rank": ({"collective": "broadcast", "root": 7}, "ValueError"),
    "a root of reduce that is no rank": ({"collective": "reduce", "root": -1}, "ValueError"),
    "too few counts": ({"collective": "all_gather", "counts": [5, 5]}, "ValueError"),
    "an unknown algorithm": ({"algorithm": "rign"}, "ValueError"),
    "deterministic by a ring": ({"algorithm": "ring", "deterministic": True}, "ValueError"),
    "a timeout below zero": ({"timeout_s": -1.0}, "ValueError"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_call_refused_on_one_rank_raises_on_its_peers_instead_of_leaving_them_waiting(
    standing: Standing, what: str
) -> None:
    bad, kind = REFUSED[what]
    usual = {"collective": bad.get("collective", "all_reduce")}
    group = standing(3)
    results = group.do(calls.each_its_own, calls=[usual, bad, usual])
    refused = results[1]["first"]
    assert kind in refused["is"], refused
    assert "RingdError" in refused["is"]
    assert refused["retry"] == "same_epoch"
    if usual["collective"] in ("broadcast", "reduce"):
        all_hear_of_it(group, [results[0], results[2]])
        return
    the_next_call_works(results)
    for rank in (0, 2):
        first = results[rank]["first"]
        assert first["error"] == "CollectiveMismatchError", first
        assert first["fields"]["ranks"] == [1]
        assert "rank 1" in first["text"]
        assert first["took_s"] < 1.0 * WIDER
        assert first["untouched"]


def test_calls_in_another_order_raise_on_all_ranks_and_then_fall_in_step(
    standing: Standing,
) -> None:
    barrier, total = {"collective": "barrier"}, {"shape": [3]}
    group = standing(3)
    for rank in range(3):
        order = [barrier, total] if rank == 2 else [total, barrier]
        group.trainer(rank).start(calls.sequence, calls=[*order, total])
    for told in group.results():
        errors = [call["error"] for call in told]
        assert errors == ["CollectiveMismatchError"] * 2 + [None]
        assert told[2]["value"] == [6.0] * 3


def test_m4_a_call_too_few_that_meets_a_barrier_names_both(standing: Standing) -> None:
    group = standing(2)
    sums: list[calls.Call] = [{"shape": [3]}] * 5
    group.trainer(0).start(calls.sequence, calls=sums)
    group.trainer(1).start(calls.sequence, calls=[*sums[:4], {"collective": "barrier"}])
    for told in group.results():
        assert [call["error"] for call in told[:4]] == [None] * 4
        assert told[4]["error"] == "CollectiveMismatchError", told[4]
        for word in ("all_reduce", "barrier", "operation 4", "rank 0", "rank 1"):
            assert word in told[4]["text"]
        assert told[4]["fields"]["seq"] == 4
        assert told[4]["took_s"] < 1.0 * WIDER
    assert [told[0]["value"] for told in group.do(calls.sequence, calls=sums[:1])] == [
        [3.0] * 3
    ] * 2


def test_m5_after_a_mismatch_a_barrier_and_a_sum_are_ordinary_calls(standing: Standing) -> None:
    group = standing(3)
    for rank in range(3):
        bad: calls.Call = {"shape": [10 if rank == 1 else 12]}
        order = [bad, {"collective": "barrier"}, {"shape": [2], "op": "max"}]
        group.trainer(rank).start(calls.sequence, calls=order)
    for told in group.results():
        assert [call["error"] for call in told] == ["CollectiveMismatchError", None, None]
        assert told[2]["value"] == [3.0, 3.0]
