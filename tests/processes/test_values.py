"""What comes out of each collective, on 1 to 5 ranks that are real processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processes.harness import Daemons, nothing_is_wrong
from tests.processes.programs import determinism, values

Standing = Callable[[int], Daemons]
WORLD_SIZES = (1, 2, 3, 4, 5)
DTYPES = ["float32", "float64", "float16", "bfloat16", "int32", "int64"]
FEW = ["float32", "bfloat16", "int64"]
COUNTS = [0, 7, 1000]
LARGE = 100_003
BEYOND_4_MIB = 1_100_001


def check(results: list[dict[str, Any]]) -> None:
    """Nothing was wrong on any rank, and all have the same bits."""
    nothing_is_wrong(results)
    first = results[0].get("digests", {})
    for rank, result in enumerate(results):
        other = result.get("digests", {})
        assert [case for case in first if first[case] != other[case]] == [], f"rank {rank}"


@pytest.mark.parametrize("n", WORLD_SIZES)
def test_every_call_gives_what_its_definition_says_and_the_same_bits_on_all_ranks(
    standing: Standing, n: int
) -> None:
    results = standing(n).do(values.sweep, dtypes=DTYPES, counts=COUNTS)
    check(results)
    assert results[0]["made"] > 900


@pytest.mark.parametrize("n", WORLD_SIZES)
def test_large_tensors_give_what_their_definition_says(standing: Standing, n: int) -> None:
    few = {"dtypes": ["float32"], "ops": ["sum"]}
    check(standing(n).do(values.sweep, counts=[BEYOND_4_MIB], **few))


@pytest.mark.parametrize("n", WORLD_SIZES)
def test_eight_operations_in_flight_in_the_arena_do_not_mix(standing: Standing, n: int) -> None:
    check(standing(n).do(values.sweep_in_flight, dtypes=FEW, counts=[0, 7, LARGE]))


@pytest.mark.parametrize("n", [2, 3])
def test_the_asyncio_face_gives_the_same(daemons: Callable[..., Daemons], n: int) -> None:
    check(daemons(n).do(values.sweep_asyncio, dtypes=FEW, counts=[0, 7, 50_000]))


@pytest.mark.parametrize("n", WORLD_SIZES)
def test_results_equal_gloos_in_the_same_processes(
    standing: Standing, n: int, tmp_path: Path
) -> None:
    results = standing(n).do(
        values.beside_gloo, store=str(tmp_path / "store"), counts=[1, 7, 1000, LARGE]
    )
    check(results)
    assert results[0]["made"] > 100


@pytest.mark.parametrize("n", [2, 3, 5])
def test_deterministic_gives_the_fold_in_rank_order_whatever_algorithm_and_size(
    standing: Standing, n: int
) -> None:
    results = standing(n).do(determinism.folds)
    nothing_is_wrong(results)
    assert results[0]["made"] > 100


@pytest.mark.parametrize("segment_bytes", ["4K", "64K"])
def test_deterministic_gives_the_same_fold_whatever_the_segments(
    daemons: Callable[..., Daemons], segment_bytes: str
) -> None:
    group = daemons(3, segment_bytes=segment_bytes)
    group.connect()
    nothing_is_wrong(group.do(determinism.folds))
