"""Who holds an operation up: tables of answers, and the verdict that follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from ringd.rendezvous.verdicts import QUIET_S, Answer, FlowView, Verdict, judge

SEQ = 4
SIZES = (2, 3, 4, 5, 7)
STACK = ("loader.py:88 in __next__", "train.py:41 in step", "train.py:9 in main", "<string>:1")


def waiting(rank: int, *on: int, entered_s: float = 2.0, **flows: FlowView) -> Answer:
    """A rank in the call; ``flows``: p3=... is its traffic with rank 3."""
    views = {int(name[1:]): view for name, view in flows.items()}
    return Answer(rank, "waiting", entered_s=entered_s, waiting_on=on, flows=views)


def absent(rank: int, trainer: str = "sleeping", **about: Any) -> Answer:
    """A rank that has not made the call."""
    return Answer(rank, "absent", trainer=trainer, next_seq=about.pop("next_seq", SEQ), **about)


def verdict(answers: Iterable[Answer], n: int) -> Verdict:
    return judge({answer.rank: answer for answer in answers}, range(n), SEQ)


def ring(n: int, *, without: Iterable[int] = ()) -> list[Answer]:
    """Everybody waits for the left neighbour, but for those who say nothing."""
    return [waiting(r, (r - 1) % n) for r in range(n) if r not in set(without)]


def everybody(n: int, *, without: Iterable[int] = ()) -> list[Answer]:
    """Everybody waits for everybody else."""
    return [waiting(r, *(p for p in range(n) if p != r)) for r in range(n) if r not in set(without)]


SHAPES = {"ring": ring, "everybody": everybody}

# Ranks


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", SIZES)
def test_the_walk_ends_at_the_rank_that_never_entered(shape: str, n: int) -> None:
    for culprit in range(n):
        found = verdict([*SHAPES[shape](n, without=[culprit]), absent(culprit)], n)
        assert (found.case, found.culprits, found.link) == ("never entered", (culprit,), None)
        assert f"rank {culprit} never entered it" in found.text
        assert found.advice == f"Let rank {culprit} make the same call"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [3, 4, 5, 7])
def test_of_two_that_never_entered_both_are_named(shape: str, n: int) -> None:
    for pair in combinations(range(n), 2):
        found = verdict([*SHAPES[shape](n, without=pair), *map(absent, pair)], n)
        assert found.culprits == pair
        assert f"ranks {pair[0]} and {pair[1]} never entered it" in found.text


@pytest.mark.parametrize("n", SIZES)
def test_a_chain_is_followed_to_its_end_and_nobody_on_the_way_is_blamed(n: int) -> None:
    answers = [waiting(r, r + 1) for r in range(n - 1)]
    assert verdict([*answers, absent(n - 1)], n).culprits == (n - 1,)
    assert verdict(answers, n).culprits == (n - 1,), "its daemon does not answer"


@pytest.mark.parametrize(
    ("trainer", "case", "words"),
    [
        ("running", "never entered", "rank 2 never entered it"),
        ("sleeping", "never entered", "rank 2 never entered it"),
        ("unknown", "never entered", "rank 2 never entered it"),
        ("stopped", "trainer stopped", "the trainer of rank 2 is stopped (SIGSTOP"),
        ("none", "no trainer attached", "rank 2 has no trainer attached"),
        ("gone", "no trainer attached", "rank 2 has no trainer attached"),
    ],
)
def test_what_an_absent_ranks_trainer_does_decides_the_case(
    trainer: str, case: str, words: str
) -> None:
    found = verdict([*ring(3, without=[2]), absent(2, trainer)], 3)
    assert (found.case, found.culprits) == (case, (2,))
    assert found.text.startswith(words)
    assert "rank 2" in found.advice


@pytest.mark.parametrize("n", SIZES)
def test_a_daemon_that_does_not_answer_is_named(n: int) -> None:
    for culprit in range(n):
        found = verdict(ring(n, without=[culprit]), n)
        assert (found.case, found.culprits) == ("daemon does not answer", (culprit,))
        assert f"the daemon of rank {culprit} does not answer" in found.text


def test_one_that_is_absent_and_one_that_is_mute_are_both_named_each_with_its_case() -> None:
    found = verdict([*everybody(5, without=[1, 3]), absent(3)], 5)
    assert found.culprits == (1, 3)
    assert "the daemon of rank 1 does not answer" in found.text
    assert "rank 3 never entered it" in found.text


@pytest.mark.parametrize("idle_s", [0.0, 0.9])
@pytest.mark.parametrize("n", [3, 4, 5])
def test_who_was_kept_in_another_call_is_not_blamed_beside_who_holds_all_up(
    n: int, idle_s: float
) -> None:
    for kept in range(n):
        culprit = (kept + 1) % n
        answers = [*ring(n, without=[kept, culprit]), absent(kept, idle_s=idle_s)]
        assert verdict(answers, n).culprits == (culprit,), "its daemon does not answer"
        found = verdict([*answers, absent(culprit, idle_s=1.5)], n)
        assert (found.case, found.culprits) == ("never entered", (culprit,))


@pytest.mark.parametrize("idle_s", [0.0, 0.9, 1.1, 2.0])
def test_where_nobody_else_is_missing_who_was_in_another_call_is_named(idle_s: float) -> None:
    found = verdict([*ring(3, without=[2]), absent(2, idle_s=idle_s)], 3)
    assert (found.case, found.culprits) == ("never entered", (2,))


def test_each_case_of_several_absent_ranks_is_said() -> None:
    late = [absent(1, "stopped"), absent(2, "none"), absent(4), absent(5)]
    found = verdict([waiting(0, 1, 2, 4, 5), waiting(3, 0), *late], 6)
    assert found.culprits == (1, 2, 4, 5)
    for words in (
        "the trainer of rank 1 is stopped",
        "rank 2 has no trainer attached",
        "ranks 4 and 5 never entered it",
    ):
        assert words in found.text


def test_who_is_no_member_is_no_culprit() -> None:
    answers = {rank: waiting(rank, 4 - rank) for rank in (1, 3)}
    assert judge(answers, (1, 3), SEQ).culprits == ()
    answers = {1: waiting(1, 3, 0), 3: absent(3), 0: absent(0)}
    assert judge(answers, (1, 3), SEQ).culprits == (3,)


def test_a_missing_rank_for_which_nobody_waits_holds_nobody_up() -> None:
    """The root of a broadcast is through; only rank 2's own link is slow."""
    slow = FlowView(owed_bytes=50, received_bytes=50, quiet_s=0.0)
    found = verdict([Answer(0, "done"), waiting(2, 0, p0=slow), absent(1)], 3)
    assert (found.case, found.link) == ("slow link", (0, 2))


