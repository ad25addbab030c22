"""The choice of the next epoch, by tables, and how the membership comes to it."""

from __future__ import annotations

from typing import Any

import pytest

from ringd.rendezvous.events import (
    DaemonAdmitted,
    DaemonJoined,
    DaemonLost,
    Event,
    Instruction,
    ReformWanted,
    Send,
    Tick,
    TrainerAttached,
    TrainerDetached,
)
from ringd.rendezvous.membership import Membership
from ringd.rendezvous.news import Claim
from ringd.rendezvous.reforming import ALLOWED_PART, Wishes, together
from ringd.rendezvous.silence import DOUBT_S
from ringd.transport.base import Address


@pytest.mark.parametrize(
    ("n", "cuts", "side"),
    [
        (3, [], [0, 1, 2]),
        (3, [(0, 2), (1, 2)], [0, 1]),
        (3, [(0, 1), (0, 2)], [1, 2]),
        (3, [(0, 1)], [0, 2]),  # of two that can't reach each other the later one goes
        (2, [(0, 1)], [0]),
        (5, [(a, b) for a in (0, 1) for b in (2, 3, 4)], [2, 3, 4]),
        (4, [(0, 2), (0, 3), (1, 2), (1, 3)], [0, 1]),
        (1, [], [0]),
        (0, [], []),
    ],
)
def test_together_are_those_who_reach_each_other(
    n: int, cuts: list[tuple[int, int]], side: list[int]
) -> None:
    assert together(range(n), {frozenset(cut) for cut in cuts}) == side


def wishes(*asked: ReformWanted) -> Wishes:
    found = Wishes()
    for event in asked:
        found.add(event, 0.0)
    return found


@pytest.mark.parametrize(
    ("asked", "left", "majority", "members"),
    [
        ((0, 1, 2), (), True, (0, 1, 2)),
        ((0, 1), (), True, (0, 1)),
        ((0, 1), (), False, (0, 1)),
        ((0,), (), True, ()),
        ((0,), (), False, (0,)),
        ((0,), (1, 2), True, (0,)),  # who said goodbye does not count
        ((0,), (1,), True, ()),  # half is no majority
    ],
)
def test_a_majority_is_more_than_half_of_those_who_did_not_leave(
    asked: tuple[int, ...], left: tuple[int, ...], majority: bool, members: tuple[int, ...]
) -> None:
    choice = wishes(*(ReformWanted(r, 1, 1) for r in asked)).choose(
        (0, 1, 2), left, (), majority=majority
    )
    assert choice.members == members
    assert choice.final == (not members)


def test_members_that_are_back_as_newcomers_count_for_the_majority() -> None:
    asked = wishes(ReformWanted(0, 1, 1))
    choice = asked.choose((0, 1, 2), (), (2,), majority=True, returned=(2,))
    assert choice.members == (0, 2)
    assert asked.choose((0, 1, 2), (), (2,), majority=True).final, "what was started anew does not"


@pytest.mark.parametrize(("claimed", "goes_on"), [(1, True), (None, False), (2, False)])
def test_who_may_have_been_on_another_side_does_not_count(
    claimed: int | None, goes_on: bool
) -> None:
    job = Job(3, majority=True)
    job.come(0, 1, 2)
    for rank in (1, 2):
        job.say(DaemonLost(rank, "reset"))
    job.say(DaemonAdmitted(1, "10.0.0.1:2"))
    claim = None if claimed is None else Claim(claimed, (0, 1, 2), running=True)
    job.say(DaemonJoined(1, Address("10.0.0.1", 4000), claim=claim))
    told = dict(kinds(job.say(TrainerAttached(1, 2), ReformWanted(0, 1, 2))))
    assert ("start" in told) == goes_on
    assert ("not_reformed" in told) != goes_on


def test_newcomers_fill_up_to_the_wanted_size_and_stand_behind() -> None:
    found = wishes(ReformWanted(2, 1, 1, min_size=3), ReformWanted(1, 1, 1))
    short = found.choose((2, 1, 3), (), (), majority=False)
    assert (short.members, short.final) == ((), False)
    assert "ranks 2 and 1 came together in the time that rank 2 gives" in short.obstacle
    assert "and rank 2 asked for 3 at least" in short.obstacle
    assert found.choose((2, 1, 3), (), (0,), majority=False).members == (2, 1, 0)


def test_the_history_is_the_lowest_and_the_highest_of_the_survivors() -> None:
    found = wishes(
        ReformWanted(0, 1, 1, last_done=9, unbroken=8, agreed=(8, 1)),
        ReformWanted(1, 1, 1, last_done=7, unbroken=5),
        ReformWanted(3, 1, 1, last_done=11, unbroken=2, agreed=(3, 0)),
    )
    assert found.history(4, (0, 1, 2, 3), (0, 1)) == {
        "epoch": 4,
        "members": [0, 1, 2, 3],
        "survivors": [0, 1],
        "completed_by_all": 5,
        "completed_by_any": 9,
        "agreed": [[8, 1]],
    }


