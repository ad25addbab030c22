"""Cases from bug reports about numbers, shapes and autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.processes.harness import Daemons
from tests.processes.programs import numerics

Standing = Callable[[int], Daemons]


def everywhere(results: list[dict[str, Any]], value: Any) -> None:
    """Every rank found this value in every case."""
    for rank, found in enumerate(results):
        assert {case: got for case, got in found.items() if got != value} == {}, f"rank {rank}"


def test_n1_bfloat16_is_summed_in_float32_and_rounded_once(standing: Standing) -> None:
    results = standing(3).do(
        numerics.permuted_sums, dtype="bfloat16", values=[256.0, 1.0, 1.0], count=3073
    )
    everywhere(results, [258.0])


def test_n3_a_float16_sum_may_pass_the_range_on_its_way(standing: Standing) -> None:
    results = standing(3).do(
        numerics.permuted_sums, dtype="float16", values=[40000.0, 40000.0, -40000.0], count=77
    )
    everywhere(results, [40000.0])


def test_n3_a_float16_average_may_pass_the_range_on_its_way(standing: Standing) -> None:
    everywhere(
        standing(2).do(numerics.average, dtype="float16", value=60000.0, count=77), [60000.0]
    )


LONG = (pytest.mark.slow, pytest.mark.timeout(600))


@pytest.mark.parametrize(
    ("n", "counts", "repeats"),
    [
        (2, [1, 7, 1000], 50),
        (3, [1, 7, 1000], 50),
        (4, [1, 7, 1000], 50),
        (5, [1, 7, 1000], 50),
        (3, [1_000_000], 3),
        *(pytest.param(n, [1_000_000], 50, marks=LONG) for n in (2, 3, 5)),
    ],
)
def test_n10_cancelling_sums_have_the_same_bits_on_all_ranks_each_time(
    standing: Standing, n: int, counts: list[int], repeats: int
) -> None:
    within_s = 60.0 + 6e-6 * sum(counts) * repeats  # 300 s more where it is slow's
    results = standing(n).do(numerics.cancelling, within_s=within_s, counts=counts, repeats=repeats)
    assert all(len(seen) == 1 for seen in results[0].values()), results[0]
    assert all(result == results[0] for result in results)


def test_n10_the_left_fold_of_1e8_1_minus_1e8_1_is_one(standing: Standing) -> None:
    assert standing(4).do(numerics.left_fold_of_cancelling) == [1.0] * 4


def test_n12_float64_is_not_narrowed(standing: Standing) -> None:
    for found in standing(2).do(numerics.sixteen_million_and_one):
        assert found == [["float64", 16777217.0]] * len(found)


def test_s1_nothing_goes_through_every_collective_and_the_next_calls_work(
    standing: Standing,
) -> None:
    results = standing(4).do(numerics.nothing_by_every_collective)
    for found in results:
        assert found["shapes"] == [[[1, 0, 2], "torch.float32"]] * len(found["shapes"])
        assert found["gathered"] == [4, 1, 0, 2]
        assert found["sum"] == [6.0] * 3
    assert {found["next_seq"] for found in results} == {len(results[0]["shapes"]) + 3}


def test_s3_strided_tensors_move_in_logical_order_and_gaps_stay_untouched(
    standing: Standing,
) -> None:
    results = standing(2).do(numerics.strided)
    base = np.arange(20.0).reshape(2, 10)
    steps = np.linspace(0, 5, 6)
    for rank, found in enumerate(results):
        square = np.arange(4.0).reshape(2, 2) + 10 * rank
        square[:, 0] = [0, 2]
        assert found["square"] == square.tolist()
        wide = base * (rank + 1)
        wide[:, ::2] = base[:, ::2] * 3
        assert found["wide"] == wide.tolist()
        gathered = np.full((2, 3, 2), -1.0)
        gathered[:, :, 1] = [steps[::2], steps[::2] + 1]
        assert found["gathered"] == gathered.tolist()
        flat = (np.arange(12.0).reshape(3, 4) * 2 + 1).T.reshape(-1)
        part = np.full((6, 2), -1.0)
        part[:, 0] = flat[rank * 6 : rank * 6 + 6]
        assert found["part"] == part.tolist()


def test_s7_leaf_parameters_are_written_and_autograd_sees_nothing(standing: Standing) -> None:
    for found in standing(3).do(numerics.parameters):
        assert found.pop("gathered") == [[[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]] * 2
        for case, (summed, cast) in found.items():
            assert summed == [[3.0] * 3, True, True, True], case
            assert cast == [[1.0] * 3, True, True, True], case


def test_min_and_max_propagate_nan_and_moves_keep_every_bit(standing: Standing) -> None:
    for found in standing(3).do(numerics.not_a_number):
        found.pop("digest")
        assert all(found.values()), found
