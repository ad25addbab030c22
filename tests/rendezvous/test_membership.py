"""The membership's rules, one by one: events in, instructions out."""

from __future__ import annotations

from typing import Any

import pytest

from ringd.rendezvous.events import (
    BeginAnew,
    DaemonAdmitted,
    DaemonJoined,
    DaemonLeft,
    DaemonLost,
    Drop,
    Event,
    FromDaemon,
    Heartbeat,
    Instruction,
    LinkLost,
    LinkWanted,
    OpAnswered,
    OpFailed,
    Send,
    Tick,
    TrainerAttached,
    TrainerDetached,
)
from ringd.rendezvous.inquiries import INQUIRY_S, MAX_INQUIRIES
from ringd.rendezvous.membership import Membership
from ringd.rendezvous.sentences import MAX_FAILED_OPS
from ringd.rendezvous.verdicts import Answer
from ringd.transport.base import Address


class Group:
    """A membership with a clock, and short ways to a wanted state."""

    def __init__(self, world_size: int) -> None:
        self.membership = Membership(world_size)
        self.world_size = world_size
        self.now = 100.0

    def say(self, *events: Event) -> list[Instruction]:
        """The instructions of the last event."""
        out: list[Instruction] = []
        for event in events:
            out = self.membership.apply(event, self.now)
        return out

    def join(self, rank: int, **about: Any) -> list[Instruction]:
        peer, remote = f"10.0.0.{rank}:5000", about.pop("remote", False)
        self.say(DaemonAdmitted(rank, peer, remote))
        address = about.pop("address", Address(f"10.0.0.{rank}", 4000))
        return self.say(DaemonJoined(rank, address, **about))

    def attach(self, *ranks: int, attempt: int = 1) -> list[Instruction]:
        return self.say(*(TrainerAttached(rank, attempt) for rank in ranks))


def formed(world_size: int) -> Group:
    """Every daemon is here."""
    group = Group(world_size)
    for rank in range(world_size):
        group.join(rank)
    return group


def running(world_size: int) -> Group:
    """Epoch 1 runs."""
    group = formed(world_size)
    group.attach(*range(world_size))
    assert group.membership.epoch == 1
    return group


def here(
    joined: list[int], attached: list[int], running: tuple[int, ...] = (), epoch: int = 0
) -> dict[str, Any]:
    epoch = epoch or bool(running)
    return {"joined": joined, "attached": attached, "running": list(running), "epoch": epoch}


def goodbye(
    rank: int, epoch: int = 1, next_seq: int = 0, groups: tuple[tuple[int, int], ...] = ()
) -> TrainerDetached:
    return TrainerDetached(rank, "goodbye", "", epoch, next_seq, groups)


def left(rank: int, next_seq: int, groups: list[list[int]] | None = None) -> dict[str, Any]:
    return {"rank": rank, "epoch": 1, "next_seq": next_seq, "groups": groups or []}


def failed(
    rank: int,
    seq: int,
    *,
    epoch: int = 1,
    group: int = 0,
    members: tuple[int, ...] = (0, 1, 2),
    error: dict[str, Any] | None = None,
) -> OpFailed:
    return OpFailed(rank, epoch, group, members, seq, error or {})


def lost(rank: int, case: str, detail: str, **more: Any) -> dict[str, Any]:
    base = {"rank": rank, "case": case, "detail": detail, "epoch": 1, "link": None}
    base["exception"] = None
    return {**base, "verdict": "1.1", **more}


def begun(
    world_size: int, attempt: int, *, epoch: int = 1, last: dict[str, Any] | None = None
) -> dict[str, Any]:
    members = list(range(world_size))
    return {"epoch": epoch, "attempt": attempt, "members": members, "last": last}


def sends(out: list[Instruction], kind: str) -> list[Send]:
    return [i for i in out if isinstance(i, Send) and i.type == kind]


# Daemons come


def test_while_daemons_are_missing_all_who_joined_hear_who_is_here() -> None:
    group = Group(3)
    assert group.join(1) == [Send((1,), "waiting", here([1], []))]
    assert group.attach(1) == [Send((1,), "waiting", here([1], [1]))]
    assert group.join(0) == [Send((0, 1), "waiting", here([0, 1], [1]))]