class Job:
    """A membership, its clock, and its events."""

    def __init__(self, n: int, **settings: Any) -> None:
        self.membership = Membership(n, **settings)
        self.now = 100.0

    def say(self, *events: Event) -> list[Send]:
        out: list[Instruction] = []
        for event in events:
            out = self.membership.apply(event, self.now)
        return [i for i in out if isinstance(i, Send)]

    def come(self, *ranks: int, attempt: int = 1) -> list[Send]:
        for rank in ranks:
            self.say(DaemonAdmitted(rank, f"10.0.0.{rank}:1"))
            self.say(DaemonJoined(rank, Address(f"10.0.0.{rank}", 4000)))
        return self.say(*(TrainerAttached(rank, attempt) for rank in ranks))

    def wait(self, seconds: float) -> list[Send]:
        """Time passes; the daemons live."""
        due = self.membership.next_deadline()
        assert due is not None
        self.now += seconds
        return self.say(Tick())


def kinds(sends: list[Send]) -> list[tuple[str, tuple[int, ...]]]:
    return [(send.type, send.to) for send in sends]


def test_a_smaller_group_begins_when_no_other_came_after_the_last_call() -> None:
    job = Job(3, min_size=2, last_call_s=1.0)
    job.come(2)
    assert ("start", (2,)) not in kinds(job.wait(1.5))
    job.come(0)
    assert "start" not in dict(kinds(job.wait(0.5)))
    assert job.membership.next_deadline() == pytest.approx(101.5 + 1.0)
    sends = job.wait(0.6)
    assert kinds(sends)[-2:] == [("start", (0,)), ("start", (2,))]
    assert sends[-1].fields["members"] == [0, 2]
    assert job.membership.members == (0, 2)
    # The third one waits until they ask.
    assert "start" not in dict(kinds(job.come(1)))
    job.say(ReformWanted(0, 1, 2))
    sends = job.say(ReformWanted(2, 1, 2))
    assert [send.fields["members"] for send in sends if send.type == "start"] == [[0, 2, 1]] * 3


def test_e3_the_one_that_died_before_the_start_is_not_waited_for() -> None:
    job = Job(3, min_size=2, last_call_s=1.0)
    job.come(0)
    job.say(DaemonLost(0, "killed"))
    job.come(1, 2)
    job.wait(1.1)
    assert job.membership.members == (1, 2)


def test_all_seats_taken_there_is_no_last_call() -> None:
    job = Job(3, min_size=2, last_call_s=1.0)
    assert dict(kinds(job.come(0, 1, 2)))["start"] == (2,)


def test_a_wish_that_is_withdrawn_does_not_count_and_may_be_said_again() -> None:
    job = Job(2)
    job.come(0, 1)
    assert kinds(job.say(ReformWanted(0, 1, 2))) == [("changed", (1,))]
    assert job.say(TrainerDetached(0, "gave_up", "", 1)) == []
    assert job.say(ReformWanted(1, 1, 2, timeout_s=10.0)) == []
    assert job.membership.running() == (0, 1)
    sends = job.say(ReformWanted(0, 1, 3))
    assert kinds(sends) == [("start", (0,)), ("start", (1,))]
    assert [send.fields["attempt"] for send in sends] == [3, 2]


def test_a_member_that_dies_while_others_wait_is_not_waited_for() -> None:
    job = Job(3)
    job.come(0, 1, 2)
    job.say(ReformWanted(0, 1, 2), ReformWanted(1, 1, 2))
    sends = job.say(TrainerDetached(2, "died", "signal 9", 1))
    assert kinds(sends)[-2:] == [("start", (0,)), ("start", (1,))]


def test_a_member_that_does_not_ask_is_left_out_when_the_time_is_over() -> None:
    job = Job(3)
    job.come(0, 1, 2)
    job.say(ReformWanted(0, 1, 2, timeout_s=2.0), ReformWanted(1, 1, 2, timeout_s=60.0))
    assert "start" not in dict(kinds(job.wait(2.0 * ALLOWED_PART - 0.1)))
    assert dict(kinds(job.wait(0.2)))["start"] == (1,)
    assert job.membership.members == job.membership.running() == (0, 1)


def test_without_a_majority_the_answer_comes_at_once() -> None:
    job = Job(3, majority=True)
    job.come(0, 1, 2)
    job.say(DaemonLost(0, "killed"), DaemonLost(1, "killed"))
    (refusal,) = job.say(ReformWanted(2, 1, 2))
    assert (refusal.type, refusal.to, refusal.fields["quorum"]) == ("not_reformed", (2,), True)
    assert "that is no majority" in refusal.fields["text"]
    assert "rank 2 of the 3 members" in refusal.fields["text"]
    assert refusal.fields["missing"] == [0, 1]


