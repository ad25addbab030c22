"""What this rank's program may be waiting for now: the edges of the wait-for graph.

Only the program knows which of its calls it waits for; where its main thread is, the daemon's look
at it says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringd.engine.message import Post, Send

if TYPE_CHECKING:
    from ringd.engine.engine import Engine
    from ringd.engine.operation import Operation

MAX_WAITS = 8
"""Calls of one rank that are told: the first ones, and the last."""


def waits_of(engine: Engine) -> list[dict[str, Any]]:
    """The calls in flight, oldest first; those that wait for a verdict are in flight, too. Not
    messages whose other side has left.

    Returns:
        For each the fields by which all can be asked about it: see ``wire.control``, "waits".
    """
    mail = engine.mail
    awaited = {post: peers for post in mail.live if (peers := mail.may_be_awaited(post))}
    calls: list[Post | Operation] = sorted((*awaited, *engine.live), key=lambda call: call.started)
    if len(calls) > MAX_WAITS:
        calls = [*calls[: MAX_WAITS - 1], calls[-1]]
    return [
        _of_post(call, awaited[call]) if isinstance(call, Post) else _of_operation(call)
        for call in calls
    ]


def _of_post(post: Post, peers: list[int]) -> dict[str, Any]:
    group = post.box.group
    return {
        "op": post.spec.collective,
        "group": group.number,
        "members": list(group.ranks),
        "number": -1,
        "tag": post.tag,
        "peers": [[peer, count_of(post, peer)] for peer in peers],
    }


def _of_operation(op: Operation) -> dict[str, Any]:
    return {
        "op": op.spec.collective,
        "group": op.group.number,
        "members": list(op.group.ranks),
        "seq": op.seq,
    }


def count_of(post: Post, peer: int) -> int:
    """How far a message and its other side have come.

    Returns:
        Of a receive how many messages have come from ``peer``; of a send its own number; -1: it
        was matched, or has not gone, so that it is not the peer's program that is waited for.
    """
    if isinstance(post, Send):
        return -1 if post.taken else post.number
    return -1 if post.at[0] >= 0 else post.box.came_from(peer)
