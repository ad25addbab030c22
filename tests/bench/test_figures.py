"""Figures from samples: numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringd.bench.figures import Case, Samples, bus_factor, operations, p99, row

CASE = Case("ringd", "all_reduce", 4, 4_000_000, "float32", "auto", "ordinary", 4)


@pytest.mark.parametrize(
    ("op", "n", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 4, 1.5),
        ("reduce_scatter", 4, 0.75),
        ("all_gather", 2, 0.5),
        ("broadcast", 4, 1.0),
        ("reduce", 4, 1.0),
        ("gather", 4, 0.75),
        ("scatter", 3, 2 / 3),
        ("all_to_all", 5, 0.8),
        ("sendrecv", 4, 1.0),
    ],
)
def test_the_bus_factor_is_that_of_nccl_tests(op: str, n: int, factor: float) -> None:
    assert bus_factor(op, n) == factor


def test_bandwidths_are_bytes_per_second_of_the_median() -> None:
    # 4 MB in 2 ms are 2 GB/s; by the bus it is 1.5 times as much with four ranks.
    found = row(CASE, Samples([1000.0, 2000.0, 9000.0], rounds=3), None)
    assert (found["min_us"], found["median_us"], found["p99_us"]) == (1000.0, 2000.0, None)
    assert (found["algbw"], found["busbw"]) == (2.0, 3.0)
    assert (found["bytes"], found["count"], found["samples"]) == (4_000_000, 1_000_000, 3)
    assert found["ratio_min"] is found["ratio_median"] is None


def test_the_share_of_a_link_is_the_bus_bandwidth_in_bits() -> None:
    case = replace(CASE, rate_bps=32_000_000_000, own_hosts=True)
    found = row(case, Samples([2000.0], rounds=1), None)
    assert found["busbw"] == 3.0
    assert found["of_link"] == 0.75
    assert found["own_hosts"] is True
    assert row(CASE, Samples([2000.0], rounds=1), None)["of_link"] is None


@pytest.mark.parametrize(("size", "median_us", "algbw"), [(1024, 850.0, 0.001205), (4, 1e4, 4e-7)])
def test_a_bandwidth_of_a_small_size_is_not_rounded_to_nothing(
    size: int, median_us: float, algbw: float
) -> None:
    found = row(replace(CASE, size_bytes=size), Samples([median_us], rounds=1), None)
    assert found["algbw"] == algbw
    assert found["busbw"] == pytest.approx(1.5 * algbw, rel=1e-3)


def test_a_barrier_has_no_size_and_no_bandwidth() -> None:
    case = Case("ringd", "barrier", 2, 0, "float32", "auto", "ordinary", 4)
    found = row(case, Samples([100.0], rounds=1), None)
    assert (found["bytes"], found["count"]) == (0, 0)
    assert (found["algbw"], found["busbw"]) == (None, None)
    assert (found["resolved"], found["steps"]) == ("exchange", 1)


def test_only_our_own_steps_are_known() -> None:
    ours = row(CASE, Samples([1.0]), None)
    assert (ours["algorithm"], ours["resolved"], ours["steps"]) == ("auto", "ring", 6)
    theirs = row(replace(CASE, impl="gloo", algorithm="default"), Samples([1.0]), None)
    assert (theirs["resolved"], theirs["steps"], theirs["frames"]) == (None, None, None)


def test_each_rank_has_an_element_at_least() -> None:
    assert replace(CASE, size_bytes=4).count == 4


def answer(times: list[float], *, ok: bool = True, frames: int | None = None) -> dict[str, object]:
    return {"times_us": times, "ok": ok, "frames": frames, "calls": 2 + len(times)}


def test_an_operation_takes_as_long_as_on_its_slowest_rank() -> None:
    samples = Samples()
    samples.add([answer([1.0, 5.0]), answer([2.0, 4.0])])
    samples.add([answer([3.0]), answer([2.0], ok=False)])
    assert samples.times_us == [2.0, 5.0, 3.0]
    assert (samples.rounds, samples.ok) == (2, False)
    assert samples.frames_per_operation is None


def test_frames_are_those_of_the_busiest_rank_in_all_calls_also_those_of_the_warm_up() -> None:
    samples = Samples()
    samples.add([answer([1.0, 1.0], frames=8), answer([1.0, 1.0], frames=4)])
    samples.add([answer([1.0, 1.0], frames=1), answer([1.0, 1.0], frames=6)])
    assert samples.frames_per_operation == (8 + 6) / (4 + 4)


def test_a_ratio_above_one_says_that_we_are_quicker() -> None:
    peer = Samples([3000.0, 4000.0, 5000.0])
    found = row(CASE, Samples([1000.0, 2000.0, 9000.0]), peer)
    assert (found["ratio_min"], found["ratio_median"]) == (3.0, 2.0)


def test_there_is_no_p99_of_fewer_than_a_hundred_samples() -> None:
    assert p99([1.0] * 99) is None
    assert p99([1.0] * 98 + [7.0, 8.0]) == 8.0


def test_small_sizes_get_enough_operations_for_a_p99_and_large_ones_an_end() -> None:
    assert 5 * operations(1024, quick=False) >= 100
    assert 3 <= operations(1 << 26, quick=False) <= 10