def test_when_the_last_daemon_came_all_hear_the_members_and_the_trainers_still_wait() -> None:
    group = Group(2)
    group.join(1)
    group.attach(1)
    members = [[0, "10.0.0.0", 4000], [1, "10.0.0.1", 4000]]
    assert group.join(0) == [
        Send((0, 1), "members", {"members": members}),
        Send((1,), "waiting", here([0, 1], [1])),
    ]


@pytest.mark.parametrize("gone", [DaemonLost(1, "reset"), DaemonLeft(1)])
def test_a_vacant_place_is_taken_anew_and_all_hear_the_members_again(gone: FromDaemon) -> None:
    group = formed(2)
    assert group.say(gone) == [Send((0,), "waiting", here([0], []))]
    assert group.membership.refusal(1) is None
    out = group.join(1, address=Address("10.0.0.9", 1))
    members = [[0, "10.0.0.0", 4000], [1, "10.0.0.9", 1]]
    assert out == [Send((0, 1), "members", {"members": members})]


def test_a_taken_place_is_refused_from_the_handshake_on_naming_who_has_it() -> None:
    group = Group(2)
    assert group.membership.refusal(1) is None
    group.say(DaemonAdmitted(1, "10.0.0.1:5000"))
    assert group.membership.refusal(1) == "rank 1 already taken by 10.0.0.1:5000"
    group.say(DaemonJoined(1, Address("10.0.0.1", 4000), pid=7, host="b"))
    assert group.membership.refusal(1) == (
        "rank 1 already taken by 10.0.0.1:5000 (pid 7 on b, listens on 10.0.0.1:4000)"
    )
    with pytest.raises(ValueError, match="already taken"):
        group.say(DaemonAdmitted(1, "10.0.0.2:5000"))


def test_a_loopback_address_among_several_hosts_is_refused_to_all() -> None:
    group = Group(2)
    group.join(0, address=Address("127.0.0.1", 4000))
    out = group.join(1, remote=True)
    text = sends(out, "refused")[0].fields["text"]
    assert sends(out, "refused")[0].to == (0, 1)
    assert "rank 0 advertises loopback (127.0.0.1:4000)" in text
    assert "rank 1 (at 10.0.0.1:5000)" in text
    assert not sends(out, "members")
    assert sends(group.attach(0, 1), "refused")
    assert group.membership.epoch == 0
    group.say(DaemonLeft(0))
    assert sends(group.join(0), "members")


def test_loopback_is_fine_when_all_are_on_one_host() -> None:
    group = Group(2)
    group.join(0, address=Address("127.0.0.1", 4000))
    assert sends(group.join(1, address=Address("::1", 4000)), "members")


def test_unequal_sizes_are_refused_to_all() -> None:
    group = Group(2)
    group.join(0, sizes=(1024, 64))
    out = group.join(1, sizes=(2048, 64))
    assert sends(out, "refused")[0].fields["text"] == (
        "rank 1 has segment_bytes and eager_bytes [2048, 64], rank 0 has [1024, 64]: "
        "set them alike on all ranks"
    )
    assert not sends(out, "members")


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (DaemonJoined(0, Address("10.0.0.9", 1)), "it joined twice"),
        (TrainerAttached(0, 2), "it attached a second trainer"),
        (LinkWanted(0, 0), "it wants a link to rank 0"),
        (LinkWanted(0, 2), "it wants a link to rank 2"),
        (LinkWanted(0, -1), "it wants a link to rank -1"),
    ],
)
def test_a_daemon_that_breaks_the_rules_is_dropped_and_its_place_is_vacant(
    event: FromDaemon, reason: str
) -> None:
    group = running(2)
    out = group.say(event)
    assert out[0] == Drop(0, reason)
    assert out[1] == Send((1,), "lost", lost(0, "daemon lost", reason))
    assert group.membership.refusal(0) is None


def test_a_daemon_must_join_before_it_says_anything_else() -> None:
    group = Group(2)
    group.say(DaemonAdmitted(0, "10.0.0.1:5000"))
    assert group.attach(0) == [Drop(0, "it spoke before it joined")]