@pytest.mark.parametrize("how", ["died", "raised"])
def test_a_trainer_that_is_dead_by_its_daemons_word_is_on_no_other_side(how: Any) -> None:
    job = Job(3, majority=True)
    job.come(0, 1, 2)
    job.say(TrainerDetached(0, how, "signal 9", 1))
    job.say(TrainerDetached(1, "goodbye", "", 1), DaemonLost(0, "ended later"))
    (start,) = job.say(ReformWanted(2, 1, 2))
    assert (start.type, start.fields["members"]) == ("start", [2])


def test_a_seat_that_died_and_is_back_is_lost_and_new() -> None:
    job = Job(3)
    job.come(0, 1, 2)
    job.say(ReformWanted(1, 1, 2), DaemonLost(0, "killed"))
    job.come(0)
    starts = job.say(ReformWanted(2, 1, 2))
    assert [s.fields["members"] for s in starts] == [[1, 2, 0]] * 3
    assert starts[0].fields["last"]["survivors"] == [1, 2]


def all_lost(n: int, **settings: Any) -> Job:
    """Epoch 1 ran, every daemon was lost, and all are here again."""
    job = Job(n, **settings)
    job.come(*range(n))
    for rank in range(n):
        job.say(DaemonLost(rank, "reset"))
    for rank in range(n):
        job.say(DaemonAdmitted(rank, f"10.0.0.{rank}:2"))
        claim = Claim(1, tuple(range(n)), running=True)
        job.say(DaemonJoined(rank, Address(f"10.0.0.{rank}", 4000), claim=claim))
    return job


def test_members_that_were_all_lost_go_on_as_survivors() -> None:
    job = all_lost(3)
    for rank in (2, 0):
        done = 4 + rank
        asked = ReformWanted(rank, 1, 7, last_done=done, unbroken=done, agreed=(5, True))
        assert "start" not in dict(kinds(job.say(asked))), "rank 1 is here, and has not asked"
    sends = job.say(ReformWanted(1, 1, 7, last_done=5, unbroken=5))
    starts = [send for send in sends if send.type == "start"]
    assert [send.to for send in starts] == [(0,), (1,), (2,)]
    history = starts[0].fields["last"]
    assert history["survivors"] == [0, 1, 2]
    assert (history["completed_by_all"], history["completed_by_any"]) == (4, 6)
    assert history["agreed"] == [[5, 1], [5, 1]]


def test_of_members_that_were_all_lost_those_go_on_that_ask_in_time_if_they_are_enough() -> None:
    job = all_lost(3)
    job.say(ReformWanted(0, 1, 2, min_size=1, timeout_s=2.0))
    sends = job.wait(1.81)
    (start,) = (send for send in sends if send.type == "start")
    assert (start.to, start.fields["members"]) == ((0,), [0])
    assert start.fields["last"]["survivors"] == [0]
    # Who comes later waits, as anybody does, until those that run ask.
    sends = job.say(ReformWanted(1, 1, 2))
    (waiting,) = (send for send in sends if send.type == "waiting")
    assert waiting.fields == {"joined": [0, 1, 2], "attached": [1], "running": [0], "epoch": 2}


def test_a_member_that_alone_was_lost_comes_back_as_a_newcomer() -> None:
    job = Job(3)
    job.come(0, 1, 2)
    job.say(DaemonLost(1, "reset"))
    job.say(DaemonAdmitted(1, "10.0.0.1:2"))
    claim = Claim(1, (0, 1, 2), running=True)
    job.say(DaemonJoined(1, Address("10.0.0.1", 4000), claim=claim))
    job.say(ReformWanted(1, 1, 2), ReformWanted(0, 1, 2))
    sends = job.say(ReformWanted(2, 1, 2))
    start = next(send for send in sends if send.type == "start")
    assert start.fields["members"] == [0, 2, 1]
    assert start.fields["last"]["survivors"] == [0, 2]


def test_after_a_stall_all_that_piled_up_is_heard_before_an_epoch_begins() -> None:
    job = Job(2)
    job.come(0, 1)
    job.now += 2.4
    # Both asked, gave up, and asked again meanwhile; the messages of a rank come together.
    told: list[Send] = []
    for rank in (0, 1):
        asked = ReformWanted(rank, 1, 2)
        told += job.say(asked)
        told += job.say(TrainerDetached(rank, "gave_up", "", 1))
        told += job.say(ReformWanted(rank, 1, 3))
    assert "start" not in dict(kinds(told))
    assert "left" not in dict(kinds(told))
    assert job.membership.next_deadline() == pytest.approx(job.now + DOUBT_S)
    starts = [send for send in job.wait(DOUBT_S) if send.type == "start"]
    assert [(send.to, send.fields["attempt"]) for send in starts] == [((0,), 3), ((1,), 3)]
