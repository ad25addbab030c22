"""The words that all texts share."""

from __future__ import annotations

import pytest

from ringd.vocabulary import ranks_text


@pytest.mark.parametrize(
    ("ranks", "text"),
    [((), "no rank"), ((3,), "rank 3"), ((1, 3), "ranks 1 and 3"), ((0, 1, 3), "ranks 0, 1 and 3")],
)
def test_ranks_are_listed_as_a_person_would(ranks: tuple[int, ...], text: str) -> None:
    assert ranks_text(ranks) == text
