"""The proof accepts what we build for 1 to 33 ranks, and says what is wrong with the broken."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from ringd.schedules.build import build_group
from ringd.schedules.formula import steps
from ringd.schedules.model import Recv, Round, Schedule, Send
from ringd.schedules.proof import Proof, ScheduleError, prove
from ringd.vocabulary import ALGORITHMS, DETERMINISTIC_ALGORITHMS, REDUCING, ROOTED

WORLD_SIZES = range(1, 34)
PAIRS = [
    *(
        (collective, algorithm)
        for collective, algorithms in ALGORITHMS.items()
        for algorithm in algorithms
        if algorithm != "auto"
    ),
    *((word, algorithm) for word in ("agree", "new_group") for algorithm in ("exchange", "tree")),
]
WIDENED = [
    (collective, algorithm)
    for collective, algorithm in PAIRS
    if collective in REDUCING and algorithm not in ("direct", "exchange")
]
"""Where partial sums travel; elsewhere widening changes nothing (test_build.py)."""

Group = tuple[Schedule, ...]


def edited(group: Group, rank: int, edit: Callable[[Round], Round], *, number: int = 0) -> Group:
    """The group with one round of one rank changed."""
    rounds = list(group[rank].rounds)
    rounds[number] = edit(rounds[number])
    return (*group[:rank], replace(group[rank], rounds=tuple(rounds)), *group[rank + 1 :])


def in_all(group: Group, **changes: object) -> Group:
    return tuple(replace(schedule, **changes) for schedule in group)  # type: ignore[arg-type]


def roots_of(collective: str, n: int) -> set[int]:
    """All of a small group; of a large one the ends, the middle and one that is none of them."""
    if collective not in ROOTED:
        return {-1}
    return set(range(n)) if n <= 8 else {0, n // 3, n // 2, n - 1}


# ---------------------------------------------------------------- what holds


@pytest.mark.parametrize(
    ("collective", "algorithm", "widened"),
    [*((*pair, False) for pair in PAIRS), *((*pair, True) for pair in WIDENED)],
)
def test_every_schedule_is_right_for_1_to_33_ranks(
    collective: str, algorithm: str, widened: bool
) -> None:
    for n in WORLD_SIZES:
        for root in roots_of(collective, n):
            group = build_group(collective, algorithm, world_size=n, root=root, widened=widened)
            proof = prove(group, root=root)
            assert proof.n_rounds == steps(collective, algorithm, n, root=root)
            assert proof.rounds_once or not widened


@pytest.mark.parametrize(
    ("collective", "algorithm"), [pair for pair in PAIRS if pair[0] in REDUCING]
)
def test_deterministic_algorithms_and_only_they_fold_in_rank_order(
    collective: str, algorithm: str
) -> None:
    for n in (4, 5, 7):
        for root in roots_of(collective, n):
            proof = prove(build_group(collective, algorithm, world_size=n, root=root), root=root)
            assert proof.in_rank_order == (algorithm in DETERMINISTIC_ALGORITHMS)


def test_a_fold_that_begins_with_a_fold_continues_it() -> None:
    """Of three ranks, 0 and 1 are a pair, and rank 2 comes after: the left fold, in two steps."""
    proof = prove(build_group("all_reduce", "recursive_doubling", world_size=3))
    assert proof.in_rank_order


def test_without_widening_a_ring_would_round_on_the_way() -> None:
    assert not prove(build_group("all_reduce", "ring", world_size=3)).rounds_once


def test_a_proof_says_what_was_proved() -> None:
    assert prove(build_group("all_reduce", "ring", world_size=4, widened=True)) == Proof(
        collective="all_reduce",
        algorithm="ring",
        world_size=4,
        n_messages=24,
        n_rounds=6,
        in_rank_order=False,
        rounds_once=True,
    )


# ---------------------------------------------------------------- what is refused


def test_a_dropped_send_is_refused() -> None:
    group = build_group("all_reduce", "ring", world_size=4)
    broken = edited(group, 2, lambda round_: replace(round_, sends=()))
    with pytest.raises(ScheduleError, match="rank 2 sends 5 messages to rank 3, which receives 6"):
        prove(broken)


def test_a_swapped_chunk_is_refused() -> None:
    group = build_group("all_reduce", "ring", world_size=4)
    broken = edited(group, 2, lambda round_: replace(round_, sends=(Send(3, 1),)))
    with pytest.raises(ScheduleError, match="sends rank 3 chunk 1 in round 0, which expects chunk"):
        prove(broken)


def test_a_contribution_that_counts_twice_is_refused() -> None:
    group = build_group("reduce_scatter", "direct", world_size=3)
    broken = edited(group, 0, lambda r: replace(r, sends=(*r.sends, Send(1, 1))))
    broken = edited(broken, 1, lambda r: replace(r, recvs=(*r.recvs, Recv(0, 1, "reduce"))))
    with pytest.raises(ScheduleError, match=r"chunk 1 of rank 1 has the .* ranks \[0, 0, 1, 2\]"):
        prove(broken)


def test_a_contribution_that_is_missing_is_refused() -> None:
    group = build_group("reduce_scatter", "direct", world_size=3)
    broken = edited(group, 0, lambda r: replace(r, sends=(Send(2, 2),)))
    broken = edited(broken, 1, lambda r: replace(r, recvs=(Recv(2, 1, "reduce"),)))
    with pytest.raises(ScheduleError, match=r"chunk 1 of rank 1 has the .* ranks \[1, 2\]"):
        prove(broken)


@pytest.mark.parametrize("algorithm", ["exchange", "recursive_doubling"])
def test_what_changes_while_it_is_sent_must_be_guarded(algorithm: str) -> None:
    group = in_all(build_group("all_reduce", algorithm, world_size=4), guarded=False)
    with pytest.raises(ScheduleError, match="may still read it: it must be guarded"):
        prove(group)


def test_ranks_that_differ_in_their_guard_are_refused() -> None:
    first, second = build_group("all_reduce", "exchange", world_size=2)
    with pytest.raises(ScheduleError, match="ranks 0 and 1 differ"):
        prove((first, replace(second, guarded=False)))


def test_causality_frees_a_chunk_without_a_guard() -> None:
    """Direct overwrites chunks that it sent: their owners' answers show that they were taken."""
    assert not any(s.guarded for s in build_group("all_reduce", "direct", world_size=3))
    prove(build_group("all_reduce", "direct", world_size=3))


