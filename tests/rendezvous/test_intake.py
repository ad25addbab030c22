"""Control messages become events, or are refused field by field."""

from __future__ import annotations

from typing import Any

import pytest

from ringd.rendezvous.events import (
    DaemonJoined,
    DaemonLeft,
    FromDaemon,
    Heartbeat,
    LinkLost,
    LinkWanted,
    OpFailed,
    TrainerAttached,
    TrainerDetached,
)
from ringd.rendezvous.intake import MAX_PAIRS, MAX_TEXT, event_of
from ringd.transport.base import Address
from ringd.wire.frame import FrameError

JOIN = {"address": ["::1", 4000], "version": "0.1", "pid": 7, "host": "b", "sizes": [1, 2]}
DETACH = {"how": "raised", "detail": "x", "epoch": 2, "next_seq": 9, "groups": []}
LINK = {"peer": 0, "reason": "reset", "epoch": 2}
FAILED = {"epoch": 2, "group": 5, "lowest": 3, "seq": 9, "error": {"code": "timeout"}}


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
        ("link_lost", LINK, LinkLost(1, 0, "reset", 2)),
        ("op_failed", FAILED, OpFailed(1, 2, 5, 3, 9, {"code": "timeout"})),
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
        ("op_failed", {**FAILED, "lowest": True}),
        ("op_failed", {k: v for k, v in FAILED.items() if k != "lowest"}),
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


def test_as_many_groups_as_a_rank_may_have_had_are_told_and_no_more() -> None:
    groups = [[number, 2 * number] for number in range(1, MAX_PAIRS + 1)]
    event = event_of(1, "detach", {"type": "detach", **DETACH, "groups": groups})
    assert isinstance(event, TrainerDetached)
    assert event.groups == tuple((number, next_seq) for number, next_seq in groups)
    with pytest.raises(FrameError, match=f"more than {MAX_PAIRS}"):
        event_of(1, "detach", {"type": "detach", **DETACH, "groups": [*groups, [0, 0]]})