def test_what_a_dropped_daemon_still_says_changes_nothing() -> None:
    group = Group(1)
    assert group.attach(0) == []
    assert group.membership.attached() == ()


# Epochs


def test_an_epoch_starts_when_every_rank_has_a_daemon_and_a_trainer() -> None:
    group = formed(3)
    group.say(TrainerAttached(2, 5))
    assert group.attach(0) == [Send((0, 2), "waiting", here([0, 1, 2], [0, 2]))]
    assert group.attach(1) == [
        Send((0,), "start", begun(3, 1)),
        Send((1,), "start", begun(3, 1)),
        Send((2,), "start", begun(3, 5)),
    ]
    assert group.membership.running() == (0, 1, 2)


def test_trainers_may_wait_before_the_last_daemon_comes() -> None:
    group = Group(2)
    group.join(0)
    group.attach(0)
    group.join(1)
    assert sends(group.attach(1), "start")


def test_a_group_of_one_starts_alone() -> None:
    group = Group(1)
    assert sends(group.join(0), "members")
    assert group.attach(0) == [Send((0,), "start", begun(1, 1))]


def test_no_epoch_starts_before_every_trainer_of_the_one_before_has_ended() -> None:
    group = running(2)
    group.say(goodbye(0))
    out = group.attach(0, attempt=2)
    assert out == [Send((0, 1), "waiting", here([0, 1], [0], (1,)))]
    assert group.say(goodbye(1)) == [
        Send((0,), "left", left(1, 0)),
        Send((0,), "waiting", here([0, 1], [0], epoch=1)),
    ]
    assert group.membership.epoch == 1
    assert sends(group.attach(1, attempt=2), "start")[0].fields == begun(2, 2, epoch=2)


@pytest.mark.parametrize("how", ["gave_up", "died", "raised", "goodbye"])
def test_a_trainer_that_goes_before_the_start_withdraws(how: Any) -> None:
    group = formed(2)
    group.attach(0)
    assert group.say(TrainerDetached(0, how, "", 0)) == []
    assert group.attach(1) == [Send((1,), "waiting", here([0, 1], [1]))]
    assert group.membership.epoch == 0


def test_those_who_wait_hear_that_another_gave_up() -> None:
    group = formed(3)
    group.attach(0, 1)
    out = group.say(TrainerDetached(0, "gave_up", "", 0))
    assert out == [Send((1,), "waiting", here([0, 1, 2], [1]))]


def test_giving_up_that_crosses_the_start_counts_as_a_goodbye_before_the_first_call() -> None:
    group = running(2)
    out = group.say(TrainerDetached(0, "gave_up", "too late", 0, 17, ((3, 5),)))
    assert out == [Send((1,), "left", left(0, 0))]


def test_giving_up_in_a_known_epoch_counts_as_a_goodbye_there() -> None:
    group = running(2)
    out = group.say(TrainerDetached(0, "gave_up", "told to end", 1, 17, ((3, 5),)))
    assert out == [Send((1,), "left", left(0, 17, [[3, 5]]))]


def test_a_goodbye_is_told_as_left() -> None:
    group = running(3)
    assert group.say(goodbye(1, next_seq=7)) == [Send((0, 2), "left", left(1, 7))]
    assert group.say(goodbye(1)) == []


def test_a_goodbye_tells_of_every_group_how_far_that_rank_came() -> None:
    group = running(3)
    groups = ((4, 0), (2, 17))
    assert group.say(goodbye(1, next_seq=7, groups=groups)) == [
        Send((0, 2), "left", left(1, 7, [[4, 0], [2, 17]]))
    ]


@pytest.mark.parametrize("how", ["died", "raised"])
def test_a_trainers_death_is_told_as_lost_once(how: Any) -> None:
    group = running(3)
    event = TrainerDetached(1, how, "ValueError: x, train.py:3", 1)
    expected = lost(1, f"trainer {how}", "ValueError: x, train.py:3")
    assert group.say(event) == [Send((0, 2), "lost", expected)]
    assert group.say(event) == []
    out = group.say(DaemonLost(1, "reset"))
    assert not sends(out, "lost")


