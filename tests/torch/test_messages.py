"""Point to point under torch."""

from __future__ import annotations

import pytest

from tests.torch.conftest import Both
from tests.torch.programs import messages
from tests.torch.ranks import Program, same


@pytest.mark.parametrize(
    ("program", "n"),
    [(messages.from_anybody, 4), (messages.batches, 3)],
)
def test_messages_arrive_as_under_gloo(both: Both, program: Program, n: int) -> None:
    got = both(program, n)
    assert same(got["gloo"], got["ringd"])


def test_p1_messages_are_matched_by_tag_and_in_order(both: Both) -> None:
    _, (one, two, backwards, in_order) = both(messages.by_tag, 2, ("ringd",))["ringd"]
    assert one.tolist() == [1.0] * 3
    assert two.tolist() == [0.0] * 3
    assert backwards
    assert [t[0].item() for t in in_order] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("n", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_p3_large_sends_at_each_other_arrive_and_polling_is_enough(both: Both, n: int) -> None:
    assert both(messages.large_at_each_other, n, ("ringd",))["ringd"] == [True] * n


def test_p3_a_message_to_oneself_is_refused_at_once(both: Both) -> None:
    assert both(messages.to_oneself, 2, ("ringd",))["ringd"] == ["ValueError"] * 2