# Stacks


def test_the_text_says_what_an_absent_ranks_trainer_does_instead() -> None:
    found = verdict([waiting(0, 1), absent(1, pid=44, stack=STACK, next_seq=SEQ)], 2)
    assert (
        "the trainer of rank 1 (process 44) is in loader.py:88 in __next__ < train.py:41 in step "
        "< train.py:9 in main"
    ) in found.text
    assert "<string>" not in found.text
    assert found.stacks == {1: STACK}


@pytest.mark.parametrize(
    ("next_seq", "words"), [(SEQ - 1, "1 more call to make"), (0, "4 more calls to make")]
)
def test_the_text_says_how_many_calls_an_absent_rank_is_behind(next_seq: int, words: str) -> None:
    found = verdict([waiting(0, 1), absent(1, next_seq=next_seq)], 2)
    assert f"the trainer of rank 1 has {words} before this one" in found.text
    assert found.stacks == {}


def test_where_nothing_is_known_of_a_trainer_nothing_is_said() -> None:
    found = verdict([waiting(0, 1), absent(1, trainer="unknown")], 2)
    assert found.text == "rank 1 never entered it"


@pytest.mark.parametrize("state", ["sleeping", "running"])
def test_a_stack_that_could_not_be_had_is_missed(state: str) -> None:
    found = verdict([waiting(0, 1), absent(1, trainer=state)], 2)
    assert found.text.endswith(f"is {state}, and its Python stack could not be had in time")


# Entered late


@pytest.mark.parametrize("n", SIZES)
def test_who_entered_in_the_second_half_of_the_wait_entered_late(n: int) -> None:
    for culprit in range(n):
        answers = ring(n)
        answers[culprit] = replace(answers[culprit], entered_s=0.5)
        found = verdict(answers, n)
        assert (found.case, found.culprits) == ("entered late", (culprit,))
        assert f"rank {culprit} 1.50 s" in found.text


def test_two_that_entered_late_are_both_named_each_with_its_time() -> None:
    answers = ring(4)
    answers[1] = replace(answers[1], entered_s=0.9)
    answers[2] = replace(answers[2], entered_s=0.25)
    found = verdict(answers, 4)
    assert found.culprits == (1, 2)
    assert "rank 1 1.10 s, rank 2 1.75 s" in found.text


def test_who_entered_in_the_first_half_is_not_late() -> None:
    answers = ring(3)
    answers[1] = replace(answers[1], entered_s=1.0)
    assert verdict(answers, 3).case == "unknown"


# Links