@pytest.mark.parametrize(
    ("event", "case", "detail"),
    [
        (DaemonLost(1, "reset by peer"), "daemon lost", "reset by peer"),
        (DaemonLeft(1), "daemon left", "it ended on purpose"),
    ],
)
def test_a_daemon_that_goes_in_an_epoch_is_told_as_lost(
    event: FromDaemon, case: str, detail: str
) -> None:
    group = running(3)
    assert group.say(event) == [
        Send((0, 2), "lost", lost(1, case, detail)),
        Send((0, 2), "waiting", here([0, 2], [], (0, 2))),
    ]


@pytest.mark.parametrize("event", [DaemonLost(1, "reset"), DaemonLeft(1)])
def test_a_daemon_that_goes_after_its_trainers_goodbye_is_no_loss(event: FromDaemon) -> None:
    group = running(3)
    group.say(goodbye(1))
    out = group.say(event)
    assert out == [Send((0, 2), "waiting", here([0, 2], [], (0, 2)))]


def test_after_a_loss_the_next_epoch_needs_all_ranks_anew() -> None:
    group = running(2)
    group.say(DaemonLost(1, "reset"))
    group.say(TrainerDetached(0, "raised", "PeerLostError", 1))
    group.attach(0, attempt=2)
    assert sends(group.join(1), "members")
    starts = sends(group.attach(1), "start")
    assert [s.fields for s in starts] == [
        begun(2, 2, epoch=2),
        begun(2, 1, epoch=2),
    ]


def test_what_is_said_of_another_epoch_changes_nothing() -> None:
    group = running(2)
    for event in (
        goodbye(0, epoch=0),
        TrainerDetached(0, "died", "", 2),
        failed(0, 1, epoch=2, members=(0, 1)),
        LinkLost(0, 1, "reset", 2),
    ):
        assert group.say(event) == []
    assert group.membership.running() == (0, 1)


# Links


def test_the_lower_rank_is_told_to_dial() -> None:
    group = formed(3)
    assert group.say(LinkWanted(2, 0)) == [Send((0,), "dial", {"peer": 2})]
    assert group.say(LinkWanted(0, 2)) == [Send((0,), "dial", {"peer": 2})]


def test_nobody_dials_a_daemon_that_is_gone() -> None:
    group = formed(3)
    group.say(DaemonLost(0, "reset"))
    assert group.say(LinkWanted(2, 0)) == []


def test_reports_of_a_broken_link_are_gathered_and_then_judged() -> None:
    group = running(4)
    assert group.say(LinkLost(1, 2, "reset", 1)) == []
    judge_at = group.membership.next_deadline()
    assert judge_at == pytest.approx(group.now + 0.150)
    group.now += 0.1
    assert group.say(LinkLost(3, 2, "eof", 1), LinkLost(2, 3, "eof", 1)) == []
    assert group.membership.next_deadline() == judge_at
    group.now = 100.150
    detail = "ranks 1, 3 lost their links to rank 2: reset"
    fields = lost(2, "link lost", detail, link=[1, 2])
    assert group.say(Tick()) == [Send((0, 1, 3), "lost", fields), Send((2,), "lost", fields)]
    assert group.say(LinkLost(0, 1, "reset", 1)) == []
    group.now += 1
    assert group.say(Tick()) == []


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_accused_daemon_that_is_lost_meanwhile_gets_only_that_verdict(
    order: tuple[int, int],
) -> None:
    group = running(3)
    events = [DaemonLost(2, "reset"), LinkLost(1, 2, "reset", 1)]
    heard = [i for k in order for i in sends(group.say(events[k]), "lost")]
    assert [send.fields["case"] for send in heard] == ["daemon lost"]
    group.now += 1
    assert group.say(Tick()) == []


def test_a_reporter_that_is_lost_accuses_nobody() -> None:
    group = running(3)
    group.say(LinkLost(1, 2, "reset", 1), DaemonLost(1, "killed"))
    group.now += 1
    assert group.say(Tick()) == []


def test_a_link_to_a_rank_that_said_goodbye_is_not_missed() -> None:
    group = running(3)
    assert group.say(goodbye(2), LinkLost(1, 2, "eof", 1)) == []
    group.say(LinkLost(0, 1, "reset", 1), goodbye(1))
    group.now += 1
    assert group.say(Tick()) == []