def test_a_partial_sum_that_travels_narrow_among_wide_ones_is_refused() -> None:
    group = build_group("all_reduce", "ring", world_size=3, widened=True)
    narrow = edited(group, 0, lambda r: replace(r, sends=(Send(1, 2),)), number=1)
    narrow = edited(narrow, 1, lambda r: replace(r, recvs=(Recv(0, 2, "reduce"),)), number=1)
    with pytest.raises(ScheduleError, match="rounds a partial sum: it must be wide"):
        prove(narrow)


def test_a_finished_chunk_does_not_travel_wide() -> None:
    group = build_group("all_reduce", "tree", world_size=2)
    wide = edited(group, 0, lambda r: replace(r, sends=(Send(1, 0, True),)), number=1)
    wide = edited(wide, 1, lambda r: replace(r, recvs=(Recv(0, 0, "copy", True),)), number=1)
    with pytest.raises(ScheduleError, match="is copied, but carries partial sums"):
        prove(wide)


def test_a_chunk_that_nobody_finishes_is_refused() -> None:
    group = in_all(build_group("all_reduce", "ring", world_size=3), owned=())
    with pytest.raises(ScheduleError, match="is copied, but the chunk is not finished"):
        prove(group)


def test_a_chunk_that_is_finished_too_early_is_refused() -> None:
    group = in_all(build_group("all_reduce", "tree", world_size=4), owned=(0,))
    with pytest.raises(ScheduleError, match="but one is finished"):
        prove(group)


def test_a_chunk_is_finished_by_its_last_reduction_only() -> None:
    """Recursive doubling reduces into the chunk twice, and sends it between."""
    group = build_group("all_reduce", "recursive_doubling", world_size=4, widened=True)
    assert prove(group).rounds_once


def test_an_owned_chunk_is_not_overwritten_by_a_copy() -> None:
    group = build_group("reduce", "chain", world_size=3, root=0)
    owned_at_root = (replace(group[0], owned=(0,)), *group[1:])
    with pytest.raises(ScheduleError, match="chunk 0 of rank 0 is owned there, but a copy"):
        prove(owned_at_root, root=0)


def test_a_chunk_that_is_owned_where_nothing_is_reduced_into_it_is_refused() -> None:
    group = build_group("reduce_scatter", "direct", world_size=3)
    group = (replace(group[0], owned=(0, 1)), *group[1:])
    with pytest.raises(ScheduleError, match="rank 0 owns chunk 1 in vain"):
        prove(group)


def test_partial_sums_have_no_place_in_rank_order() -> None:
    group = in_all(build_group("all_reduce", "ring", world_size=3), fold="rank")
    with pytest.raises(ScheduleError, match="folded in rank order, but takes partial sums"):
        prove(group)


