"""Figures from samples: numbers worked out by hand."""

from __future__ import annotations

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