@pytest.mark.parametrize("peer", [-1, 3, 0])
def test_a_report_about_no_peer_is_not_taken(peer: int) -> None:
    group = running(3)
    group.say(LinkLost(0, peer, "reset", 1))
    assert group.membership.next_deadline() == group.now + 3


# Operations


MISMATCH = {"code": "mismatch", "message": "differs", "fields": {"op": "barrier"}}
TIMEOUT = {"code": "timeout", "message": "late", "fields": {"op": "all_reduce", "seq": 4}}


def aborts(out: list[Instruction]) -> list[dict[str, Any]]:
    """What is said of operations that ended; always to everybody."""
    return [dict(send.fields) for send in sends(out, "abort")]


def waiting(rank: int, *on: int) -> Answer:
    return Answer(rank, "waiting", entered_s=1.0, waiting_on=on)


def test_an_error_that_needs_no_question_is_told_to_all_at_once_with_its_number() -> None:
    group = running(3)
    error = {**MISMATCH, "fields": {"op": "barrier", "verdict": "1.1"}}
    fields = {"epoch": 1, "group": 0, "lowest": 0, "seq": 4, "error": error}
    assert group.say(failed(1, 4, error=MISMATCH)) == [Send((0, 1, 2), "abort", fields)]
    assert group.say(failed(0, 4, error={"code": "other"})) == []
    again = (failed(0, 4, group=1, error=MISMATCH), failed(0, 5, error=MISMATCH))
    numbers = [aborts(group.say(event))[0]["error"]["fields"]["verdict"] for event in again]
    assert numbers == ["1.2", "1.3"]


def test_an_error_that_quotes_a_verdict_keeps_its_number() -> None:
    group = running(3)
    quoting = {**MISMATCH, "fields": {"seq": 3, "verdict": "1.9"}}
    (told,) = aborts(group.say(failed(1, 4, error=quoting)))
    assert told["error"] == quoting


@pytest.mark.parametrize("fields", [None, "text", 7])
def test_an_error_without_fields_gets_its_number_too(fields: Any) -> None:
    group = running(3)
    (told,) = aborts(group.say(failed(0, 4, error={"code": "mismatch", "fields": fields})))
    assert told["error"] == {"code": "mismatch", "fields": {"verdict": "1.1"}}


def test_of_a_timeout_all_members_are_asked_and_everybody_hears_one_verdict() -> None:
    group = running(4)
    question = {"inquiry": 1, "epoch": 1, "group": 3, "lowest": 0, "seq": 4}
    report = failed(1, 4, group=3, members=(2, 0, 1), error=TIMEOUT)
    assert group.say(report) == [Send((2, 0, 1), "inquire", question)]
    assert group.say(failed(0, 4, group=3, members=(2, 0, 1), error=TIMEOUT)) == []
    assert group.say(OpAnswered(0, 1, waiting(0, 1)), OpAnswered(1, 1, waiting(1, 2))) == []
    (told,) = group.say(OpAnswered(2, 1, Answer(2, "absent", trainer="sleeping", next_seq=4)))
    assert isinstance(told, Send)
    assert (told.to, told.type) == ((0, 1, 2, 3), "abort")
    error = told.fields["error"]
    assert (error["code"], error["fields"]["culprits"]) == ("timeout", [2])
    assert error["fields"]["verdict"] == "1.1"
    assert group.say(failed(2, 4, group=3, members=(2, 0, 1), error=TIMEOUT)) == []


def test_a_daemon_that_does_not_answer_is_waited_for_no_longer_than_the_limit() -> None:
    group = running(3)
    began = group.now
    group.say(failed(1, 4, error=TIMEOUT))
    assert group.membership.next_deadline() == began + INQUIRY_S
    group.say(OpAnswered(0, 1, waiting(0, 2)), OpAnswered(1, 1, waiting(1, 0)))
    group.now = began + INQUIRY_S - 0.001
    assert group.say(Tick()) == []
    group.now = began + INQUIRY_S
    (told,) = aborts(group.say(Tick()))
    assert told["error"]["fields"]["culprits"] == [2]
    assert told["error"]["fields"]["case"] == "daemon does not answer"
    assert group.say(OpAnswered(2, 1, waiting(2, 1))) == []


