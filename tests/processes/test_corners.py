"""Cases from bug reports about dtypes, ops, zeros, layouts and uneven parts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.processes.harness import WIDER, Daemons
from tests.processes.programs import corners, definition

Standing = Callable[[int], Daemons]


def all_refused(calls: list[dict[str, Any]]) -> None:
    """Each was refused on this rank, as a TypeError and a ValueError, and changed nothing."""
    assert calls
    for call in calls:
        assert call["error"] == "UnsupportedReductionError", call
        assert {"TypeError", "ValueError"} <= set(call["is"])
        assert call["retry"] == "same_epoch"
        assert call["untouched"]


def test_n4_an_average_of_whole_numbers_is_refused_everywhere_and_one_of_floats_is_exact(
    standing: Standing,
) -> None:
    for rank, told in enumerate(standing(2).do(corners.averages)):
        total, at_root, part = told["float32"]
        assert total == part == [2.0] * 5
        assert at_root == ([2.0] * 5 if rank == 0 else [3.0] * 5)
        assert len(told["refused"]) == 9
        all_refused(told["refused"])
        assert told["next"] == [2.0] * 3


def test_n6_bools_are_reduced_as_truths_and_stored_as_0_and_1(standing: Standing) -> None:
    wanted = {"sum": 1, "max": 1, "bor": 1, "prod": 1, "min": 1, "band": 1, "bxor": 1}
    for rank, told in enumerate(standing(3).do(corners.truths)):
        for op, byte in wanted.items():  # three times True: also the exclusive or is True
            for name, found in told[op].items():
                assert found == [byte, byte, 0], f"{op} by {name} on rank {rank}"
        for name, found in told["moved"].items():
            assert found == [1, 1, 0] * (len(found) // 3), name
        assert ("gather" in told["moved"]) == (rank == 0)
        assert told["empty"] == [[[0, 3], "torch.bool"]] * 3
        assert told["loose"] == [1, 0, 1]


def test_n6_pairs_that_are_not_in_the_table_are_refused_on_all_ranks_and_the_group_goes_on(
    standing: Standing,
) -> None:
    results = standing(3).do(corners.unsupported_pairs)
    texts = [
        {pair: [call["text"] for call in calls] for pair, calls in told["refused"].items()}
        for told in results
    ]
    assert texts[0] == texts[1] == texts[2]
    # Without premul_sum, which needs a factor: all others of the eight, less what the table has.
    has = sum(len(set(ops) - {"premul_sum"}) for ops in definition.OPS.values())
    assert len(texts[0]) == 8 * len(definition.DTYPES) - has
    for told in results:
        for calls in told["refused"].values():
            all_refused(calls)
        assert told["sums"] == [[3.0, 3.0]] * len(definition.DTYPES)


def test_n7_complex_numbers_are_summed_and_multiplied_as_such_and_have_no_order(
    standing: Standing,
) -> None:
    own = [[1.0, 2.0], [3.0, 4.0]]
    for rank, told in enumerate(standing(2).do(corners.complex_numbers)):
        for op, value in (("sum", [4.0, 6.0]), ("prod", [-5.0, 10.0])):
            for name, found in told[op].items():
                kept = own[1] if name == "reduce" and rank == 1 else value
                assert found == ["torch.complex64", kept, kept, kept], f"{op} by {name}"
        assert told["conjugates"] == [[1.0, -2.0], [3.0, -4.0]]
        assert len(told["refused"]) == 12
        all_refused(told["refused"])
        assert told["next"] == 2.0


def test_n7_a_complex_layer_trains_on_parts_of_the_data_as_on_all_of_it(
    standing: Standing,
) -> None:
    for told in standing(2).do(corners.complex_layer):
        assert told == {"close": True, "complex": True}


def test_n9_moves_keep_every_bit(standing: Standing) -> None:
    for told in standing(3).do(corners.peculiar_bits):
        for dtype, patterns in corners.PECULIAR.items():
            assert len(told[dtype]) == 5
            for name, found in told[dtype].items():
                assert found == patterns, f"{name} of {dtype}"


def test_n9_a_sum_of_negative_zeros_is_negative_and_all_ranks_agree_on_the_least_zero(
    standing: Standing,
) -> None:
    results = standing(3).do(corners.zeros)
    for rank, told in enumerate(results):
        own_only = {k: v for k, v in told["negative"].items() if not v}
        assert own_only == {}, f"rank {rank}"
        assert told["least"] == results[0]["least"], f"rank {rank}"


@pytest.mark.parametrize("ranks", [[0, 1], [0]])
def test_s4_channels_last_travels_in_logical_order(standing: Standing, ranks: list[int]) -> None:
    for told in standing(2).do(corners.channels_last, ranks=ranks):
        assert all(told.values()), told


def test_s9_uneven_lengths_and_counts_give_exact_values(standing: Standing) -> None:
    total = [0.0, 6.0, 12.0, 18.0, 24.0, 30.0]  # arange(6) times 1 + 2 + 3
    parts = [total[:2], [], total[2:]]
    for rank, told in enumerate(standing(3).do(corners.uneven_lengths)):
        assert told["all_gather"] == [[0.0, 1.0, 2.0, 3.0, 4.0], [], [20.0, 21.0, 22.0]]
        assert told["part"] == parts[rank]


def test_s9_uneven_splits_give_exact_values(standing: Standing) -> None:
    results = standing(2).do(corners.split_rows, inputs=[[1, 1], [0, 0]], outputs=[[1, 0], [1, 0]])
    assert [told["first"]["value"] for told in results] == [[0.0], [1.0]]
    assert [told["next"]["value"] for told in results] == [[2.0, 2.0]] * 2


@pytest.mark.parametrize("n", [2, 3, 5])
def test_s9_splits_that_disagree_raise_on_every_rank_and_name_both_ranks_and_numbers(
    standing: Standing, n: int
) -> None:
    inputs = [[1] * n for _ in range(n)]
    outputs = [[1] * n for _ in range(n)]
    outputs[1][0] = 3  # rank 0 sends it one row
    results = standing(n).do(corners.split_rows, inputs=inputs, outputs=outputs)
    # Who has nothing to do with that pair may have had its rows before it could know: then it
    # raises at the first call that it begins after that, which is void on all ranks.
    heard_late = any(told["first"]["error"] is None for told in results)
    for rank, told in enumerate(results):
        calls = [told["first"], told["next"], told["last"]]
        failed = [call for call in calls if call["error"] is not None]
        assert len(failed) == 1 + (heard_late and told["first"]["error"] is not None), told
        assert rank > 1 or failed[0] is calls[0], f"rank {rank}: {told}"
        for call in failed:
            assert call["error"] == "CollectiveMismatchError", f"rank {rank}: {call}"
            assert call["retry"] == "same_epoch"
            assert call["took_s"] < 1.0 * WIDER
            assert re.search(r"rank 0 sends 1 .*rank 1, .* 3\b", call["text"]), call["text"]
        if failed[0] is calls[0]:
            assert sorted(failed[0]["fields"]["ranks"]) == [0, 1]
            assert set(failed[0]["output"]) == {-1.0}
        for call in calls[1:]:
            assert call in failed or call["value"] == [float(n)] * 2
