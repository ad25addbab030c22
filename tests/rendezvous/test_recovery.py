"""A rendezvous that was restarted, or a successor: claims in, adoption and verdicts out."""

from __future__ import annotations

import itertools
from collections.abc import Set
from typing import Any

import pytest

from ringd.rendezvous import recovery
from ringd.rendezvous.bounds import DEAD_AFTER_S
from ringd.rendezvous.events import (
    DaemonAdmitted,
    DaemonJoined,
    DaemonLost,
    Drop,
    Event,
    Heartbeat,
    Instruction,
    LinkLost,
    OpFailed,
    ReformWanted,
    Send,
    Tick,
    TrainerAttached,
    TrainerDetached,
)
from ringd.rendezvous.membership import Membership
from ringd.rendezvous.news import Claim, Lost
from ringd.transport.base import Address

EPOCH = 5
SIZES = [2, 3, 4, 5, 7]


class Group:
    """A fresh membership, and daemons that tell it what they know."""

    def __init__(self, n: int, **options: Any) -> None:
        self.n = n
        self.membership = Membership(n, **options)
        self.now = 100.0
        self.told: dict[int, list[tuple[str, dict[str, Any]]]] = {r: [] for r in range(n)}
        self.dropped: list[int] = []

    def say(self, *events: Event) -> list[Instruction]:
        out: list[Instruction] = []
        for event in events:
            out += self.membership.apply(event, self.now)
        for step in out:
            if isinstance(step, Drop):
                self.dropped.append(step.rank)
                continue
            for rank in step.to:
                self.told[rank].append((step.type, dict(step.fields)))
        return out

    def claim(self, **changes: Any) -> Claim:
        facts = {"epoch": EPOCH, "members": tuple(range(self.n)), "running": True, **changes}
        return Claim(**facts)

    def back(self, rank: int, **changes: Any) -> None:
        self.join(rank, self.claim(**changes))

    def join(self, rank: int, claim: Claim | None) -> None:
        address = Address(f"10.0.0.{rank}", 4000)
        self.say(DaemonAdmitted(rank, f"10.0.0.{rank}:5000"))
        self.say(DaemonJoined(rank, address, claim=claim))

    def passes(self, seconds: float) -> None:
        """Time passes, while all that are here say that they live."""
        self.now += seconds
        self.say(*(Heartbeat(rank) for rank in self.membership.joined()), Tick())

    def heard(self, rank: int, kind: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.told[rank] if name == kind]

    def losses(self, rank: int) -> list[tuple[int, str, str, str]]:
        """rank, case, detail, verdict of what it heard of losses."""
        names = ("rank", "case", "detail", "verdict")
        return [tuple(f[name] for name in names) for f in self.heard(rank, "lost")]  # type: ignore[misc]

    @property
    def waits(self) -> bool:
        return bool(self.membership.status()["recovering"])


@pytest.mark.parametrize("n", SIZES)
def test_when_all_come_back_the_epoch_goes_on_and_nobody_hears_of_a_loss(n: int) -> None:
    group = Group(n)
    for rank in reversed(range(n)):
        group.back(rank)
        assert group.waits == (rank > 0)
    assert group.membership.epoch == EPOCH
    assert group.membership.running() == tuple(range(n))
    group.passes(2 * DEAD_AFTER_S)
    assert [group.losses(rank) for rank in range(n)] == [[]] * n
    group.say(TrainerDetached(0, "died", "process 7 ended", EPOCH))
    for rank in range(1, n):
        assert group.losses(rank) == [(0, "trainer died", "process 7 ended", f"{EPOCH}.1")]


@pytest.mark.parametrize(("n", "missing"), [(n, m) for n in SIZES for m in range(n)])
def test_who_does_not_come_back_is_lost_after_the_limit_and_not_before(
    n: int, missing: int
) -> None:
    group = Group(n)
    others = [rank for rank in range(n) if rank != missing]
    for rank in others:
        group.back(rank, n_verdicts=rank + 3)
    group.passes(DEAD_AFTER_S - 0.01)
    assert not any(group.losses(rank) for rank in others)
    group.passes(0.01)
    number = f"{EPOCH}.{max(others) + 4}"
    for rank in others:
        assert group.losses(rank) == [(missing, "daemon lost", recovery.NOT_BACK, number)]
    assert not group.waits


