"""From a daemon's control message to an event: every field is checked, whoever sent it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

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
    ReformWanted,
    TrainerAttached,
    TrainerDetached,
)
from ringd.rendezvous.hearing import (
    MAX_CLAIMED,
    Fields,
    address_of,
    clip,
    lost_of,
    pairs,
    places_of,
    raised_in,
)
from ringd.rendezvous.news import Claim
from ringd.rendezvous.verdicts import Answer, FlowView
from ringd.vocabulary import MAX_WORLD, POINT_TO_POINT
from ringd.wire.control import field, int_list
from ringd.wire.frame import FrameError

MAX_FRAMES = 16
MAX_WAITS = 16
"""Calls in flight that an answer may tell."""
MAX_WAIT_S = 400 * 86400.0
_STATES = frozenset({"waiting", "done", "failed", "absent"})
_HOWS = frozenset({"goodbye", "died", "raised", "gave_up"})


def event_of(rank: int, kind: str, fields: Fields) -> FromDaemon | None:
    """The event that the message ``kind`` of this rank's daemon is; None: it is not one.

    Raises:
        FrameError: a field is missing or malformed.
    """
    reader = _READERS.get(kind)
    return reader(rank, fields) if reader is not None else None


def _join(rank: int, fields: Fields) -> FromDaemon:
    return DaemonJoined(
        rank,
        address_of(fields.get("address")),
        pid=field(fields, "pid", int),
        host=field(fields, "host", str)[:255],
        version=field(fields, "version", str)[:64],
        sizes=tuple(int_list(fields, "sizes")),
        claim=_claim(fields.get("claim")),
    )


def _claim(claim: Any) -> Claim | None:
    if claim is None:
        return None
    if not isinstance(claim, dict):
        raise FrameError("join: a claim is a map")
    epoch, n_verdicts = field(claim, "epoch", int), field(claim, "n_verdicts", int)
    members, lost = tuple(int_list(claim, "members")), field(claim, "lost", list)
    in_order = 1 <= len(members) <= MAX_WORLD and len(set(members)) == len(members)
    if epoch < 1 or n_verdicts < 0 or not in_order or len(lost) > MAX_CLAIMED:
        raise FrameError("join: a claim of no epoch that there could be")
    found = tuple(lost_of(entry) for entry in lost)
    running, addresses = field(claim, "running", bool), places_of(claim, "addresses")
    return Claim(epoch, members, running, n_verdicts, found, addresses)


def _attach(rank: int, fields: Fields) -> FromDaemon:
    return TrainerAttached(rank, _attempt(fields))


def _attempt(fields: Fields) -> int:
    attempt = field(fields, "attempt", int)
    if attempt < 1:
        raise FrameError(f"{fields.get('type')}: attempts count from 1")
    return attempt


def _detach(rank: int, fields: Fields) -> FromDaemon:
    how: Any = field(fields, "how", str)
    if how not in _HOWS:
        raise FrameError(f"detach: unknown way to go {how[:32]!r}")
    detail = clip(field(fields, "detail", str))
    epoch, next_seq = field(fields, "epoch", int), field(fields, "next_seq", int)
    groups, raised = pairs(fields, "groups"), raised_in(fields)
    return TrainerDetached(rank, how, detail, epoch, next_seq, groups, raised)


def _reform(rank: int, fields: Fields) -> FromDaemon:
    agreed = fields.get("agreed")
    if agreed is not None:
        ((seq, value),) = pairs({"type": "reform", "agreed": [agreed]}, "agreed")
        agreed = (seq, value)
    timeout_s = field(fields, "timeout_s", float)
    if not 0 < timeout_s < MAX_WAIT_S:
        raise FrameError("reform: timeout_s is out of range")
    return ReformWanted(
        rank,
        field(fields, "epoch", int),
        _attempt(fields),
        field(fields, "min_size", int),
        timeout_s,
        tuple(int_list(fields, "cut_off")),
        field(fields, "last_done", int),
        field(fields, "unbroken", int),
        agreed,
    )


def _link_lost(rank: int, fields: Fields) -> FromDaemon:
    reason = clip(field(fields, "reason", str))
    peer, epoch = field(fields, "peer", int), field(fields, "epoch", int)
    return LinkLost(rank, peer, reason, epoch, own=fields.get("own") is True)


def _op_failed(rank: int, fields: Fields) -> OpFailed:
    epoch, group, seq = (field(fields, name, int) for name in ("epoch", "group", "seq"))
    members = tuple(int_list(fields, "members"))
    if not 1 <= len(members) <= MAX_WORLD:
        raise FrameError(f"op_failed: a group of {len(members)} ranks")
    return OpFailed(rank, epoch, group, members, seq, field(fields, "error", dict))


def _post_failed(rank: int, fields: Fields) -> PostFailed:
    epoch, group, number, tag = (field(fields, n, int) for n in ("epoch", "group", "number", "tag"))
    members, op = tuple(int_list(fields, "members")), field(fields, "op", str)
    peers = pairs(fields, "peers")
    if not 1 <= len(members) <= MAX_WORLD or op not in POINT_TO_POINT:
        raise FrameError(f"post_failed: a {op[:32]!r} in a group of {len(members)} ranks")
    if not peers or len({p for p, _ in peers} & set(members) - {rank}) < len(peers):
        raise FrameError("post_failed: the other side is no other member")
    return PostFailed(rank, epoch, group, members, number, op, tag, peers)


def _op_answered(rank: int, fields: Fields) -> FromDaemon:
    state: Any = field(fields, "state", str)
    if state not in _STATES:
        raise FrameError(f"op_answer: unknown state {state[:32]!r}")
    stack = field(fields, "stack", list)
    answer = Answer(
        rank,
        state,
        entered_s=field(fields, "entered_s", float),
        idle_s=field(fields, "idle_s", float),
        waiting_on=tuple(int_list(fields, "waiting_on")),
        bytes_done=field(fields, "bytes_done", int),
        bytes_total=field(fields, "bytes_total", int),
        flows=_flows(field(fields, "flows", list)),
        trainer=field(fields, "trainer", str)[:32],
        pid=field(fields, "pid", int),
        stack=tuple(str(frame)[:256] for frame in stack[:MAX_FRAMES]),
        next_seq=field(fields, "next_seq", int),
        unreached=_unreached(fields.get("unreached", [])),
        made_s=field(fields, "made_s", float) if "made_s" in fields else math.inf,
    )
    waits = fields.get("waits", [])
    if not isinstance(waits, list):
        raise FrameError("op_answer: waits is no list")
    calls = tuple(_wait(rank, entry) for entry in waits[:MAX_WAITS])
    return OpAnswered(rank, field(fields, "inquiry", int), answer, calls)


def _wait(rank: int, entry: Any) -> OpFailed | PostFailed:
    """A call that is in flight on a rank, as it could report it."""
    if not isinstance(entry, dict):
        raise FrameError("op_answer: what a rank waits for is a map")
    fields = {**entry, "type": "op_answer", "epoch": 0}
    if "tag" in entry:
        return _post_failed(rank, fields)
    op = field(fields, "op", str)[:32]
    return _op_failed(rank, {**fields, "error": {"fields": {"op": op}}})


def _flows(entries: list[Any]) -> dict[int, FlowView]:
    """[[peer, owed, received, withheld, quiet_s], ...]."""
    found = {}
    for entry in entries[:MAX_WORLD]:
        if not isinstance(entry, list) or len(entry) != 5:
            raise FrameError("op_answer: a flow has five entries")
        *numbers, quiet_s = entry
        if not all(type(n) is int for n in numbers) or not isinstance(quiet_s, int | float):
            raise FrameError("op_answer: a flow is four whole numbers and a time")
        peer, owed, received, withheld = numbers
        found[peer] = FlowView(owed, received, withheld, float(quiet_s))
    return found


def _unreached(entries: Any) -> dict[int, str]:
    """[[peer, text], ...]."""
    if not isinstance(entries, list):
        raise FrameError("op_answer: unreached is no list")
    found = {}
    for entry in entries[:MAX_WORLD]:
        match entry:
            case [int(peer), str(text)]:
                found[peer] = clip(text)
            case _:
                raise FrameError("op_answer: who is unreached is a rank and a text")
    return found


_READERS: dict[str, Callable[[int, Fields], FromDaemon]] = {
    "join": _join,
    "attach": _attach,
    "detach": _detach,
    "reform": _reform,
    "link_lost": _link_lost,
    "op_failed": _op_failed,
    "op_answer": _op_answered,
    "post_failed": _post_failed,
    "want_link": lambda rank, fields: LinkWanted(rank, field(fields, "peer", int)),
    "heartbeat": lambda rank, fields: Heartbeat(rank),
    "leave": lambda rank, fields: DaemonLeft(rank),
}
