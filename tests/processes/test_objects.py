"""Python objects between ranks, and small calls that travel together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.processes.harness import WIDER, Daemons
from tests.processes.programs import objects

Standing = Callable[[int], Daemons]


@pytest.mark.parametrize("sizes", [[0, 0, 0], [10, 900, 5000], [300_000, 0, 1]])
def test_objects_arrive_by_every_call_and_from_every_root(
    standing: Standing, sizes: list[int]
) -> None:
    for told in standing(3).do(objects.exchanged, sizes=sizes):
        assert all(told.values()), told


@pytest.mark.parametrize("odd", [0, 2])
@pytest.mark.parametrize("what", ["unpackable", "too large"])
@pytest.mark.parametrize("variant", objects.VARIANTS)
def test_an_object_that_cannot_travel_is_told_to_all_and_the_next_call_works(
    standing: Standing, variant: str, what: str, odd: int
) -> None:
    results = standing(3).do(objects.refused, variant=variant, what=what, odd=odd)
    for rank, told in enumerate(results):
        first = told["first"]
        assert first["retry"] == "same_epoch"
        assert first["took_s"] < 1.0 * WIDER
        if what == "too large":
            assert first["error"] == "ObjectTooLargeError", f"rank {rank}: {first}"
            # Of a scatter it is the object for the last rank that is too large.
            assert first["fields"]["rank"] == (2 if variant == "scatter_object" else odd)
            assert first["fields"]["limit_bytes"] == 2000 < first["fields"]["size_bytes"]
        elif rank == odd:
            assert "TypeError" in first["is"], first
        else:
            assert first["error"] == "CollectiveMismatchError", f"rank {rank}: {first}"
            assert first["fields"]["ranks"] == [odd]
        assert told["next"]["value"] == [0, 1, 2]
        assert told["sum"]["value"] == [3.0, 3.0]
    assert len({told["seq"] for told in results}) == 1


def test_another_root_or_cap_of_an_object_call_raises_on_all_ranks(standing: Standing) -> None:
    for rank, told in enumerate(standing(3).do(objects.other_terms)):
        for call in told[:2]:
            assert call["error"] == "CollectiveMismatchError", f"rank {rank}: {call}"
        assert told[2]["value"] == [0, 1, 2]


def sums_on(group: Daemons, rank: int) -> list[dict[str, Any]]:
    return [line for line in group.accounting(rank) if line["op"] == "all_reduce"]


def test_thirty_small_sums_in_a_block_are_one_operation(daemons: Callable[..., Daemons]) -> None:
    group = daemons(3)
    group.connect()
    assert group.do(objects.coalesced, calls=30) == [{"wrong": []}] * 3
    for rank in range(3):
        (line,) = sums_on(group, rank)
        assert line["count"] == sum(1 + number * 7 % 40 for number in range(30))
        assert line["error"] is None
    group.disconnect()
    assert group.do(objects.coalesced_async, calls=30) == [{"wrong": []}] * 3
    assert [len(sums_on(group, rank)) for rank in range(3)] == [2] * 3


def test_a_block_of_every_sort_of_call_gives_what_the_calls_give_alone(
    standing: Standing,
) -> None:
    for told in standing(4).do(objects.coalesced_sorts):
        assert all(told.values()), told


def test_a_block_that_is_left_by_an_exception_posts_nothing_and_a_refused_call_is_told_to_all(
    standing: Standing,
) -> None:
    for rank, told in enumerate(standing(3).do(objects.left_by_an_exception)):
        assert told["interrupted"]["error"] == "ZeroDivisionError"
        assert told["taken"] == 0
        bad = "UnsupportedReductionError" if rank == 0 else "CollectiveMismatchError"
        assert told["bad"]["error"] == bad, told["bad"]
        assert told["misplaced"]["error"] == "InvalidArgumentError"
        assert told["next"]["value"] == told["last"]["value"] == [3.0, 3.0]
