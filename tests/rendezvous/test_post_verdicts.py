"""Verdicts on messages, from what the two sides say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ringd.engine import failures
from ringd.errors import CollectiveMismatchError, CollectiveTimeoutError, InvalidArgumentError
from ringd.rendezvous.events import PostFailed
from ringd.rendezvous.hearing import post_verdict_of, question_of
from ringd.rendezvous.intake import event_of
from ringd.rendezvous.post_verdicts import judge_post, verdict_fields
from ringd.rendezvous.verdicts import Answer, FlowView, State
from ringd.vocabulary import OpSpec
from ringd.wire.frame import FrameError

RECV = PostFailed(0, 1, 0, (0, 1, 2), 5, "recv", 7, ((1, 0),))
ANY = replace(RECV, peers=((1, 0), (2, 0)))
SEND = replace(RECV, op="send")
STACK = ("train.py:9 in load",)
AWAY = Answer(1, "absent", trainer="sleeping", pid=11, stack=STACK)


def asker(received: int = 0, quiet_s: float = 1.0, entered_s: float = 2.0) -> Answer:
    flows = {1: FlowView(100, received, 0, quiet_s)}
    return Answer(0, "waiting", entered_s=entered_s, waiting_on=(1,), flows=flows)


@pytest.mark.parametrize(
    ("failed", "answers", "case", "culprits", "text"),
    [
        (RECV, [AWAY], "never entered", (1,), "rank 1 never made the matching send"),
        (SEND, [AWAY], "never entered", (1,), "rank 1 never made the matching receive"),
        (
            RECV,
            [replace(AWAY, trainer="stopped", stack=())],
            "trainer stopped",
            (1,),
            "rank 1 (process 11) is stopped",
        ),
        (RECV, [replace(AWAY, trainer="none")], "no trainer attached", (1,), "no trainer"),
        (RECV, [], "daemon does not answer", (1,), "the daemon of rank 1 does not answer"),
        (
            RECV,
            [Answer(1, "waiting", entered_s=0.3)],
            "entered late",
            (1,),
            "rank 1 made the matching send late",
        ),
        (RECV, [Answer(1, "done")], "link down", (1,), "the link 1→0 does not carry anything"),
        (SEND, [Answer(1, "done")], "link down", (0,), "the link 0→1 does not carry anything"),
        (RECV, [Answer(1, "failed", idle_s=9.0)], "entered late", (0,), "had given up"),
        (RECV, [Answer(1, "failed", idle_s=1.0)], "link down", (1,), "while both sides waited"),
        (
            RECV,
            [Answer(1, "done", made_s=0.001)],
            "entered late",
            (1,),
            "send late (after the first rank: rank 1 2.00 s)",
        ),
        (SEND, [Answer(1, "done", made_s=0.001)], "entered late", (1,), "receive late"),
        (RECV, [Answer(1, "done", made_s=1.9)], "link down", (1,), "does not carry anything"),
        (SEND, [Answer(1, "done", made_s=1.9)], "link down", (0,), "does not carry anything"),
        (RECV, [Answer(1, "failed", idle_s=1.0, made_s=2.5)], "link down", (1,), "both sides"),
        (RECV, [Answer(1, "failed", idle_s=1.999, made_s=3.0)], "entered late", (0,), "came late"),
        (RECV, [Answer(1, "failed", idle_s=0.1, made_s=0.3)], "entered late", (1,), "send late"),
        (RECV, [Answer(1, "failed", idle_s=1.7, made_s=2.1)], "unknown", (), "could meet"),
        (
            ANY,
            [Answer(1, "done", made_s=0.001), replace(AWAY, rank=2)],
            "entered late",
            (1,),
            "rank 1 made the matching send late",
        ),
        (ANY, [AWAY, replace(AWAY, rank=2)], "never entered", (1, 2), "ranks 1 and 2 never"),
        (ANY, [AWAY, Answer(2, "waiting", entered_s=0.2)], "entered late", (2,), "rank 2 made"),
    ],
)
def test_the_verdict_on_a_message(
    failed: PostFailed, answers: list[Answer], case: str, culprits: tuple[int, ...], text: str
) -> None:
    found = {answer.rank: answer for answer in (asker(), *answers)}
    verdict = judge_post(failed, found)
    assert (verdict.case, verdict.culprits) == (case, culprits)
    assert text in verdict.text
    if case == "never entered":
        assert verdict.stacks == dict.fromkeys(culprits, STACK)
    if case == "trainer stopped":
        assert "kill -CONT 11" in verdict.advice


@pytest.mark.parametrize("failed", [RECV, SEND])
@pytest.mark.parametrize("state", ["done", "waiting"])
@pytest.mark.parametrize(("waited_s", "case"), [(0.99, "link down"), (0.49, "unknown")])
def test_a_link_that_had_no_time_to_carry_it_is_not_down(
    failed: PostFailed, state: State, waited_s: float, case: str
) -> None:
    own = asker(entered_s=waited_s, quiet_s=9.0)
    met = Answer(1, state, entered_s=waited_s, made_s=waited_s)
    verdict = judge_post(failed, {0: own, 1: met})
    assert (verdict.case, bool(verdict.culprits)) == (case, case == "link down")


def test_a_link_that_moves_is_slow() -> None:
    verdict = judge_post(RECV, {0: asker(received=10, quiet_s=0.1), 1: Answer(1, "done")})
    assert (verdict.case, verdict.link) == ("slow link", (1, 0))


def test_question_and_verdict_survive_their_way() -> None:
    kind, question = RECV.question(3)
    assert kind == "inquire_post"
    assert question_of({"type": kind, **question}) == {**question, "peers": ((1, 0),)}
    told = verdict_fields(RECV, judge_post(RECV, {0: asker(), 1: AWAY}), "1.4")
    assert post_verdict_of({"type": "post_verdict", **told}) == told
    assert (told["number"], told["stacks"]) == (5, {"1": list(STACK)})


FIELDS = {
    "epoch": 1, "group": 0, "members": [0, 1, 2], "number": 5, "op": "recv", "tag": 7,
    "peers": [[1, 0]],
}  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"op": "barrier"},
        {"peers": []},
        {"peers": [[0, 0]]},
        {"peers": [[3, 0]]},
        {"peers": [[1, 0], [1, 0]]},
        {"members": []},
        {"tag": "7"},
    ],
)
def test_a_report_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    assert event_of(0, "post_failed", FIELDS) == RECV
    with pytest.raises(FrameError):
        event_of(0, "post_failed", FIELDS | wrong)


def test_who_was_stopped_reads_so_of_itself() -> None:
    error = CollectiveTimeoutError("It ended.", case="trainer stopped", culprits=[1])
    assert str(failures.too_late(error, 1)).endswith("when it ended: this rank was stopped.")
    assert "this rank was stopped" not in str(failures.too_late(error, 0))


def test_a_refused_call_is_told_by_its_own_name() -> None:
    spec = OpSpec("all_reduce", "", "", ())
    cause = InvalidArgumentError("no", call="broadcast_object")
    error = failures.refused_locally(seq=0, epoch=1, rank=2, spec=spec, cause=cause)
    assert isinstance(error, CollectiveMismatchError)
    assert "on rank 2 the call broadcast_object was refused" in str(error)
    assert error.fields["calls"] == {"2": "broadcast_object"}
    plain = failures.refused_locally(
        seq=0, epoch=1, rank=2, spec=spec, cause=InvalidArgumentError("no")
    )
    assert f"the call {spec} was refused" in str(plain)
