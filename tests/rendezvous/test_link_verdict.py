"""Who is named for a broken link."""

from __future__ import annotations

import random

import pytest

from ringd.rendezvous.events import LinkLost
from ringd.rendezvous.link_verdict import judge


@pytest.mark.parametrize(
    ("pairs", "rank", "link", "detail"),
    [
        ([(0, 1)], 1, (0, 1), "rank 0 lost its link to rank 1: r01"),
        ([(1, 0)], 0, (1, 0), "rank 1 lost its link to rank 0: r10"),
        (
            [(1, 2), (2, 1)],
            2,
            (1, 2),
            "the link 1→2 broke, both ends report it: r12; r21",
        ),
        (
            [(1, 2), (2, 1), (3, 2), (2, 3)],
            2,
            (1, 2),
            "ranks 1, 3 lost their links to rank 2: r12",
        ),
        ([(0, 3), (3, 0), (2, 3)], 3, (0, 3), "ranks 0, 2 lost their links to rank 3: r03"),
        ([(2, 0), (1, 3)], 3, (1, 3), "rank 1 lost its link to rank 3: r13"),
        ([(1, 2), (1, 2)], 2, (1, 2), "rank 1 lost its link to rank 2: r12"),
    ],
)
def test_most_accused_is_named_and_a_tie_goes_to_the_lowest_reporter(
    pairs: list[tuple[int, int]], rank: int, link: tuple[int, int], detail: str
) -> None:
    reports = [LinkLost(a, b, f"r{a}{b}", 4) for a, b in pairs]
    for seed in range(6):
        random.Random(seed).shuffle(reports)
        verdict = judge(reports, 4)
        assert (verdict.rank, verdict.link, verdict.detail) == (rank, link, detail)
        assert (verdict.case, verdict.epoch) == ("link lost", 4)


def test_who_says_that_it_is_its_own_fault_is_named_whoever_else_is_accused() -> None:
    reports = [
        LinkLost(1, 2, "no answer", 4),
        LinkLost(3, 2, "no answer", 4),
        LinkLost(0, 2, "rank 0's daemon is out of file descriptors", 4, own=True),
    ]
    for seed in range(6):
        random.Random(seed).shuffle(reports)
        verdict = judge(reports, 4)
        assert (verdict.rank, verdict.link) == (0, (2, 0))
        text = "rank 0 has no link to rank 2: rank 0's daemon is out of file descriptors"
        assert verdict.detail == text
