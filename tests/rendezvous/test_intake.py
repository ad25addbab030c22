"""Control messages become events, or are refused field by field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ringd.rendezvous.events import (
    DaemonJoined,
    DaemonLeft,
    FromDaemon,
    Heartbeat,
    LinkLost,
    LinkWanted,
    OpAnswered,
    OpFailed,
    PostFailed,
    TrainerAttached,
    TrainerDetached,
)
from ringd.rendezvous.hearing import MAX_PAIRS, MAX_TEXT
from ringd.rendezvous.intake import MAX_FRAMES, event_of
from ringd.rendezvous.verdicts import Answer, FlowView
from ringd.transport.base import Address
from ringd.vocabulary import MAX_WORLD
from ringd.wire.frame import FrameError
from ringd.wire.raised import MAX_TEXT as MAX_MESSAGE
from ringd.wire.raised import Raised

JOIN = {"address": ["::1", 4000], "version": "0.1", "pid": 7, "host": "b", "sizes": [1, 2]}
DETACH = {"how": "raised", "detail": "x", "epoch": 2, "next_seq": 9, "groups": []}
RAISED = Raised("ValueError", "bad data", "/job/train.py", 41)
LINK = {"peer": 0, "reason": "reset", "epoch": 2}
FAILED = {"epoch": 2, "group": 5, "members": [4, 3], "seq": 9, "error": {"code": "timeout"}}
IN_BARRIER = {"op": "barrier", "group": 5, "members": [1, 3], "seq": 9}
IN_RECV = {
    "op": "recv", "group": 0, "members": [0, 1, 3], "number": -1, "tag": 7, "peers": [[3, 2]],
}  # fmt: skip
ANSWERED = {
    "inquiry": 7,
    "state": "waiting",
    "entered_s": 1.5,
    "idle_s": 0.5,
    "waiting_on": [0],
    "bytes_done": 3,
    "bytes_total": 9,
    "flows": [[0, 6, 3, 2, 0.5]],
    "trainer": "stopped",
    "pid": 44,
    "stack": ["train.py:3 in main"],
    "next_seq": 10,
}
ANSWER = Answer(
    1,
    "waiting",
    entered_s=1.5,
    idle_s=0.5,
    waiting_on=(0,),
    bytes_done=3,
    bytes_total=9,
    flows={0: FlowView(6, 3, 2, 0.5)},
    trainer="stopped",
    pid=44,
    stack=("train.py:3 in main",),
    next_seq=10,
)


@pytest.mark.parametrize(
    ("kind", "fields", "event"),
    [
        ("join", JOIN, DaemonJoined(1, Address("::1", 4000), 7, "b", "0.1", (1, 2))),
        ("attach", {"attempt": 3}, TrainerAttached(1, 3)),
        ("detach", DETACH, TrainerDetached(1, "raised", "x", 2, 9)),
        (
            "detach",
            {**DETACH, "groups": [[4, 0], [2, 17]]},
            TrainerDetached(1, "raised", "x", 2, 9, ((4, 0), (2, 17))),
        ),
        (
            "detach",
            {**DETACH, "exception": RAISED.words()},
            TrainerDetached(1, "raised", "x", 2, 9, (), RAISED),
        ),
        (
            "detach",
            {**DETACH, "exception": {**RAISED.words(), "message": "m" * 9999}},
            TrainerDetached(1, "raised", "x", 2, 9, (), replace(RAISED, message="m" * MAX_MESSAGE)),
        ),
        ("detach", {**DETACH, "exception": None}, TrainerDetached(1, "raised", "x", 2, 9)),
        ("link_lost", LINK, LinkLost(1, 0, "reset", 2)),
        ("op_failed", FAILED, OpFailed(1, 2, 5, (4, 3), 9, {"code": "timeout"})),
        ("op_answer", ANSWERED, OpAnswered(1, 7, ANSWER)),
        (
            "op_answer",
            {**ANSWERED, "state": "done", "made_s": 0.5},
            OpAnswered(1, 7, replace(ANSWER, state="done", made_s=0.5)),
        ),
        (
            "op_answer",
            {**ANSWERED, "unreached": [[3, "at b: refused"]]},
            OpAnswered(1, 7, replace(ANSWER, unreached={3: "at b: refused"})),
        ),
        (
            "op_answer",
            {**ANSWERED, "waits": [IN_BARRIER, IN_RECV]},
            OpAnswered(
                1,
                7,
                ANSWER,
                (
                    OpFailed(1, 0, 5, (1, 3), 9, {"fields": {"op": "barrier"}}),
                    PostFailed(1, 0, 0, (0, 1, 3), -1, "recv", 7, ((3, 2),)),
                ),
            ),
        ),
        ("want_link", {"peer": 2}, LinkWanted(1, 2)),
        ("heartbeat", {}, Heartbeat(1)),
        ("leave", {}, DaemonLeft(1)),
        ("status", {"request": 1}, None),
        ("nonsense", {}, None),
    ],
)
def test_a_message_becomes_its_event(
    kind: str, fields: dict[str, Any], event: FromDaemon | None
) -> None:
    assert event_of(1, kind, {"type": kind, **fields}) == event


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("join", {**JOIN, "address": ["::1"]}),
        ("join", {**JOIN, "address": ["", 4000]}),
        ("join", {**JOIN, "address": ["a" * 256, 4000]}),
        ("join", {**JOIN, "address": ["::1", 0]}),
        ("join", {**JOIN, "address": ["::1", 65536]}),
        ("join", {**JOIN, "address": ["::1", "4000"]}),
        ("join", {**JOIN, "address": "::1"}),
        ("join", {**JOIN, "pid": None}),
        ("join", {**JOIN, "sizes": [-1]}),
        ("attach", {"attempt": 0}),
        ("attach", {"attempt": True}),
        ("attach", {}),
        ("detach", {**DETACH, "how": "vanished"}),
        ("detach", {**DETACH, "detail": 3}),
        ("detach", {k: v for k, v in DETACH.items() if k != "groups"}),
        ("detach", {**DETACH, "groups": None}),
        ("detach", {**DETACH, "exception": "ValueError"}),
        ("detach", {**DETACH, "exception": {**RAISED.words(), "line": None}}),
        ("detach", {**DETACH, "groups": {4: 0}}),
        ("detach", {**DETACH, "groups": [4, 0]}),
        ("detach", {**DETACH, "groups": [[4]]}),
        ("detach", {**DETACH, "groups": [[4, 0, 0]]}),
        ("detach", {**DETACH, "groups": [[4, 0], [5, "0"]]}),
        ("detach", {**DETACH, "groups": [[4, True]]}),
        ("detach", {**DETACH, "groups": [[4, 0.0]]}),
        ("link_lost", {**LINK, "peer": "0"}),
        ("op_failed", {**FAILED, "error": "text"}),
        ("op_failed", {**FAILED, "seq": None}),
        ("op_failed", {**FAILED, "group": "5"}),
        ("op_failed", {**FAILED, "members": []}),
        ("op_failed", {**FAILED, "members": [True]}),
        ("op_failed", {**FAILED, "members": [0, -1]}),
        ("op_failed", {**FAILED, "members": list(range(MAX_WORLD + 1))}),
        ("op_failed", {k: v for k, v in FAILED.items() if k != "members"}),
        ("op_answer", {**ANSWERED, "state": "asleep"}),
        ("op_answer", {**ANSWERED, "entered_s": 1}),
        ("op_answer", {**ANSWERED, "idle_s": None}),
        ("op_answer", {**ANSWERED, "waiting_on": [-1]}),
        ("op_answer", {**ANSWERED, "flows": [[0, 1, 2, 3]]}),
        ("op_answer", {**ANSWERED, "flows": [[0, 1, 2, "3", 0.0]]}),
        ("op_answer", {**ANSWERED, "flows": [[0, 1, 2, 3, None]]}),
        ("op_answer", {**ANSWERED, "unreached": {"3": "at b"}}),
        ("op_answer", {**ANSWERED, "unreached": [[3]]}),
        ("op_answer", {**ANSWERED, "made_s": "now"}),
        ("op_answer", {**ANSWERED, "made_s": None}),
        ("op_answer", {**ANSWERED, "unreached": [["3", "at b"]]}),
        ("op_answer", {**ANSWERED, "waits": {}}),
        ("op_answer", {**ANSWERED, "waits": ["barrier"]}),
        ("op_answer", {**ANSWERED, "waits": [{**IN_BARRIER, "members": []}]}),
        ("op_answer", {**ANSWERED, "waits": [{**IN_BARRIER, "seq": "9"}]}),
        ("op_answer", {**ANSWERED, "waits": [{**IN_RECV, "op": "barrier"}]}),
        ("op_answer", {**ANSWERED, "waits": [{**IN_RECV, "peers": [[1, 2]]}]}),
        ("op_answer", {**ANSWERED, "stack": "main"}),
        ("op_answer", {**ANSWERED, "pid": None}),
        ("op_answer", {k: v for k, v in ANSWERED.items() if k != "inquiry"}),
        ("want_link", {}),
    ],
)
def test_a_malformed_message_is_refused(kind: str, fields: dict[str, Any]) -> None:
    with pytest.raises(FrameError):
        event_of(1, kind, {"type": kind, **fields})


def test_a_long_text_is_bounded() -> None:
    event = event_of(1, "detach", {"type": "detach", **DETACH, "detail": "x" * 100_000})
    assert isinstance(event, TrainerDetached)
    assert len(event.detail) == MAX_TEXT


def test_a_stack_is_bounded_in_frames_and_characters() -> None:
    stack = ["x" * 1000] * 100
    event = event_of(1, "op_answer", {"type": "op_answer", **ANSWERED, "stack": stack})
    assert isinstance(event, OpAnswered)
    assert event.answer.stack == ("x" * 256,) * MAX_FRAMES


def test_as_many_groups_as_a_rank_may_have_had_are_told_and_no_more() -> None:
    groups = [[number, 2 * number] for number in range(1, MAX_PAIRS + 1)]
    event = event_of(1, "detach", {"type": "detach", **DETACH, "groups": groups})
    assert isinstance(event, TrainerDetached)
    assert event.groups == tuple((number, next_seq) for number, next_seq in groups)
    with pytest.raises(FrameError, match=f"more than {MAX_PAIRS}"):
        event_of(1, "detach", {"type": "detach", **DETACH, "groups": [*groups, [0, 0]]})
