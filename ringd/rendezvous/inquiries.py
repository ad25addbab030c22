"""Questions to all daemons about an operation that ended at its deadline: bookkeeping, no I/O.

The first report of an operation's end begins an inquiry; it ends when every member has answered,
or after a while without those who did not. It goes on where those who are waited for wait
themselves, call by call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ringd.rendezvous.chains import judge_chain
from ringd.rendezvous.events import OpAnswered, OpFailed, PostFailed, Send
from ringd.rendezvous.hops import Call, Hop, Key, Over, waited_in
from ringd.rendezvous.verdicts import Answer, Verdict

INQUIRY_S = 0.1
"""How long a daemon may take to answer."""
WALK_S = 0.05
"""For how long, from its begin on, an inquiry asks about further calls."""
WHOLE_S = 0.14
"""How long it may take in all; who is asked last has most of ``INQUIRY_S``, too."""
MAX_INQUIRIES = 256
MAX_OVER = 1024
"""Calls of ranks that waited in vain, of all ranks together, that are remembered."""
MAX_HOPS = 128
"""Calls that one inquiry asks about."""
ASKED_ABOUT = frozenset({"timeout"})
"""Errors that only say what one rank saw: all daemons are asked before there is a verdict."""
_MAY_BE_SLOW = frozenset({"never entered", "entered late", "slow link", "unknown"})


@dataclass(slots=True)
class Inquiry:
    """One operation's, or one message's.

    Attributes:
        hops: by key, the calls that were asked about, this one first.
        awaited: who has not answered, by the number of the question.
    """

    first: OpFailed | PostFailed
    began: float
    due: float = 0.0
    hops: dict[Key, Hop] = field(default_factory=dict)
    awaited: dict[int, set[int]] = field(default_factory=dict)

    @property
    def answers(self) -> dict[int, Answer]:
        """On the call itself, by rank."""
        return self.hops[self.first.key].answers

    def missing(self) -> list[int]:
        """Of an operation: members that have not entered it, as far as is known."""
        found = self.answers
        members = self.first.members
        return [r for r in sorted(members) if r not in found or found[r].state == "absent"]

    def judge(self, over: Sequence[Over] = ()) -> Verdict:
        """The verdict on what was answered.

        Args:
            over: calls in which ranks have waited in vain, the last one last.
        """
        return judge_chain(self.first, self.hops, over)

    def waited(self) -> list[tuple[Call, float]]:
        """The call as each rank's own that has waited in it, and for how long."""
        first, waiting = self.first, [a for a in self.answers.values() if a.state == "waiting"]
        if isinstance(first, PostFailed):
            return [(first, a.entered_s) for a in waiting if a.rank == first.rank]
        return [(replace(first, rank=a.rank), a.entered_s) for a in waiting]

    def is_open_at(self, now: float) -> bool:
        """Whether it may ask about one more call."""
        return now - self.began <= WALK_S and len(self.hops) < MAX_HOPS


