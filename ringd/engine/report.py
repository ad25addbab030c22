"""What an engine is doing now, as plain data, for ``ringd status``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringd.engine.engine import Engine

TOLD_OF = 16
"""Operations and messages that are listed; ``in_flight`` counts all."""


def state_of(engine: Engine) -> dict[str, Any]:
    """Epoch, order, groups, what is in flight, and links."""
    world = engine.world
    return {
        "epoch": world.epoch,
        "members": list(world.ranks),
        "next_seq": world.next_seq,
        "completed": engine.completed,
        "in_flight": len(engine.live) + len(engine.mail.live),
        "groups": {
            str(g.number): {"ranks": list(g.ranks), "next_seq": g.next_seq}
            for g in engine.groups
            if g.number
        },
        "operations": [
            {
                "op": op.spec.collective,
                "group": op.group.number,
                "seq": op.seq,
                "algorithm": op.plan.schedule.algorithm,
                "elapsed_s": round(engine.now() - op.started, 3),
                **op.progress(),
            }
            for op in list(engine.live)[:TOLD_OF]
        ],
        "messages": [
            {**post.facts(), "elapsed_s": round(engine.now() - post.started, 3)}
            for post in list(engine.mail.live)[:TOLD_OF]
        ],
        "broken": None if world.broken is None else str(world.broken),
        "links": {
            str(peer): {
                "peer": str(link.connection.channel.peer),
                "sent_bytes": link.sent_bytes,
                "received_bytes": link.received_bytes,
                "sent_frames": link.sent_frames,
                "resumed": link.resumed,
            }
            for peer, link in sorted(engine.links.items())
        },
    }