def stuck_ring(n: int, broken: int, *, quiet_s: float) -> list[Answer]:
    """A ring in which nothing passes from ``broken`` to its right neighbour any more.

    The neighbour lacks all; each rank further on got one part more of 100 bytes, and withholds
    the rest from the next one. ``broken`` gave what it had.
    """
    answers = []
    for hops in range(n):
        rank, left, right = (broken + 1 + hops) % n, (broken + hops) % n, (broken + 2 + hops) % n
        received = 100 * hops
        view = FlowView(owed_bytes=100 * n - received, received_bytes=received, quiet_s=quiet_s)
        withheld = 100 * n - 100 * (hops + 1)
        flows = {right: FlowView(withheld_bytes=withheld), left: view}
        if left == right:
            flows[left] = replace(view, withheld_bytes=withheld)
        answers.append(replace(waiting(rank, left), flows=flows))
    return answers


@pytest.mark.parametrize("n", SIZES)
def test_in_a_cycle_the_link_that_carries_nothing_is_down(n: int) -> None:
    for sender in range(n):
        found = verdict(stuck_ring(n, sender, quiet_s=1.5), n)
        receiver = (sender + 1) % n
        assert (found.case, found.link, found.culprits) == (
            ("link down", (sender, receiver), (sender,))
        )
        assert f"the link {sender}→{receiver} does not carry anything: 0 bytes came" in found.text
        assert f"between ranks {sender} and {receiver}" in found.advice


def test_bytes_that_came_lately_make_it_slow_with_its_rate() -> None:
    moving = FlowView(owed_bytes=5_000_000, received_bytes=3_000_000, quiet_s=QUIET_S / 2)
    found = verdict([waiting(0), waiting(1, 0, p0=moving)], 2)
    assert (found.case, found.link, found.culprits) == ("slow link", (0, 1), (0,))
    assert "the link 0→1 is slow: 3000000 bytes in 2.00 s, 1.5 MB/s" in found.text


@pytest.mark.parametrize(
    ("received", "quiet_s", "case"),
    [
        (10, QUIET_S * 0.99, "slow link"),
        (10, QUIET_S, "link down"),
        (0, 0.0, "link down"),  # nothing ever came
    ],
)
def test_a_link_is_down_when_nothing_came_for_long_or_ever(
    received: int, quiet_s: float, case: str
) -> None:
    view = FlowView(owed_bytes=10, received_bytes=received, quiet_s=quiet_s)
    assert verdict([waiting(0, 1), waiting(1, 0, p0=view)], 2).case == case


@pytest.mark.parametrize(
    ("entered_s", "case"),
    [((0.49, 0.3), "unknown"), ((0.9, 0.49), "unknown"), ((0.6, 0.5), "down")],
)
def test_a_link_is_not_down_before_both_sides_have_been_in_it_for_a_while(
    entered_s: tuple[float, float], case: str
) -> None:
    view = FlowView(owed_bytes=10, quiet_s=entered_s[1])
    sides = [waiting(0, 1), waiting(1, 0, p0=view)]
    answers = [replace(side, entered_s=s) for side, s in zip(sides, entered_s, strict=True)]
    found = verdict(answers, 2)
    assert (found.case, found.culprits) == (("link down", (0,)) if case == "down" else (case, ()))


def test_a_link_that_is_down_is_named_before_one_that_is_slow() -> None:
    slow = FlowView(owed_bytes=10, received_bytes=1, quiet_s=0.0)
    down = FlowView(owed_bytes=10, received_bytes=90, quiet_s=1.0)
    found = verdict([Answer(0, "done"), waiting(1, 0, p0=slow), waiting(2, 0, p0=down)], 3)
    assert (found.case, found.link) == ("link down", (0, 2))


@pytest.mark.parametrize("n", SIZES)
def test_a_root_that_is_through_is_not_to_blame_but_the_link_from_it(n: int) -> None:
    for root in range(n):
        for leaf in (r for r in range(n) if r != root):
            view = FlowView(owed_bytes=100, quiet_s=1.0)
            done = [Answer(r, "done") for r in range(n) if r != leaf]
            found = verdict([*done, replace(waiting(leaf, root), flows={root: view})], n)
            assert (found.case, found.link) == ("link down", (root, leaf))


def test_a_link_whose_sender_waits_itself_for_what_it_is_to_send_is_not_to_blame() -> None:
    """Rank 0 → 1 → 2: what 2 is owed by 1 has not come to 1."""
    answers = [
        waiting(0, p1=FlowView(withheld_bytes=0)),
        waiting(1, 0, p0=FlowView(owed_bytes=100, quiet_s=1.0), p2=FlowView(withheld_bytes=100)),
        waiting(2, 1, p1=FlowView(owed_bytes=100, quiet_s=1.0)),
    ]
    assert verdict(answers, 3).link == (0, 1)


