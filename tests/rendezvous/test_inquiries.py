"""The questions that are under way: who is asked, when one ends, and what its error says."""

from __future__ import annotations

from typing import Any

import pytest

from ringd.errors import CollectiveTimeoutError, from_wire
from ringd.rendezvous.events import OpAnswered, OpFailed, Send
from ringd.rendezvous.inquiries import INQUIRY_S, MAX_INQUIRIES, Inquiries, error_of
from ringd.rendezvous.verdicts import Answer, Case, Verdict

PRESENT = (0, 1, 2)


def failed(
    seq: int, members: tuple[int, ...] = (0, 1, 2), group: int = 0, **fields: Any
) -> OpFailed:
    return OpFailed(0, 1, group, members, seq, {"code": "timeout", "fields": fields})


def answered(rank: int, inquiry: int) -> OpAnswered:
    return OpAnswered(rank, inquiry, Answer(rank, "waiting", waiting_on=(2,)))


def seqs(inquiries: Inquiries, now: float) -> list[int]:
    return [inquiry.first.seq for inquiry in inquiries.ended(now)]


def test_the_members_that_are_here_are_asked_and_the_question_ends_with_the_last_answer() -> None:
    inquiries = Inquiries()
    fields = {"inquiry": 1, "epoch": 1, "group": 5, "lowest": 1, "seq": 7}
    asked = inquiries.begin(failed(7, (3, 1, 2), group=5), (0, 1, 2), now=10.0)
    assert asked == Send((1, 2), "inquire", fields)
    assert inquiries.next_deadline() == 10.0 + INQUIRY_S
    for rank in (1, 2):
        assert seqs(inquiries, 10.0) == []
        inquiries.answer(answered(rank, 1), PRESENT, now=0.0)
    (ended,) = inquiries.ended(10.0)
    assert sorted(ended.answers) == [1, 2]
    assert inquiries.next_deadline() is None
    assert seqs(inquiries, 99.0) == []


def test_each_question_ends_at_its_own_time_with_those_who_answered() -> None:
    inquiries = Inquiries()
    inquiries.begin(failed(0), (0, 1, 2), now=0.0)
    inquiries.begin(failed(1), (0, 1, 2), now=0.05)
    inquiries.answer(answered(1, 2), PRESENT, now=0.0)
    assert seqs(inquiries, INQUIRY_S - 0.001) == []
    assert seqs(inquiries, INQUIRY_S) == [0]
    (ended,) = inquiries.ended(0.05 + INQUIRY_S)
    assert (ended.first.seq, sorted(ended.answers)) == (1, [1])
    assert ended.judge().culprits == (0, 2)


@pytest.mark.parametrize(("rank", "inquiry"), [(0, 2), (3, 1), (0, 0)])
def test_an_answer_that_nobody_waits_for_is_dropped(rank: int, inquiry: int) -> None:
    inquiries = Inquiries()
    inquiries.begin(failed(0, (0, 1)), (0, 1), now=0.0)
    inquiries.answer(answered(rank, inquiry), PRESENT, now=0.0)
    (ended,) = inquiries.ended(INQUIRY_S)
    assert ended.answers == {}


def test_a_second_answer_of_a_rank_changes_nothing() -> None:
    inquiries = Inquiries()
    inquiries.begin(failed(0, (0, 1)), (0, 1), now=0.0)
    inquiries.answer(answered(0, 1), PRESENT, now=0.0)
    inquiries.answer(OpAnswered(0, 1, Answer(0, "done")), PRESENT, now=0.0)
    (ended,) = inquiries.ended(INQUIRY_S)
    assert ended.answers[0].state == "waiting"


def test_a_daemon_that_is_gone_is_not_waited_for_and_where_nobody_is_nothing_is_asked() -> None:
    inquiries = Inquiries()
    inquiries.begin(failed(0, (0, 1)), (0, 1), now=0.0)
    inquiries.answer(answered(0, 1), PRESENT, now=0.0)
    inquiries.gone(1)
    assert seqs(inquiries, 0.0) == [0]
    assert inquiries.begin(failed(1, (0, 1)), (2,), now=0.0) is None
    assert inquiries.next_deadline() is None


