"""Sends and receives that are stuck, each beside its other side: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ringd.observe.explain_report import NO_DUMP, Message
from ringd.observe.outcomes import DONE, FAILED, IN_FLIGHT
from ringd.observe.records import Op, RankDump
from ringd.vocabulary import ANY_SOURCE, RECV, SEND


def messages(dumps: Mapping[int, RankDump], epoch: int) -> Iterator[Message]:
    """All that are in flight, or failed, with how the other side stands."""
    for rank, dump in sorted(dumps.items()):
        for op in dump.operations:
            if op.seq is None and op.epoch == epoch and op.state in (IN_FLIGHT, FAILED):
                yield _stuck(rank, op, dumps)


def _stuck(rank: int, op: Op, dumps: Mapping[int, RankDump]) -> Message:
    if op.peer == ANY_SOURCE:
        return Message(rank, op, "any")
    if op.peer not in dumps:
        return Message(rank, op, NO_DUMP)
    theirs = [
        other
        for other in dumps[op.peer].operations
        if other.op == (RECV if op.op == SEND else SEND)
        and (other.epoch, other.group, other.tag) == (op.epoch, op.group, op.tag)
        and other.peer in (rank, ANY_SOURCE)
    ]
    waiting = [other for other in theirs if other.state == IN_FLIGHT]
    for other in waiting or [o for o in theirs if o.state == FAILED]:
        same = _kind_of(other) == _kind_of(op)
        return Message(rank, op, "posted" if same else "differs", other)
    if op.op == RECV:
        got = [o.number for o in dumps[rank].operations if _is_like(o, op) and o.state == DONE]
        sent = [o for o in theirs if o.number > max(got, default=-1)]
        if sent:
            return Message(rank, op, "sent", sent[0])
    return Message(rank, op, "not posted")


def _is_like(one: Op, other: Op) -> bool:
    return (one.op, one.epoch, one.group, one.peer, one.tag) == (
        other.op, other.epoch, other.group, other.peer, other.tag,
    )  # fmt: skip


def _kind_of(op: Op) -> tuple[str, int]:
    """What both sides of a message must have alike: dtype, and size."""
    dtype = next((word for word in op.call.split() if word.startswith("dtype=")), "")
    return dtype, op.bytes_total