def test_what_the_sender_gave_and_the_receiver_lacks_is_on_the_link() -> None:
    """Both links lack bytes, but only 1 → 2 was given some that did not come."""
    answers = [
        waiting(0, p1=FlowView(withheld_bytes=60)),
        waiting(1, 0, p0=FlowView(owed_bytes=60, quiet_s=1.0), p2=FlowView(withheld_bytes=20)),
        waiting(2, 1, p1=FlowView(owed_bytes=40, received_bytes=60, quiet_s=1.0)),
    ]
    assert verdict(answers, 3).link == (1, 2)


def test_where_nothing_is_missing_on_any_link_the_cause_is_unknown() -> None:
    found = verdict([waiting(0, 1), waiting(1, 0), Answer(2, "done")], 3)
    assert (found.case, found.culprits, found.link) == ("unknown", (), None)
    assert "what ranks 0 and 1 waited for may have come just after the end" in found.text


@pytest.mark.parametrize("state", ["failed", "absent"])
def test_no_link_from_a_rank_that_is_not_in_the_call_is_blamed(state: Any) -> None:
    view = FlowView(owed_bytes=10, quiet_s=1.0)
    found = judge({0: Answer(0, state), 1: waiting(1, p0=view)}, (0, 1), SEQ)
    assert found.case == "unknown"


@pytest.mark.parametrize("answers", [{}, {0: Answer(0, "done")}, {0: Answer(0, "failed")}])
def test_where_nobody_waits_nobody_is_blamed(answers: dict[int, Answer]) -> None:
    assert judge(answers, (0, 1), SEQ).culprits == ()


# Links that could not be made


def dialling(answer: Answer, **in_vain: str) -> Answer:
    """The same, who dials p1=... in vain."""
    return replace(answer, unreached={int(name[1:]): text for name, text in in_vain.items()})


NOTHING = FlowView(owed_bytes=100, quiet_s=2.0)
TRIED = "at 10.0.0.2:7100: no answer (2.9 s so far)"


def test_who_dials_in_vain_says_whom_it_can_not_reach_and_where() -> None:
    answers = [dialling(waiting(0, 1, p1=NOTHING), p1=TRIED), waiting(1, 0, p0=NOTHING)]
    found = verdict(answers, 2)
    assert (found.case, found.culprits, found.link) == ("link down", (1,), (1, 0))
    assert found.text == f"rank 0 can't reach rank 1 {TRIED}"
    assert "the address that rank 1 advertises (RINGD_ADVERTISE)" in found.advice


def test_of_several_that_can_not_be_reached_the_one_with_most_in_vain_is_named() -> None:
    flows = {f"p{peer}": NOTHING for peer in range(4)}
    answers = [waiting(rank, **flows) for rank in range(4)]
    answers[0] = dialling(answers[0], p1="at a: no", p3="at b: no")
    answers[2] = dialling(answers[2], p3="at b: no")
    found = verdict(answers, 4)
    assert (found.culprits, found.link) == ((3,), (3, 0))
    assert found.text == "rank 0 can't reach rank 3 at b: no, nor can rank 2"


def test_who_reaches_none_of_several_is_named_and_not_one_of_them() -> None:
    flows = {f"p{peer}": NOTHING for peer in range(4)}
    answers = [waiting(rank, **flows) for rank in range(4)]
    answers[1] = dialling(answers[1], p2="at c: no", p3="at d: no")
    found = verdict(answers, 4)
    assert (found.culprits, found.link) == ((1,), (1, 2))
    assert found.text == "rank 1 can't reach rank 2 at c: no; nor can it reach rank 3"
    answers[0] = dialling(answers[0], p1="at b: no")
    assert verdict(answers, 4).text == "rank 0 can't reach rank 1 at b: no"


def test_a_link_that_is_not_needed_or_carries_something_is_not_named_for_a_dial() -> None:
    moving = FlowView(owed_bytes=50, received_bytes=50, quiet_s=0.0)
    answers = [dialling(waiting(0, 1, p1=moving), p1=TRIED, p2=TRIED), waiting(1), waiting(2)]
    assert verdict(answers, 3).case == "slow link"
    answers = [dialling(waiting(0, 1), p2=TRIED), waiting(1, 0, p0=NOTHING), waiting(2)]
    assert verdict(answers, 3).link == (0, 1)


def test_a_rank_that_never_entered_is_to_blame_and_not_who_it_can_not_be_reached_by() -> None:
    found = verdict([dialling(waiting(0, 1, p1=NOTHING), p1=TRIED), absent(1)], 2)
    assert (found.case, found.culprits) == ("never entered", (1,))