def test_ranks_that_fold_in_different_orders_are_refused() -> None:
    group = in_all(build_group("all_reduce", "exchange", world_size=3), fold="round")
    with pytest.raises(ScheduleError, match="rank 1 reduces chunk 0 in another order than others"):
        prove(group)


def test_a_rank_that_never_gets_the_data_is_refused() -> None:
    group = build_group("broadcast", "tree", world_size=2, root=0)
    silent = in_all(group, rounds=(Round(),))
    with pytest.raises(ScheduleError, match="rank 1 ends without chunk 0 finished"):
        prove(silent, root=0)


@pytest.mark.parametrize("algorithm", ["tree", "direct"])
def test_parts_that_do_not_reach_the_root_are_refused(algorithm: str) -> None:
    group = build_group("gather", algorithm, world_size=2, root=0)
    with pytest.raises(ScheduleError, match="rank 0 ends without chunk 1 finished"):
        prove(in_all(group, rounds=()), root=0)
    group = build_group("scatter", algorithm, world_size=2, root=0)
    with pytest.raises(ScheduleError, match="rank 1 ends without chunk 1 finished"):
        prove(in_all(group, rounds=()), root=0)


def test_a_reduce_to_another_root_is_refused() -> None:
    with pytest.raises(ScheduleError, match="rank 1 ends without chunk 0 finished"):
        prove(build_group("reduce", "direct", world_size=3, root=0), root=1)


def test_an_all_to_all_that_forgets_a_pair_is_refused() -> None:
    group = build_group("all_to_all", "direct", world_size=3)
    forgetful = edited(group, 0, lambda r: replace(r, sends=r.sends[:1]))
    forgetful = edited(forgetful, 2, lambda r: replace(r, recvs=r.recvs[:1]))
    with pytest.raises(ScheduleError, match="rank 2 ends without chunk 2 finished"):
        prove(forgetful)


def test_chunks_are_as_many_as_the_collective_says() -> None:
    group = in_all(build_group("all_to_all", "direct", world_size=3), n_chunks=10)
    with pytest.raises(ScheduleError, match="all_to_all has 9 chunks, not 10"):
        prove(group)


@pytest.mark.parametrize("collective", sorted(ROOTED))
def test_a_root_outside_the_group_is_refused(collective: str) -> None:
    group = build_group(collective, "tree", world_size=2, root=0)
    with pytest.raises(ScheduleError, match="root 2 is not in a group of 2"):
        prove(group, root=2)


def test_a_send_of_nothing_is_refused() -> None:
    with pytest.raises(ScheduleError, match="carries nothing"):
        prove(build_group("broadcast", "tree", world_size=2, root=0), root=1)


def test_bytes_that_the_formula_does_not_state_are_refused() -> None:
    group = build_group("broadcast", "tree", world_size=4, root=0)
    with pytest.raises(ScheduleError, match="rank 0 sends other bytes than the formula states"):
        prove(chain(group), root=0)


def chain(group: Group) -> Group:
    """A broadcast that goes from rank to rank: right, but not what is documented."""
    last = len(group) - 1
    return tuple(
        replace(
            schedule,
            rounds=(
                Round(recvs=(Recv(rank - 1, 0, "copy"),) if rank else ()),
                Round(sends=(Send(rank + 1, 0),) if rank < last else ()),
            ),
        )
        for rank, schedule in enumerate(group)
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rank": 0}, "schedule 1 of 2 is for rank 0 of 2"),
        ({"world_size": 3}, "schedule 1 of 2 is for rank 1 of 3"),
        ({"algorithm": "tree"}, "ranks 0 and 1 differ"),
        ({"owned": (2,)}, r"rank 1 owns \(2,\) of 2 chunks"),
    ],
)
def test_schedules_that_are_no_group_are_refused(change: dict[str, object], text: str) -> None:
    first, second = build_group("all_reduce", "ring", world_size=2)
    with pytest.raises(ScheduleError, match=text):
        prove((first, replace(second, **change)))  # type: ignore[arg-type]


def test_an_empty_group_is_refused() -> None:
    with pytest.raises(ScheduleError, match="at least one rank"):
        prove(())


def test_what_has_no_formula_can_not_be_proved() -> None:
    group = in_all(build_group("all_reduce", "exchange", world_size=2), algorithm="gossip")
    with pytest.raises(ScheduleError, match="no formula for all_reduce by 'gossip'"):
        prove(group)