def test_a_daemon_that_goes_meanwhile_is_not_waited_for() -> None:
    group = running(3)
    group.say(failed(1, 4, error=TIMEOUT))
    group.say(OpAnswered(0, 1, waiting(0, 2)), OpAnswered(1, 1, waiting(1, 0)))
    out = group.say(DaemonLost(2, "reset"))
    assert [send.type for send in out if isinstance(send, Send)] == ["lost", "abort", "waiting"]
    assert aborts(out)[0]["error"]["fields"]["culprits"] == [2]


def test_a_question_of_an_epoch_that_is_over_is_forgotten() -> None:
    group = running(2)
    group.say(failed(0, 0, members=(0, 1), error=TIMEOUT), goodbye(0), goodbye(1))
    out = group.attach(0, 1, attempt=2)
    assert sends(out, "start")
    assert not sends(out, "abort")
    assert group.say(OpAnswered(0, 1, waiting(0, 1)), OpAnswered(1, 1, waiting(1, 0))) == []
    group.now += 1
    assert group.say(Tick()) == []
    (question,) = sends(group.say(failed(0, 0, epoch=2, members=(0, 1), error=TIMEOUT)), "inquire")
    assert question.fields["inquiry"] == 2


def test_more_questions_than_the_bound_are_not_asked_and_the_first_view_stands() -> None:
    group = running(3)
    for seq in range(MAX_INQUIRIES):
        assert sends(group.say(failed(0, seq, error=TIMEOUT)), "inquire")
    (told,) = aborts(group.say(failed(0, MAX_INQUIRIES, error=TIMEOUT)))
    assert told["error"]["message"] == "late"
    assert told["error"]["fields"]["verdict"] == "1.1"
    group.now += INQUIRY_S
    assert len(aborts(group.say(Tick()))) == MAX_INQUIRIES
    assert sends(group.say(failed(0, MAX_INQUIRIES + 1, error=TIMEOUT)), "inquire")


def test_groups_with_one_number_and_no_common_member_are_told_apart() -> None:
    """Ranks 0, 1 and ranks 2, 3 made a group each: both have number 1."""
    group = running(4)
    for rank, peer, members in ((1, 0, (1, 0)), (3, 2, (2, 3))):
        report = failed(rank, 6, group=1, members=members, error=MISMATCH)
        (told,) = aborts(group.say(report))
        assert (told["group"], told["lowest"], told["seq"]) == (1, min(members), 6)
        assert group.say(failed(peer, 6, group=1, members=members, error=MISMATCH)) == []


@pytest.mark.parametrize("members", [(0, 2), (0, 1, 3), (0, 1, 1)])
def test_a_report_on_members_that_are_no_group_of_the_reporters_costs_it_its_place(
    members: tuple[int, ...],
) -> None:
    group = running(3)
    out = group.say(failed(1, 4, members=members, error=TIMEOUT))
    assert out[0] == Drop(1, "it reports on a group that can't be its own")
    assert not sends(out, "inquire")


def test_the_memory_of_failed_operations_is_bounded() -> None:
    group = running(2)
    for seq in range(MAX_FAILED_OPS):
        group.say(failed(0, seq, members=(0, 1)))
    assert group.say(failed(1, 0, members=(0, 1))) == []
    group.say(failed(0, MAX_FAILED_OPS, members=(0, 1)))
    assert sends(group.say(failed(1, 0, members=(0, 1))), "abort")
    assert group.say(failed(1, MAX_FAILED_OPS, members=(0, 1))) == []


def test_a_new_epoch_counts_its_operations_anew() -> None:
    group = running(2)
    group.say(failed(0, 0, members=(0, 1)), goodbye(0), goodbye(1))
    group.attach(0, 1, attempt=2)
    (told,) = aborts(group.say(failed(0, 0, epoch=2, members=(0, 1))))
    assert told["error"]["fields"]["verdict"] == "2.2", "numbers are never used twice"


