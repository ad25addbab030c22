"""Who or what holds up a send or a receive: the same judgement as of an operation, of two sides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ringd.rendezvous.events import PostFailed
from ringd.rendezvous.verdicts import (
    LATE_SHARE,
    QUIET_S,
    Answer,
    Verdict,
    Words,
    judge,
)
from ringd.vocabulary import SEND, ranks_text

_OTHER_SIDE = {"send": "receive", "recv": "send"}


def judge_post(failed: PostFailed, answers: Mapping[int, Answer]) -> Verdict:
    """The verdict on a message that does not come to its end.

    Of a receive from any, who has sent (or is about to) leaves the others without blame.

    Args:
        answers: by rank; who is missing did not answer in time.
    """
    asker = failed.rank
    peers = [peer for peer, _ in failed.peers]
    active = [p for p in peers if p in answers and answers[p].state != "absent"]
    members = {asker, *(active or peers)}
    # What moves, the asker's view says: of a send turned round, as it moves to the peer.
    found = {r: replace(a, flows={}) for r, a in answers.items() if r in members and r != asker}
    other = _OTHER_SIDE[failed.op]
    if active and all(answers[peer].state == "failed" for peer in active):
        return _missed(answers, asker, tuple(active), other)
    own = answers.get(asker, Answer(asker, "waiting", waiting_on=tuple(peers)))
    found[asker] = replace(own, state="waiting", waiting_on=tuple(active or peers))
    if failed.op == SEND and active:
        _turn(found, asker, active[0])
    words = Words(
        absent=f"never made the matching {other}",
        late=f"made the matching {other}",
        call=other,
        same=f"matching {other}",
    )
    return judge(found, members, 0, words)


def _missed(
    answers: Mapping[int, Answer], asker: int, peers: tuple[int, ...], other: str
) -> Verdict:
    """The other side had come to its own deadline: before this one began, or while both waited. A
    link is down only if they did so for a while."""
    whom, gave_up = ranks_text(peers), f"the matching {other}, at its own deadline"
    theirs = answers[min(peers, key=lambda rank: answers[rank].idle_s)]
    peer, idle_s, made_s = theirs.rank, theirs.idle_s, theirs.made_s
    entered_s = answers[asker].entered_s if asker in answers else 0.0
    if min(entered_s, made_s) - idle_s >= QUIET_S:
        return Verdict(
            case="link down",
            culprits=(peer,),
            link=(peer, asker),
            text=f"{whom} had given up {gave_up}, while both sides waited",
            advice=f"Look at the network between ranks {peer} and {asker}",
        )
    if entered_s - idle_s < LATE_SHARE * (made_s - idle_s):
        return Verdict(
            case="entered late",
            culprits=(asker,),
            link=None,
            text=f"{whom} had given up {gave_up}: this one came late",
            advice=f"Find out what keeps rank {asker} busy before it, or give {whom} more time",
        )
    if made_s < LATE_SHARE * entered_s:
        return Verdict(
            case="entered late",
            culprits=(peer,),
            link=None,
            text=f"rank {peer} made the matching {other} late, and had given it up, at its own "
            "deadline",
            advice=f"Find out what keeps rank {peer} busy before it, or give it more time",
        )
    return Verdict(
        case="unknown",
        culprits=(),
        link=None,
        text=f"{whom} had given up {gave_up}, before the two could meet",
        advice="Give both sides more time",
    )


def _turn(found: dict[int, Answer], asker: int, peer: int) -> None:
    view = found[asker].flows.get(peer)
    if view is not None:
        theirs = found[peer]
        since_s = theirs.since_s
        entered_s = since_s if since_s < math.inf else found[asker].entered_s
        found[peer] = replace(theirs, state="waiting", entered_s=entered_s, flows={asker: view})
        found[asker] = replace(found[asker], flows={})


def verdict_fields(failed: PostFailed, verdict: Verdict, number: str) -> dict[str, Any]:
    """What asker and other side are told; ``number``: the verdict's id."""
    return {
        "epoch": failed.epoch,
        "number": failed.number,
        "verdict": number,
        "case": verdict.case,
        "culprits": list(verdict.culprits),
        "link": None if verdict.link is None else list(verdict.link),
        "text": verdict.text,
        "advice": verdict.advice,
        "stacks": {str(rank): list(stack) for rank, stack in verdict.stacks.items()},
        "rank": failed.rank,
        "chain": list(verdict.chain),
    }
