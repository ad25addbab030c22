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
from ringd.rendezvous.intake import MAX_TEXT, event_of
from ringd.transport.base import Address
from ringd.wire.frame import FrameError

JOIN = {"address": ["::1", 4000], "version": "0.1", "pid": 7, "host": "b", "sizes": [1, 2]}
DETACH = {"how": "raised", "detail": "x", "epoch": 2, "next_seq": 9}
LINK = {"peer": 0, "reason": "reset", "epoch": 2}
FAILED = {"epoch": 2, "group": 0, "seq": 9, "error": {"code": "timeout"}}


@pytest.mark.parametrize(
    ("kind", "fields", "event"),
    [
        ("join", JOIN, DaemonJoined(1, Address("::1", 4000), 7, "b", "0.1", (1, 2))),
        ("attach", {"attempt": 3}, TrainerAttached(1, 3)),
        ("detach", DETACH, TrainerDetached(1, "raised", "x", 2, 9)),
        ("link_lost", LINK, LinkLost(1, 0, "reset", 2)),
        ("op_failed", FAILED, OpFailed(1, 2, 0, 9, {"code": "timeout"})),
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
        ("link_lost", {**LINK, "peer": "0"}),
        ("op_failed", {**FAILED, "error": "text"}),
        ("op_failed", {**FAILED, "seq": None}),
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
