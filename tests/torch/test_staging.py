"""Tensors of a GPU are copied into the arena and back. Without one, others stand for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torch.conftest import Both
from tests.torch.programs import calls, messages, staged, training
from tests.torch.ranks import same

ONLY_OURS = ("ringd",)


@pytest.mark.parametrize(
    ("program", "n"),
    [
        (calls.asynchronous, 3),
        (calls.coalesced, 3),
        (calls.overloads, 3),
        pytest.param(calls.groups, 4, marks=pytest.mark.slow),
        pytest.param(calls.roots_of_groups, 4, marks=pytest.mark.slow),
        pytest.param(calls.objects, 3, marks=pytest.mark.slow),
        pytest.param(calls.empties, 4, marks=pytest.mark.slow),
        (messages.batches, 3),
        pytest.param(messages.from_anybody, 4, marks=pytest.mark.slow),
        (training.fsdp2, 2),
    ],
)
def test_staged_calls_have_the_results_of_gloo(
    both: Both, tmp_path: Path, program: Callable[..., Any], n: int
) -> None:
    got = both(staged.run, n, calling=program, place_of=str(tmp_path))
    for theirs, ours in zip(got["gloo"], got["ringd"], strict=True):
        assert same(theirs, ours), (theirs, ours)


def test_inputs_are_read_at_the_call_and_results_written_once_on_its_stream(
    both: Both, tmp_path: Path
) -> None:
    told = both(staged.order, 2, ONLY_OURS, place_of=str(tmp_path))["ringd"]
    for rank, (seen, unwritten, waited, by_future, sent, reduced) in enumerate(told):
        assert unwritten == [-1.0] * 3
        assert waited == [1.0, 3.0, 5.0]
        assert by_future == [3.0] * 2
        assert sent == [5.0] * 2
        assert reduced == [[3.0] * 2, [2.0] * 2][rank]
        ours = [("second", [1.0] * 2, [3.0] * 2)]  # of reduce, on the root
        theirs = [("second", [6.0] * 2, [5.0] * 2), ("second", [2.0] * 2, [1.0] * 2)]
        assert seen == [
            ("first", [-1.0] * 3, [1.0, 3.0, 5.0]),
            ("second", [rank + 1.0] * 2, [3.0] * 2),
            *(theirs if rank else ours),
        ]


def test_a_failed_call_writes_nothing_and_the_next_one_works(both: Both, tmp_path: Path) -> None:
    told = both(staged.failing, 3, ONLY_OURS, place_of=str(tmp_path))["ringd"]
    for rank, (tensor, errors, after) in enumerate(told):
        assert tensor.tolist() == [float(rank)] * (12 if rank else 10)
        classes = [error["class"] for error in errors]
        refused = "UnsupportedTypeError" if rank else "CollectiveMismatchError"
        overlaps = "InvalidTensorError" if rank else "CollectiveMismatchError"
        assert classes == ["CollectiveMismatchError", refused, overlaps]
        assert after.tolist() == [3.0] * 2


def test_s7_results_are_written_past_autograd(both: Both, tmp_path: Path) -> None:
    told = both(staged.on_autograd, 2, ONLY_OURS, place_of=str(tmp_path))["ringd"]
    for parameter, state, kept, gathered in told:
        assert parameter == [2.0] * 3
        assert state == (True, True, None, 0)
        assert kept == [2.0] * 2
        assert gathered in ([1.0] * 2, [2.0] * 2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: torch.cuda.is_available()")
def test_tensors_on_a_gpu(both: Both) -> None:
    got = both(staged.on_gpu, 2, ONLY_OURS)["ringd"]
    for rank, (summed, grid, outs, part, half) in enumerate(got):
        assert same(summed, torch.full((1 << 20,), 3.0))
        last = (torch.arange(6.0) + 10).view(2, 3).t()
        assert same(grid, last + 7 if rank else last)
        assert same(outs, [last, last + 1])
        assert same(part, torch.arange(4.0).view(2, 2)[rank] * 2 + 1)
        assert same(half, torch.full((5,), 2, dtype=torch.bfloat16))
