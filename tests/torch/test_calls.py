"""What scripts do with torch.distributed: the same results as under gloo."""

from __future__ import annotations

import pytest

from tests.torch.conftest import Both
from tests.torch.programs import calls
from tests.torch.ranks import Program, same


@pytest.mark.parametrize(
    ("program", "n"),
    [
        (calls.asynchronous, 3),
        (calls.groups, 4),
        (calls.roots_of_groups, 4),
        (calls.objects, 3),
        (calls.coalesced, 3),
        (calls.functional, 2),
        (calls.overloads, 3),
        (calls.parameters, 2),
        (calls.empties, 4),
    ],
)
def test_results_equal_gloos(both: Both, program: Program, n: int) -> None:
    got = both(program, n)
    for rank in range(n):
        assert same(got["gloo"][rank], got["ringd"][rank]), (got["gloo"][rank], got["ringd"][rank])


def test_s4_memory_formats_travel_in_logical_order(both: Both) -> None:
    import torch

    for rank, (seen, grid, column, whole) in enumerate(both(calls.layouts, 2, ("ringd",))["ringd"]):
        plain = torch.arange(16.0).view(2, 2, 2, 2)
        for call, tensor, outs in seen:
            if call == "all_gather":
                assert same(outs, [plain, plain + 100])
            else:
                assert same(tensor, plain * 2 + 100 if call == "all_reduce" else plain + 100)
        assert same(grid, torch.arange(10.0).view(2, 5) * 2 + 1)
        assert same(column[:, 0], torch.tensor([0.0, 2.0]))
        assert same(column[:, 1], torch.tensor([1.0, 3.0]) + rank)
        sent = [(torch.arange(8.0) + r).view(4, 2)[:, 1] for r in range(2)]
        assert same(whole[:, 0], torch.cat([s[2 * rank : 2 * rank + 2] for s in sent]))
        assert same(whole[:, 1], torch.zeros(4))


def test_premul_sum(both: Both) -> None:
    for rank, (tensor, part) in enumerate(both(calls.premultiplied, 3, ("ringd",))["ringd"]):
        assert tensor.tolist() == [3.0] * 3  # (1 + 2 + 3) / 2
        assert part.tolist() == [6.0 * rank]


def test_n1_bfloat16_is_summed_in_float32(both: Both) -> None:
    assert both(calls.half, 3, ("ringd",))["ringd"] == [[True] * 3] * 3


def test_n7_complex_numbers(both: Both) -> None:
    for rank, seen in enumerate(both(calls.complex_numbers, 2, ("ringd",))["ringd"]):
        told = {(name, call): rest for name, call, *rest in seen}
        for call in ("all_reduce", "reduce", "reduce_scatter"):
            assert told["MAX", call] == ["ValueError"]
            if call == "reduce" and rank:
                continue
            assert told["SUM", call] == [4 + 6j, "torch.complex64"]
            product = [["ValueError"], [-5 + 10j, "torch.complex64"]]
            assert told["PRODUCT", call] in product


def test_sparse_tensors_are_summed(both: Both) -> None:
    got = both(calls.sparse, 3)
    for theirs, ours in zip(got["gloo"], got["ringd"], strict=True):
        assert same(theirs, ours)