def test_several_that_do_not_come_back_are_all_told_in_one_order() -> None:
    group = Group(5)
    for rank in (1, 3):
        group.back(rank)
    group.passes(DEAD_AFTER_S)
    assert [lost[0] for lost in group.losses(1)] == [0, 2, 4]
    assert group.losses(1) == group.losses(3)


def test_a_daemon_that_was_started_anew_is_lost_to_the_epoch_once_the_others_are_there() -> None:
    group = Group(3)
    group.back(0)
    group.join(1, None)
    assert group.losses(0) == [(1, "daemon lost", recovery.ANEW, f"{EPOCH}.1")]
    group.back(2)
    assert group.losses(2) == group.losses(0)
    assert not group.waits
    assert group.heard(0, "members"), "the group is complete"


def test_ids_of_verdicts_go_on_above_the_highest_that_anybody_heard() -> None:
    group = Group(3)
    for rank, heard in enumerate((2, 9, 4)):
        group.back(rank, n_verdicts=heard)
    error = {"code": "mismatch", "fields": {}}
    group.say(OpFailed(0, EPOCH, 0, (0, 1, 2), 7, error))
    for rank in range(3):
        (told,) = group.heard(rank, "abort")
        assert told["error"]["fields"]["verdict"] == f"{EPOCH}.10"


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_highest_epoch_is_taken_over_and_the_older_one_is_over(order: tuple[int, ...]) -> None:
    group = Group(3)
    epochs = {0: EPOCH, 1: EPOCH, 2: EPOCH - 1}
    for rank in order:
        group.back(rank, epoch=epochs[rank])
    group.passes(DEAD_AFTER_S)
    assert group.membership.epoch == EPOCH
    assert group.membership.running() == (0, 1)
    (told,) = group.heard(2, "lost")
    assert (told["rank"], told["epoch"]) == (2, EPOCH - 1)
    for rank in (0, 1):
        assert [lost[0] for lost in group.losses(rank)] == [2]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_who_asked_for_the_epoch_that_has_begun_without_it_comes_as_a_new_one(
    order: tuple[int, ...],
) -> None:
    group = Group(3)
    for rank in order:
        group.back(rank, epoch=EPOCH - (rank == 2))
        if rank == 2:
            group.say(ReformWanted(2, EPOCH - 1, 4))
    assert group.membership.attached() == (2,)
    assert [lost[::2] for lost in group.losses(0)] == [(2, recovery.BEHIND)]
    group.say(ReformWanted(0, EPOCH, 7), ReformWanted(1, EPOCH, 8))
    for rank, attempt in ((0, 7), (1, 8), (2, 4)):
        (start,) = group.heard(rank, "start")
        assert (start["epoch"], start["attempt"]) == (EPOCH + 1, attempt)
        assert start["members"] == [0, 1, 2]


def test_a_claim_of_other_members_is_of_another_epoch() -> None:
    group = Group(3)
    group.back(0)
    group.back(1, members=(1, 2))
    (told,) = group.heard(1, "lost")
    assert (told["rank"], told["epoch"]) == (1, EPOCH)


def test_who_comes_after_it_was_called_lost_is_told_the_same_verdict() -> None:
    group = Group(3)
    group.back(0)
    group.back(2)
    group.passes(DEAD_AFTER_S)
    group.back(1)
    assert group.losses(1) == group.losses(0)
    assert group.membership.running() == (0, 2)
    assert group.losses(0) == group.losses(2)


def test_a_daemon_that_comes_back_to_a_rendezvous_that_stood_is_told_that_its_epoch_is_over() -> (
    None
):
    group = Group(3)
    for rank in range(3):
        group.join(rank, None)
    group.say(*(TrainerAttached(rank, 1) for rank in range(3)))
    assert group.membership.epoch == 1
    group.say(DaemonLost(1, "its control connection broke"))
    group.back(1, epoch=1)
    assert group.losses(1) == group.losses(0) == group.losses(2)
    assert group.losses(1) == [(1, "daemon lost", "its control connection broke", "1.1")]
    group.say(TrainerDetached(1, "goodbye", "", 1), TrainerAttached(1, 2))
    assert group.membership.attached() == (1,)
    assert group.membership.running() == (0, 2)
    assert not group.dropped


