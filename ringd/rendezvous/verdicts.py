"""Who or what holds an operation up: a pure judgement over what every daemon says of it.

The answers are the nodes of a wait-for graph, and ``waiting_on`` its edges. A rank that waits is
not to blame; whoever the walk ends at is: a rank that never entered the call, one whose daemon does
not answer, or, where everybody waits for somebody, the link on which nothing moves.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ringd.vocabulary import ranks_text

State = Literal["waiting", "done", "failed", "absent"]
Case = Literal[
    "never entered",
    "entered late",
    "trainer stopped",
    "no trainer attached",
    "daemon does not answer",
    "link down",
    "slow link",
    "deadlock",
    "unknown",
]

LATE_SHARE = 0.5
"""Who entered only in the second half of what the others have waited entered late."""
QUIET_S = 0.5
"""A link that owes bytes and moved none for so long is down, else it is slow."""
MAX_FRAMES = 3
"""Frames of a stack that the text shows; all are in the fields."""


@dataclass(frozen=True, slots=True)
class FlowView:
    """What one rank knows of its traffic with one peer in an operation.

    What is owed or withheld counts each frame as one byte more, as frames may be empty.

    Attributes:
        owed_bytes: what the peer still has to send.
        received_bytes: what came from it.
        withheld_bytes: what we can't give it yet, since it depends on what has not come here.
        quiet_s: for how long nothing came from it in this operation.
    """

    owed_bytes: int = 0
    received_bytes: int = 0
    withheld_bytes: int = 0
    quiet_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One daemon's word on one operation.

    Attributes:
        state: "absent": its trainer has not made the call.
        entered_s: how long ago it made it.
        idle_s: of an absent rank, for how long it has not been in any call.
        flows: by rank of the world.
        trainer: "running", "sleeping", "stopped", "gone", "none" or "unknown".
        stack: of an absent rank's trainer, innermost frame first.
        next_seq: the number of the call that its trainer makes next in this group.
        unreached: by rank, whom it has dialled in vain so far: at which address, and why not.
        made_s: of a message that is "done" or "failed", how long ago this side of it was made; inf:
            that is not known.
    """

    rank: int
    state: State
    entered_s: float = 0.0
    idle_s: float = math.inf
    waiting_on: tuple[int, ...] = ()
    bytes_done: int = 0
    bytes_total: int = 0
    flows: Mapping[int, FlowView] = field(default_factory=dict)
    trainer: str = "unknown"
    pid: int = 0
    stack: tuple[str, ...] = ()
    next_seq: int = 0
    unreached: Mapping[int, str] = field(default_factory=dict)
    made_s: float = math.inf

    @property
    def since_s(self) -> float:
        """How long ago its side was made, at most; inf: that is not known."""
        return self.entered_s if self.state == "waiting" else self.made_s


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found.

    Attributes:
        culprits: ranks of the world, in order; for a link its sender.
        link: (sender, receiver) where a link is to blame.
        text: a sentence that says who and why; ``advice``: what to do.
        stacks: by culprit, of those whose stack is known.
        chain: where ranks wait one for another, those that do: the first one reported the call, the
            last one waits for a culprit.
    """

    case: Case
    culprits: tuple[int, ...]
    link: tuple[int, int] | None
    text: str
    advice: str
    stacks: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    chain: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Words:
    """How what is judged is called.

    Attributes:
        absent: what an absent rank did not do; ``late``: what a late one did.
        call: its name; ``same``: what an absent rank is to make.
    """

    absent: str = "never entered it"
    late: str = "entered it"
    call: str = "call"
    same: str = "same call"


_OPERATION = Words()


def judge(
    answers: Mapping[int, Answer], members: Collection[int], seq: int, words: Words = _OPERATION
) -> Verdict:
    """The verdict on an operation that does not end.

    Args:
        answers: by rank; who is missing did not answer in time.
        members: the ranks of the operation's group.
        seq: its number.
        words: how it is called.
    """
    roots = _roots(answers, members)
    if roots:  # then others that are missing too are named as well, waited for or not
        mute = tuple(rank for rank in sorted(members) if rank not in answers)
        absent = tuple(r for r in sorted(members) if r in answers and _is_absent(answers[r]))
        to_blame = tuple(rank for rank in absent if not was_kept(answers[rank], answers))
        blamed = to_blame if mute or to_blame else absent
        return _of_ranks(answers, mute, blamed, seq, words)
    late = _late(answers)
    if late:
        return _entered_late(answers, late, words)
    return _of_links(answers)


def _is_absent(answer: Answer) -> bool:
    return answer.state == "absent"


def was_kept(absent: Answer, answers: Mapping[int, Answer]) -> bool:
    """Whether an absent rank was in another call for most of the time that the others have waited:
    what holds that one up, or did until just now, holds up this one too."""
    return absent.idle_s < _longest_s(answers) * LATE_SHARE


def _longest_s(answers: Mapping[int, Answer]) -> float:
    """For how long those who wait have waited."""
    return max((a.entered_s for a in answers.values() if a.state == "waiting"), default=0.0)


def _roots(answers: Mapping[int, Answer], members: Collection[int]) -> tuple[int, ...]:
    """Where the walk from all who wait ends: ranks that wait for nobody and are not through."""
    seen: set[int] = set()
    left = [rank for rank, answer in answers.items() if answer.state == "waiting"]
    found: set[int] = set()
    while left:
        rank = left.pop()
        if rank in seen or rank not in members:
            continue
        seen.add(rank)
        answer = answers.get(rank)
        if answer is None or _is_absent(answer):
            found.add(rank)
        elif answer.state == "waiting":
            left.extend(answer.waiting_on)
    return tuple(sorted(found))


def _of_ranks(
    answers: Mapping[int, Answer],
    mute: tuple[int, ...],
    absent: tuple[int, ...],
    seq: int,
    words: Words,
) -> Verdict:
    by_case: dict[Case, list[int]] = {}
    for rank in mute:
        by_case.setdefault("daemon does not answer", []).append(rank)
    for rank in absent:
        by_case.setdefault(_why_absent(answers[rank]), []).append(rank)
    texts = [_said(case, ranks, answers, words) for case, ranks in by_case.items()]
    texts += [where(answers[rank], seq) for rank in absent]
    first = next(iter(by_case))
    culprits = tuple(sorted((*mute, *absent)))
    return Verdict(
        case=first,
        culprits=culprits,
        link=None,
        text="; ".join(text for text in texts if text),
        advice=_advice(first, culprits, answers, words),
        stacks={rank: answers[rank].stack for rank in absent if answers[rank].stack},
    )


def _said(case: Case, ranks: list[int], answers: Mapping[int, Answer], words: Words) -> str:
    if case == "trainer stopped" and len(ranks) == 1 and (pid := answers[ranks[0]].pid):
        whom = f"{ranks_text(ranks)} (process {pid})"
        return _TEXTS[case].format(whom)
    return _TEXTS[case].format(ranks_text(ranks), absent=words.absent)


def _advice(
    case: Case, culprits: tuple[int, ...], answers: Mapping[int, Answer], words: Words
) -> str:
    pids = [answers[r].pid for r in culprits if r in answers and answers[r].trainer == "stopped"]
    pids = [pid for pid in pids if pid]
    kill = " ".join(["kill -CONT", *map(str, pids)])
    return _ADVICE[case].format(ranks_text(culprits), kill=kill, same=words.same)


def _why_absent(answer: Answer) -> Case:
    if answer.trainer in ("none", "gone"):
        return "no trainer attached"
    return "trainer stopped" if answer.trainer == "stopped" else "never entered"


def where(answer: Answer, seq: int) -> str:
    """What the trainer of a rank that has not made call ``seq`` is doing instead."""
    behind = seq - answer.next_seq
    parts = []
    if behind > 0:
        parts.append(f"has {behind} more call{'s' if behind > 1 else ''} to make before this one")
    if answer.stack:
        parts.append(f"is in {' < '.join(answer.stack[:MAX_FRAMES])}")
    elif answer.trainer in ("running", "sleeping"):
        parts.append(f"is {answer.trainer}, and its Python stack could not be had in time")
    pid = f" (process {answer.pid})" if answer.pid else ""
    return f"the trainer of rank {answer.rank}{pid} {' and '.join(parts)}" if parts else ""


def _late(answers: Mapping[int, Answer]) -> tuple[int, ...]:
    """Ranks that entered in the second half of what the first ones have waited."""
    entered = {r: a.since_s for r, a in answers.items() if a.state in ("waiting", "done")}
    longest = _longest_s(answers)
    return tuple(sorted(r for r, ago_s in entered.items() if ago_s < longest * LATE_SHARE))


def _entered_late(answers: Mapping[int, Answer], late: tuple[int, ...], words: Words) -> Verdict:
    longest = _longest_s(answers)
    by = ", ".join(f"rank {r} {longest - answers[r].since_s:.2f} s" for r in late)
    return Verdict(
        case="entered late",
        culprits=late,
        link=None,
        text=f"{ranks_text(late)} {words.late} late (after the first rank: {by})",
        advice=f"Find out what keeps {ranks_text(late)} busy before the {words.call}",
    )


def _of_links(answers: Mapping[int, Answer]) -> Verdict:
    """All have entered: of the links that lack what they were given, the one furthest behind."""
    edges = [
        (_is_moving(view), view.received_bytes, peer, rank)
        for rank, answer in answers.items()
        if answer.state == "waiting"
        for peer, view in answer.flows.items()
        if view.owed_bytes > _withheld_bytes(answers.get(peer), rank)
    ]
    dead = {frozenset(edge[2:]) for edge in edges if not edge[0]}
    if unmade := [pair for pair in _unmade(answers) if frozenset(pair) in dead]:
        return _of_unmade(answers, unmade)
    edges = [edge for edge in edges if edge[0] or _has_had_time(answers, *edge[2:])]
    if not edges:
        return _unknown([a for _, a in sorted(answers.items()) if a.state == "waiting"])
    moving, received, sender, receiver = min(edges)
    elapsed_s = max(answers[receiver].entered_s, 1e-3)
    if moving:
        rate = received / elapsed_s / 1e6
        return Verdict(
            case="slow link",
            culprits=(sender,),
            link=(sender, receiver),
            text=f"the link {sender}→{receiver} is slow: {received} bytes in {elapsed_s:.2f} s, "
            f"{rate:.1f} MB/s",
            advice=f"Look at the network between ranks {sender} and {receiver}",
        )
    return Verdict(
        case="link down",
        culprits=(sender,),
        link=(sender, receiver),
        text=f"the link {sender}→{receiver} does not carry anything: {received} bytes came, "
        f"none for {answers[receiver].flows[sender].quiet_s:.2f} s",
        advice=f"Look at the network between ranks {sender} and {receiver}: cable, firewall, MTU",
    )


def _unmade(answers: Mapping[int, Answer]) -> list[tuple[int, int]]:
    """Links that there are not (yet): who dials whom in vain."""
    return [(rank, peer) for rank, answer in sorted(answers.items()) for peer in answer.unreached]


def _of_unmade(answers: Mapping[int, Answer], unmade: list[tuple[int, int]]) -> Verdict:
    """Of links that could not be made: who is an end of most of them, rather the dialled one."""
    ends = Counter(rank for pair in unmade for rank in pair)
    dialled = {peer for _, peer in unmade}
    culprit = min(ends, key=lambda rank: (-ends[rank], rank not in dialled, rank))
    pairs = [pair for pair in unmade if culprit in pair]
    rank, peer = min(pairs, key=lambda pair: (pair[1] != culprit, pair))
    too = [dialler for dialler, at in pairs if at == peer and dialler != rank]
    also = [at for dialler, at in pairs if dialler == rank and at != peer]
    text = f"rank {rank} can't reach rank {peer} {answers[rank].unreached[peer]}"
    text += f", nor can {ranks_text(too)}" if too else ""
    text += f"; nor can it reach {ranks_text(also)}" if also else ""
    return Verdict(
        case="link down",
        culprits=(culprit,),
        link=(peer, rank) if peer == culprit else (rank, peer),
        text=text,
        advice=f"Look at the address that rank {peer} advertises (RINGD_ADVERTISE), and at the "
        f"network between ranks {rank} and {peer}: firewall, published ports",
    )


def _unknown(waiting: list[Answer]) -> Verdict:
    who = ranks_text([a.rank for a in waiting])
    text = f"all ranks entered it and none is seen to hold it up; what {who} waited for may have "
    text += "come just after the end"
    advice = "Compare the flight recorders (ringd dump, ringd explain)"
    return Verdict(case="unknown", culprits=(), link=None, text=text, advice=advice)


def _is_moving(view: FlowView) -> bool:
    return view.received_bytes > 0 and view.quiet_s < QUIET_S


def _has_had_time(answers: Mapping[int, Answer], sender: int, receiver: int) -> bool:
    """Whether both sides have been in it for so long that a link that carries nothing is down."""
    both = [answers[rank].since_s for rank in (sender, receiver) if rank in answers]
    return min(both) >= QUIET_S


def _withheld_bytes(answer: Answer | None, receiver: int) -> float:
    """How much of what ``receiver`` is owed its sender, who answers, can't give to any link."""
    if answer is None or answer.state in ("failed", "absent"):
        return math.inf
    view = answer.flows.get(receiver)
    return 0 if answer.state == "done" or view is None else view.withheld_bytes


_TEXTS: dict[Case, str] = {
    "never entered": "{} {absent}",
    "trainer stopped": "the trainer of {} is stopped (SIGSTOP, or a debugger)",
    "no trainer attached": "{} has no trainer attached",
    "daemon does not answer": "the daemon of {} does not answer (stopped, or out of reach)",
}
_ADVICE: dict[Case, str] = {
    "never entered": "Let {} make the {same}",
    "trainer stopped": "Continue the trainer of {} ({kill}), or end it",
    "no trainer attached": "Start the trainer of {} anew and connect again",
    "daemon does not answer": "Look at the daemon of {} and its host (ringd status)",
}