def test_no_more_than_the_bound_are_under_way() -> None:
    inquiries = Inquiries()
    for seq in range(MAX_INQUIRIES):
        assert inquiries.begin(failed(seq), (0, 1, 2), now=0.0) is not None
    assert inquiries.begin(failed(MAX_INQUIRIES), (0, 1, 2), now=0.0) is None
    assert len(inquiries.ended(INQUIRY_S)) == MAX_INQUIRIES
    assert inquiries.begin(failed(MAX_INQUIRIES), (0, 1, 2), now=1.0) is not None


def test_a_new_epoch_forgets_all_and_old_answers_fit_nothing() -> None:
    inquiries = Inquiries()
    inquiries.begin(failed(0, (0, 1)), (0, 1), now=0.0)
    inquiries.clear()
    assert inquiries.next_deadline() is None
    inquiries.begin(failed(0, (0, 1)), (0, 1), now=0.0)
    inquiries.answer(answered(0, 1), PRESENT, now=0.0)
    (ended,) = inquiries.ended(INQUIRY_S)
    assert ended.answers == {}


# The error


def found(case: Case, *culprits: int, **more: Any) -> Verdict:
    return Verdict(case, culprits, more.pop("link", None), "who and why", "What to do", **more)


def test_the_error_is_the_reported_one_with_the_verdicts_facts_and_text() -> None:
    report = failed(
        9, op="all_reduce", setting="timeout_s", limit="its deadline of 2 s", elapsed_s=2.01,
        rank=1, waiting_on=[0], bytes_done=3,
    )  # fmt: skip
    verdict = found("never entered", 2, stacks={2: ("a.py:1 in f",)}, chain=(0, 1))
    error = from_wire(error_of(report, verdict, "1.7"))
    assert isinstance(error, CollectiveTimeoutError)
    assert str(error) == (
        "all_reduce (operation 9 of the world, epoch 1) ended at its deadline of 2 s: who and why. "
        "What to do. If it is only slow, raise timeout_s."
    )
    assert error.fields == {
        "op": "all_reduce", "group": 0, "epoch": 1, "seq": 9, "setting": "timeout_s",
        "elapsed_s": 2.01, "verdict": "1.7", "case": "never entered", "culprits": [2],
        "waiting_on": [2], "link": None, "stacks": {"2": ["a.py:1 in f"]}, "chain": [0, 1],
        "partial": False,
    }  # fmt: skip


def test_a_group_is_named_and_a_link_told_by_both_ends() -> None:
    error = error_of(failed(9, group=3), found("slow link", 1, link=(1, 2)), "1.7")
    assert error["message"].startswith("an operation (operation 9 of group 3, epoch 1) ended at")
    assert error["fields"]["link"] == [1, 2]


@pytest.mark.parametrize(
    ("case", "may_be_slow"),
    [
        ("never entered", True),
        ("entered late", True),
        ("slow link", True),
        ("unknown", True),
        ("trainer stopped", False),
        ("no trainer attached", False),
        ("daemon does not answer", False),
        ("link down", False),
    ],
)
def test_a_longer_limit_is_offered_only_where_it_may_help(case: Case, may_be_slow: bool) -> None:
    error = error_of(failed(0, setting="recv_timeout_ms"), found(case, 1), "1.1")
    assert ("raise recv_timeout_ms" in error["message"]) == may_be_slow


def test_of_a_barrier_the_culprits_are_also_the_late_ranks() -> None:
    error = error_of(failed(0, op="barrier"), found("never entered", 1, 2), "1.1")
    assert error["fields"]["late_ranks"] == [1, 2]


@pytest.mark.parametrize("error", [{}, {"fields": None}, {"code": "timeout", "fields": {}}])
def test_a_report_that_says_little_gives_a_whole_error(error: dict[str, Any]) -> None:
    report = OpFailed(0, 1, 0, (0, 1), 3, error)
    told = from_wire(error_of(report, found("never entered", 1), "1.1"))
    assert isinstance(told, CollectiveTimeoutError)
    assert told.fields["culprits"] == [1]