def test_verdicts_that_some_heard_are_told_to_all_with_their_ids() -> None:
    group = Group(4)
    lost = Lost(3, "trainer died", "process 9 ended", EPOCH, number=f"{EPOCH}.4")
    group.back(0)
    group.back(1, lost=(lost,), n_verdicts=4)
    group.back(2)
    expected = [(3, "trainer died", "process 9 ended", f"{EPOCH}.4")]
    assert group.losses(0) == group.losses(2) == expected
    assert group.losses(1) in ([], expected)
    group.back(3)
    assert group.losses(3) == expected
    assert group.membership.running() == (0, 1, 2)
    group.passes(DEAD_AFTER_S)
    assert group.losses(0) == expected


def test_a_daemon_that_goes_while_others_are_awaited_is_lost_with_its_own_reason() -> None:
    group = Group(4)
    for rank in range(3):
        group.back(rank)
    group.say(TrainerDetached(2, "goodbye", "", EPOCH, 9), DaemonLost(2, "closed"))
    assert group.losses(0) == [(2, "daemon lost", "closed", f"{EPOCH}.1")]
    group.back(3)
    assert not group.waits
    assert group.losses(3) == group.losses(0) == group.losses(1)
    assert not group.heard(0, "left"), "what it said is void"


def test_nobody_is_missed_where_no_trainer_takes_part() -> None:
    group = Group(3)
    for rank in (0, 1):
        group.back(rank, running=False)
    for _ in range(3):
        group.passes(DEAD_AFTER_S / 3)
    assert not group.waits
    assert group.losses(0) == group.losses(1) == []
    group.join(2, None)
    group.say(*(TrainerAttached(rank, 4) for rank in range(3)))
    assert group.membership.epoch == EPOCH + 1
    assert [group.heard(rank, "start")[0]["epoch"] for rank in range(3)] == [EPOCH + 1] * 3


def test_what_needs_all_waits_until_all_are_there_and_keeps_its_order() -> None:
    group = Group(3)
    group.back(0)
    error = {"code": "timeout", "message": "", "fields": {}}
    group.say(OpFailed(0, EPOCH, 0, (0, 1, 2), 7, error))
    group.back(1)
    group.say(TrainerDetached(1, "goodbye", "", EPOCH, 8), TrainerAttached(1, 3))
    assert not group.heard(0, "inquire")
    assert not group.heard(0, "left")
    group.back(2)
    assert [group.heard(rank, "inquire")[0]["seq"] for rank in range(3)] == [7] * 3
    for rank in (0, 2):
        assert group.heard(rank, "left")[0]["next_seq"] == 8
    assert group.membership.attached() == (1,)
    assert not group.dropped


def test_reports_of_links_are_judged_when_all_are_there() -> None:
    group = Group(3)
    group.back(0)
    group.say(LinkLost(0, 2, "reset", EPOCH))
    group.passes(1.0)
    assert not group.losses(0)
    group.back(1)
    group.back(2)
    group.passes(1.0)
    assert [lost[:2] for lost in group.losses(1)] == [(2, "link lost")]


def test_a_link_to_one_that_never_came_back_is_its_own_loss() -> None:
    group = Group(3)
    group.back(0)
    group.back(1)
    group.say(LinkLost(0, 2, "reset", EPOCH), LinkLost(1, 2, "reset", EPOCH))
    group.passes(DEAD_AFTER_S)
    group.passes(1.0)
    assert [lost[:3] for lost in group.losses(0)] == [(2, "daemon lost", recovery.NOT_BACK)]


