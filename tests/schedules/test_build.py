"""The one door: every name of the vocabulary opens it, and nothing else does."""

import pytest

from ringd.schedules.build import build, build_group
from ringd.vocabulary import ALGORITHMS, REDUCING, ROOTED

PAIRS = [
    (collective, algorithm)
    for collective, algorithms in ALGORITHMS.items()
    for algorithm in algorithms
    if algorithm != "auto"
]


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_every_algorithm_of_the_vocabulary_can_be_built(collective: str, algorithm: str) -> None:
    schedule = build(collective, algorithm, rank=1, world_size=3, root=0)
    assert (schedule.collective, schedule.algorithm) == (collective, algorithm)
    assert (schedule.rank, schedule.world_size) == (1, 3)


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_a_rank_alone_has_nothing_to_do(collective: str, algorithm: str) -> None:
    schedule = build(collective, algorithm, rank=0, world_size=1, root=0)
    assert schedule.rounds == ()
    assert schedule.n_chunks == 1
    reduces = collective in (*REDUCING, "barrier")
    assert schedule.owned == ((0,) if reduces else ())


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
def test_only_where_partial_sums_travel_something_is_widened(
    collective: str, algorithm: str
) -> None:
    plain, widened = (
        build(collective, algorithm, rank=1, world_size=4, root=0, widened=widened)
        for widened in (False, True)
    )
    partial_sums = collective in REDUCING and algorithm not in ("direct", "exchange")
    assert (plain != widened) == partial_sums


def test_the_same_question_gets_the_same_object() -> None:
    first = build("all_reduce", "ring", rank=1, world_size=4)
    assert build("all_reduce", "ring", rank=1, world_size=4) is first


def test_a_group_is_its_ranks_in_order() -> None:
    group = build_group("broadcast", "tree", world_size=3, root=2)
    assert [schedule.rank for schedule in group] == [0, 1, 2]


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        ("all_reduce", "auto"),
        ("broadcast", "ring"),
        ("reduce_scatter", "exchange"),
        ("gossip", "tree"),
    ],
)
def test_an_unknown_pair_is_refused(collective: str, algorithm: str) -> None:
    with pytest.raises(ValueError, match="there is no schedule for"):
        build(collective, algorithm, rank=0, world_size=2, root=0)


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_outside_the_group_is_refused(rank: int, world_size: int) -> None:
    with pytest.raises(ValueError, match="is not in a group of"):
        build("all_reduce", "ring", rank=rank, world_size=world_size)


@pytest.mark.parametrize("root", [-1, 2])
@pytest.mark.parametrize("collective", sorted(ROOTED))
def test_a_rooted_collective_needs_a_root_in_the_group(collective: str, root: int) -> None:
    with pytest.raises(ValueError, match=f"root {root} is not in a group of 2"):
        build(collective, "tree", rank=0, world_size=2, root=root)


@pytest.mark.parametrize("algorithm", ["exchange", "tree"])
def test_a_new_group_is_agreed_on_like_an_all_reduce(algorithm: str) -> None:
    agreed = build("new_group", algorithm, rank=2, world_size=5)
    assert agreed.collective == "new_group"
    assert agreed.rounds == build("all_reduce", algorithm, rank=2, world_size=5).rounds