# Silence


def test_a_silent_daemon_is_dropped_at_its_limit_and_not_before() -> None:
    group = running(2)
    group.now += 2
    group.say(Heartbeat(0))
    assert group.membership.next_deadline() == 103.0
    group.now = 102.999
    assert group.say(Tick()) == []
    group.now = 103.0
    assert group.say(Tick()) == [
        Drop(1, "silent for 3 s"),
        Send((0,), "lost", lost(1, "daemon lost", "silent for 3 s")),
        Send((0,), "waiting", here([0], [], (0,))),
    ]
    assert group.membership.next_deadline() == 105.0


def test_whatever_a_daemon_says_is_a_sign_of_its_life() -> None:
    group = running(1)
    group.now += 1.25
    group.say(failed(0, 0, members=(0,)))
    assert group.membership.next_deadline() == 104.25


def test_a_daemon_that_never_joins_loses_its_place() -> None:
    group = Group(2)
    group.say(DaemonAdmitted(1, "10.0.0.1:5000"))
    group.now += 3
    assert [type(i) for i in group.say(Tick())] == [BeginAnew]
    assert group.membership.anew().refusal(1) is None


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_a_rendezvous_that_heard_nobody_begins_anew_and_blames_nobody(n: int) -> None:
    group = running(n)
    group.now += 0.9
    group.say(Heartbeat(n - 1))
    due = group.membership.next_deadline()
    assert due == 103.9
    group.now = 103.5
    assert group.say(Tick()) == [], "a silent daemon is no lost one as long as it may be us"
    group.now = due
    (anew,) = group.say(Tick())
    assert isinstance(anew, BeginAnew)


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_connection_that_ends_after_we_were_held_up_is_no_loss(closed: int) -> None:
    group = running(3)
    group.now += 4
    # What piled up meanwhile is read in any order.
    for rank in range(3):
        if rank != closed:
            assert group.say(Heartbeat(rank)) == []
    (anew,) = group.say(DaemonLost(closed, "closed without a goodbye"))
    assert isinstance(anew, BeginAnew)


def test_long_after_we_were_held_up_a_connection_that_ends_is_a_loss_again() -> None:
    group = running(3)
    group.now += 4
    group.say(*map(Heartbeat, range(3)))
    group.now += 1
    out = group.say(*map(Heartbeat, range(3)), DaemonLost(1, "reset"))
    assert Send((0, 2), "lost", lost(1, "daemon lost", "reset")) in out


def test_daemons_that_beat_slowly_do_not_make_us_doubt() -> None:
    group = running(2)
    for _ in range(4):
        group.now += 1.4
        group.say(Heartbeat(0), Heartbeat(1))
    out = group.say(DaemonLost(1, "reset"))
    assert Send((0,), "lost", lost(1, "daemon lost", "reset")) in out


def test_what_begins_anew_remembers_the_numbers_and_the_verdicts() -> None:
    group = running(2)
    group.say(TrainerDetached(1, "died", "killed", 1))
    fresh = group.membership.anew()
    assert (fresh.epoch, fresh.joined(), fresh.highest_epoch) == (0, (), 1)
    assert fresh.number() == "0.2"
    assert [verdict["rank"] for verdict in fresh.status()["verdicts"]] == [1]
    group.membership = fresh
    group.join(0)
    group.join(1)
    group.attach(0, 1)
    assert fresh.epoch == 2, "an epoch's number is never used twice"


def test_an_empty_group_needs_no_alarm() -> None:
    assert Membership(2).next_deadline() is None


# Status


def test_the_status_says_who_is_here_and_what_each_trainer_does() -> None:
    group = running(3)
    group.say(goodbye(0), TrainerAttached(0, 2), TrainerDetached(1, "died", "signal 9", 1))
    status = group.membership.status()
    assert status["epoch"] == 1
    assert (status["joined"], status["attached"], status["running"]) == ([0, 1, 2], [0], [2])
    assert [d["trainer"] for d in status["daemons"]] == ["waiting", "none", "running"]
    assert status["daemons"][2]["address"] == "10.0.0.2:4000"
    assert status["verdicts"] == [lost(1, "trainer died", "signal 9")]
