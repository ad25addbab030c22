"""Who or what holds up a call when ranks wait in chains: a pure walk to where they end.

The end of a chain is judged as if that rank's own neighbour had asked. Where all ways lead back,
the ranks wait for each other, and nobody but the program is to blame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from ringd.rendezvous.events import PostFailed
from ringd.rendezvous.hops import Call, Hop, Key, Over, op_of
from ringd.rendezvous.post_verdicts import judge_post
from ringd.rendezvous.verdicts import Answer, Verdict, judge, was_kept, where
from ringd.vocabulary import ranks_text

MAX_TOLD = 6
"""Links of a chain that the text tells."""
_OF_RANKS = ("daemon does not answer", "trainer stopped", "no trainer attached", "never entered")

Path = tuple[Call, ...]


def judge_chain(first: Call, hops: Mapping[Key, Hop], over: Iterable[Over] = ()) -> Verdict:
    """The verdict on an operation or a message that does not come to its end.

    Args:
        first: the call; ``hops``: by key of the call, its own among them.
        over: calls in which ranks have waited in vain, the last one last. If that took most of the
            time that ``first`` has waited, what was to blame for it is to blame for this, too.
    """
    waited_s = _waited_s(hops[first.key])
    recent = {last.about.rank: last for last in over if last.filled(waited_s)}
    walk = _Walk(hops, recent)
    walk.visit(first, ())
    # Whom one waits for since a moment ago is named only if that is on ranks.
    ends = walk.ends if any(map(_is_on_ranks, walk.ends)) else [*walk.ends, *walk.ends_before]
    if not ends:
        return _deadlock(*walk.cycles[0], hops) if walk.cycles else _cut_short(walk.cut[0])
    verdict = ends[0].verdict
    if verdict.case == "deadlock" and first.rank in verdict.culprits:
        return verdict
    return _joined(ends)


def _waited_s(hop: Hop) -> float:
    """For how long a call has been waited in: a message by its own rank, an operation by the first
    that entered it."""
    about, answers = hop.about, hop.answers
    sides = [about.rank] if isinstance(about, PostFailed) else list(answers)
    return max((answers[rank].entered_s for rank in sides if rank in answers), default=0.0)


@dataclass(frozen=True, slots=True)
class _End:
    """Where a way ends: the calls that led there, the last call if that is over, the verdict."""

    path: Path
    verdict: Verdict
    over: Call | None = None

    @property
    def steps(self) -> list[str]:
        """Who waits in between."""
        steps = [_step(call) for call in self.path[1:]]
        if self.over is not None:
            until = f"waited itself {_in(self.over)} until its deadline"
            steps.append(f"rank {self.over.rank} {until}")
        return steps

    @property
    def chain(self) -> tuple[int, ...]:
        """Who waits, from the first one on."""
        ranks = tuple(call.rank for call in self.path)
        if self.over is not None:
            ranks += self.verdict.chain or (self.over.rank,)
        return ranks if len(ranks) > 1 else ()


class _Walk:
    """Depth first, each call once.

    Attributes:
        ends: where nobody waits on.
        ends_before: where those who wait now have waited in another call until a moment ago.
        cycles: the way to it, and the calls that wait for each other.
        cut: the way to a call that there was no time to ask about.
    """

    def __init__(self, hops: Mapping[Key, Hop], over: Mapping[int, Over]) -> None:
        self._hops = hops
        self._over = over
        self._seen: set[Key] = set()
        self.ends: list[_End] = []
        self.ends_before: list[_End] = []
        self.cycles: list[tuple[Path, Path]] = []
        self.cut: list[Path] = []

    def visit(self, call: Call, path: Path) -> None:
        """Go on from a call that does not end."""
        keys = [before.key for before in path]
        if call.key in keys:
            at = keys.index(call.key)
            # Of an operation the way may have come by a rank that waits in it and nobody waits for.
            lead = path[: at + (path[at].rank != call.rank)]
            self.cycles.append((lead, (call, *path[at + 1 :])))
            return
        if call.key in self._seen:
            return
        self._seen.add(call.key)
        hop = self._hops.get(call.key)
        if hop is None:
            self.cut.append((*path, call))
            return
        waiting = self._waiting(hop)
        over = self._were_waiting(hop)
        verdict = _verdict_without(hop, waiting.keys() | over.keys())
        path = (*path, call)
        if verdict is not None:
            self.ends.append(_End(path, verdict))
        for rank, last in over.items():
            ends = self.ends_before if rank in waiting else self.ends
            ends.append(_End(path, last.verdict, last.about))
        for rank in sorted(waiting):
            for onward in waiting[rank]:
                self.visit(onward, path)

    def _waiting(self, hop: Hop) -> dict[int, list[Call]]:
        """Of those whom the call waits for, the ones that wait themselves, and in what."""
        about = hop.about
        if isinstance(about, PostFailed) and _is_met(hop):
            return {}
        found = {r: [c for c in calls if self._stands(c)] for r, calls in hop.waits.items()}
        return {rank: calls for rank, calls in found.items() if calls}

    def _were_waiting(self, hop: Hop) -> dict[int, Over]:
        """Those that have waited in vain until a moment ago."""
        if isinstance(hop.about, PostFailed) and _is_met(hop):
            return {}
        absent = [r for r, a in sorted(hop.answers.items()) if a.state == "absent"]
        return {r: self._over[r] for r in absent if r in self._over}

    def _stands(self, call: Call) -> bool:
        """Whether its rank was still in a call when that was asked about, if it was."""
        hop = self._hops.get(call.key)
        return hop is None or _is_in(hop.answers.get(call.rank))


def _is_in(answer: Answer | None) -> bool:
    return answer is None or answer.state == "waiting"


def _is_met(hop: Hop) -> bool:
    """Whether somebody has made the other side of a message."""
    rank = hop.about.rank
    return any(a.state != "absent" for r, a in hop.answers.items() if r != rank)


def _verdict_without(hop: Hop, waiting: Collection[int]) -> Verdict | None:
    """The verdict on a call without those who wait themselves; None: nobody else is to blame."""
    about, answers = hop.about, hop.answers
    if isinstance(about, PostFailed):
        peers = tuple(pair for pair in about.peers if pair[0] not in waiting)
        return judge_post(replace(about, peers=peers), answers) if peers else None
    left = {rank: answer for rank, answer in answers.items() if rank not in waiting}
    members = [rank for rank in about.members if rank not in waiting]
    if waiting:  # what it lacks of those that wait is no matter
        missing = tuple(r for r in members if r != about.rank and _is_missing(r, left))
        if not missing:
            return None
        own = left.get(about.rank, Answer(about.rank, "waiting"))
        left[about.rank] = replace(own, waiting_on=missing)
    return judge(left, members, about.seq)


def _is_missing(rank: int, answers: Mapping[int, Answer]) -> bool:
    """Whether a rank that waits for nobody holds up an operation that others have entered."""
    answer = answers.get(rank)
    return answer is None or (answer.state == "absent" and not was_kept(answer, answers))


def _is_on_ranks(end: _End) -> bool:
    return end.verdict.case in _OF_RANKS


def _joined(ends: list[_End]) -> Verdict:
    """One verdict of several: on ranks, if any is on ranks; then on all of those."""
    on_ranks = list(filter(_is_on_ranks, ends))
    chosen: list[_End] = []
    named: set[int] = set()
    for end in on_ranks or ends[:1]:
        if not chosen or not named.issuperset(end.verdict.culprits):
            chosen.append(end)
            named.update(end.verdict.culprits)
    verdicts = [end.verdict for end in chosen]
    steps = dict.fromkeys(step for end in chosen for step in end.steps)
    text = "; ".join((*_told(steps), *(verdict.text for verdict in verdicts)))
    chain = next((end.chain for end in chosen if end.chain), ())
    if len(chosen) == 1:
        return replace(verdicts[0], text=text, chain=chain)
    return Verdict(
        case=verdicts[0].case,
        culprits=tuple(sorted(named)),
        link=None,
        text=text,
        advice=". ".join(dict.fromkeys(verdict.advice for verdict in verdicts)),
        stacks={rank: stack for v in verdicts for rank, stack in v.stacks.items()},
        chain=chain,
    )


def _told(steps: Iterable[str]) -> list[str]:
    """A sentence on those who wait in between; [] if there are none."""
    told = list(steps)
    if len(told) > MAX_TOLD:
        told = [*told[: MAX_TOLD - 1], f"... ({len(told) - MAX_TOLD} more) ...", told[-1]]
    return [", ".join(told)] if told else []


def _step(call: Call) -> str:
    return f"rank {call.rank} waits itself {_in(call)}"


def _in(call: Call) -> str:
    """ "in a recv from rank 2 with tag 7", "in barrier (operation 3 of the world)"."""
    group = f"group {call.group}" if call.group else "the world"
    if not isinstance(call, PostFailed):
        return f"in {op_of(call)} (operation {call.seq} of {group})"
    peers = [peer for peer, _ in call.peers]
    way = "to" if call.op == "send" else "from"
    whom = ranks_text(peers) if len(peers) == 1 else f"any of {ranks_text(peers)}"
    where_at = f" in {group}" if call.group else ""
    return f"in a {call.op} {way} {whom} with tag {call.tag}{where_at}"


def _cut_short(path: Path) -> Verdict:
    """What holds the call up waits itself, and for whom was not found out in time."""
    steps = _told(map(_step, path[1:]))
    return Verdict(
        case="unknown",
        culprits=(),
        link=None,
        text="; ".join([*steps, "what holds that up was not found out in time"]),
        advice="Look at the verdict on that call, or at ringd status",
        stacks={},
        chain=tuple(call.rank for call in path),
    )


def _deadlock(path: Path, cycle: Path, hops: Mapping[Key, Hop]) -> Verdict:
    """Each waits for the next one, and the last one for the first."""
    ranks = tuple(sorted({call.rank for call in cycle}))
    found: dict[int, Answer] = {}
    for call, onward in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
        found[onward.rank] = hops[call.key].answers[onward.rank]
    calls = ", ".join(f"rank {call.rank} {_in(call)}" for call in cycle)
    texts = [*_told(map(_step, path[1:])), f"{ranks_text(ranks)} wait for each other: {calls}"]
    texts += [text for rank in ranks if (text := where(found[rank], 0))]
    return Verdict(
        case="deadlock",
        culprits=ranks,
        link=None,
        text="; ".join(texts),
        advice="The program has to let one of them go first: begin messages that cross with isend "
        "and irecv, or batch_p2p, before any rank waits, and make calls in one order on all",
        stacks={rank: found[rank].stack for rank in ranks if found[rank].stack},
        chain=tuple(call.rank for call in path),
    )