class Inquiries:
    """All that are under way."""

    def __init__(self) -> None:
        self._open: dict[int, Inquiry] = {}  # by the number of its first question
        self._asked: dict[int, tuple[int, Hop]] = {}  # by question: whose it is
        self._complete: list[Inquiry] = []
        self._over: deque[tuple[float, Over]] = deque(maxlen=MAX_OVER)  # with the time
        self._last = 0

    def next_deadline(self) -> float | None:
        """When the next one ends, whoever has not answered."""
        return min((inquiry.due for inquiry in self._open.values()), default=None)

    def begin(
        self, failed: OpFailed | PostFailed, present: tuple[int, ...], now: float
    ) -> Send | None:
        """Ask those of its ranks that are here; None: it can't be asked, and has to be taken as it
        is."""
        if len(self._open) >= MAX_INQUIRIES:
            return None
        inquiry = Inquiry(failed, now)
        question = self._ask(self._last + 1, inquiry, Hop(failed), present, now)
        if question is not None:
            self._open[self._last] = inquiry
        return question

    def _ask(
        self, whose: int, inquiry: Inquiry, hop: Hop, present: tuple[int, ...], now: float
    ) -> Send | None:
        asked = tuple(rank for rank in hop.about.asked if rank in present)
        inquiry.hops[hop.about.key] = hop
        if not asked:
            return None
        self._last = number = self._last + 1
        self._asked[number] = (whose, hop)
        inquiry.awaited[number] = set(asked)
        inquiry.due = min(now + INQUIRY_S, inquiry.began + WHOLE_S)
        return Send(asked, *hop.about.question(number))

    def answer(self, event: OpAnswered, present: tuple[int, ...], now: float) -> list[Send]:
        """A daemon's answer; one that nobody waits for is dropped. What else is to be asked."""
        whose, hop = self._asked.get(event.inquiry, (0, None))
        inquiry = self._open.get(whose)
        if hop is None or inquiry is None or event.rank not in inquiry.awaited[event.inquiry]:
            return []
        hop.answers[event.rank] = event.answer
        asked = self._walk_on(whose, inquiry, hop, event, present, now)
        inquiry.awaited[event.inquiry].discard(event.rank)
        self._settle(whose, inquiry)
        return asked

    def _walk_on(
        self,
        whose: int,
        inquiry: Inquiry,
        hop: Hop,
        event: OpAnswered,
        present: tuple[int, ...],
        now: float,
    ) -> list[Send]:
        """Ask about the calls in which a rank that is waited for waits itself, while there is time;
        that it waits is known in any case."""
        epoch = inquiry.first.epoch
        waits = [replace(call, epoch=epoch) for call in waited_in(event.answer, event.waits)]
        hop.waits[event.rank] = tuple(waits)
        asked: list[Send] = []
        for call in waits:
            if call.key not in inquiry.hops and inquiry.is_open_at(now):
                question = self._ask(whose, inquiry, Hop(call), present, now)
                asked += [] if question is None else [question]
        return asked

    def gone(self, rank: int) -> None:
        """A daemon is gone: nobody waits for its answer."""
        for whose, inquiry in list(self._open.items()):
            for awaited in inquiry.awaited.values():
                awaited.discard(rank)
            self._settle(whose, inquiry)

    def _settle(self, whose: int, inquiry: Inquiry) -> None:
        if not any(inquiry.awaited.values()):
            self._complete.append(self._close(whose))

    def _close(self, whose: int) -> Inquiry:
        inquiry = self._open.pop(whose)
        for number in inquiry.awaited:
            del self._asked[number]
        return inquiry

    def ended(self, now: float) -> list[Inquiry]:
        """Those that are complete or due; they are forgotten here."""
        done, self._complete = self._complete, []
        due = [whose for whose, inquiry in self._open.items() if now >= inquiry.due]
        return [*done, *map(self._close, due)]

    def judge(self, inquiry: Inquiry, now: float) -> Verdict:
        """The verdict on one that has ended. It is the reason, too, why its ranks make no call that
        another one waits for, until they have had the time to."""
        verdict = inquiry.judge([replace(last, ago_s=now - at) for at, last in self._over])
        for call, waited_s in inquiry.waited():
            self._over.append((now, Over(call, verdict, 0.0, waited_s)))
        return verdict

    def clear(self) -> None:
        """A new epoch."""
        self._over.clear()
        self._open.clear()
        self._asked.clear()
        self._complete.clear()


def error_of(
    failed: OpFailed, verdict: Verdict, number: str, missing: Sequence[int] = ()
) -> dict[str, Any]:
    """The reported error, as the verdict has it: with culprits and case, and a text that says both.

    Args:
        failed: the first report; its error says op, seq, limit and setting.
        number: the verdict's id.
        missing: who has not entered it; where ranks wait in chains, others are to blame.
    """
    fields: Mapping[str, Any] = failed.error.get("fields") or {}
    op, setting = fields.get("op", "an operation"), fields.get("setting", "timeout_s")
    group = f"group {failed.group}" if failed.group else "the world"
    where = f"operation {failed.seq} of {group}"
    limit = fields.get("limit", "its deadline")
    text = f"{op} ({where}, epoch {failed.epoch}) ended at {limit}: {verdict.text}. "
    text += f"{verdict.advice}."
    late = missing if verdict.chain or verdict.case == "deadlock" else verdict.culprits
    if verdict.case in _MAY_BE_SLOW:
        text += f" If it is only slow, {fields.get('advice', f'raise {setting}')}."
    return {
        "code": failed.error.get("code", "timeout"),
        "message": text,
        "fields": {
            "op": op,
            "group": failed.group,
            "epoch": failed.epoch,
            "seq": failed.seq,
            "setting": setting,
            "elapsed_s": fields.get("elapsed_s"),
            "verdict": number,
            "case": verdict.case,
            "culprits": list(verdict.culprits),
            "waiting_on": list(verdict.culprits),
            "link": None if verdict.link is None else list(verdict.link),
            "stacks": {str(rank): list(stack) for rank, stack in verdict.stacks.items()},
            "chain": list(verdict.chain),
            "partial": False,
            **({"late_ranks": list(late)} if op == "barrier" else {}),
        },
    }