def test_once_an_epoch_began_here_a_claim_of_a_higher_one_is_told_that_it_is_over() -> None:
    group = Group(2)
    for rank in range(2):
        group.join(rank, None)
    group.say(*(TrainerAttached(rank, 1) for rank in range(2)))
    group.say(*(TrainerDetached(rank, "goodbye", "", 1) for rank in range(2)))
    group.say(DaemonLost(1, "closed"))
    group.back(1)
    assert group.membership.epoch == 1
    assert [lost[0] for lost in group.losses(1)] == [1]
    group.say(*(TrainerAttached(rank, 2) for rank in range(2)))
    assert group.membership.epoch == EPOCH + 1, "no number is used twice"


# Successors


def successor(n: int, unreachable: Set[int] = frozenset()) -> Group:
    return Group(n, majority=True, unreachable=unreachable)


@pytest.mark.parametrize("n", [3, 4, 5, 7])
def test_a_successor_judges_with_more_than_half_of_the_members_and_then_at_once(n: int) -> None:
    group = successor(n, unreachable={0})
    enough = n // 2 + 1
    for count, rank in enumerate(range(1, n), 1):
        group.back(rank)
        if count < enough:
            assert not group.losses(1)
        else:
            expected = [(0, "daemon lost", recovery.NOT_REACHED, f"{EPOCH}.1")]
            for member in range(1, rank + 1):
                assert group.losses(member) == expected
    assert not group.waits


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7])
def test_with_half_or_less_a_successor_never_judges_and_starts_nothing(n: int) -> None:
    group = successor(n, unreachable={0})
    half = range(1, n // 2 + 1)
    for rank in half:
        group.back(rank)
    group.say(TrainerDetached(1, "died", "process 7 ended", EPOCH))
    for _ in range(5):
        group.passes(DEAD_AFTER_S)
    assert not any(group.told[rank] and group.losses(rank) for rank in half)
    assert group.waits
    due = group.membership.next_deadline()
    assert due is not None
    assert due > group.now
    for rank in half:
        if rank > 1:
            group.say(TrainerDetached(rank, "goodbye", "", EPOCH))
        group.say(TrainerAttached(rank, 9))
    assert group.membership.epoch == EPOCH


def test_who_asks_a_successor_without_a_majority_is_told_who_is_missing() -> None:
    group = successor(5, unreachable={0})
    for rank in (1, 3):
        group.back(rank)
    group.say(ReformWanted(3, EPOCH, 1, timeout_s=10.0))
    group.passes(10.0)
    (refusal,) = group.heard(3, "not_reformed")
    assert refusal["quorum"] is True
    assert "ranks 0, 2 and 4 may go on elsewhere" in refusal["text"]


def test_who_is_dead_by_its_own_daemon_s_word_counts_for_no_majority_of_a_successor() -> None:
    """The one that holds the rendezvous dies just after another one's trainer."""
    group = successor(4, unreachable={0})
    lost = (Lost(3, "trainer died", "process 7 ended", EPOCH, number=f"{EPOCH}.1"),)
    for rank in (1, 2, 3):
        group.back(rank, lost=lost)
    for rank in (1, 2):
        group.say(ReformWanted(rank, EPOCH, 1, timeout_s=10.0))
    group.passes(10.0)
    starts = [fields["members"] for fields in group.heard(1, "start")]
    assert starts == [[1, 2]]


def test_a_successor_awaits_those_that_it_could_reach() -> None:
    group = successor(5, unreachable={0})
    for rank in (1, 2, 3):
        group.back(rank)
    assert [lost[0] for lost in group.losses(1)] == [0]
    group.passes(DEAD_AFTER_S)
    assert [lost[::2] for lost in group.losses(1)][1:] == [(4, recovery.NOT_BACK)]


def test_what_is_held_is_bounded() -> None:
    group = Group(2)
    group.back(0)
    for seq in range(recovery.MAX_HELD + 5):
        error = {"code": "timeout", "message": "", "fields": {}}
        group.say(OpFailed(0, EPOCH, 0, (0, 1), seq, error))
    group.back(1)
    asked = {fields["seq"] for fields in group.heard(1, "inquire")}
    assert min(asked) == 5


def test_the_first_told_epoch_without_a_claim_is_no_recovery() -> None:
    group = Group(2)
    for rank in range(2):
        group.join(rank, None)
    assert not group.waits
    assert isinstance(group.say(TrainerAttached(0, 1))[0], Send)
