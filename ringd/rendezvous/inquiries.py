"""Questions to all daemons about an operation that ended at its deadline: bookkeeping, no I/O.

The first report of an operation's end begins an inquiry; it ends when every member has answered,
or after a while without those who did not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ringd.rendezvous.events import OpAnswered, OpFailed, PostFailed, Send
from ringd.rendezvous.post_verdicts import judge_post
from ringd.rendezvous.verdicts import Answer, Verdict, judge

INQUIRY_S = 0.1
"""How long a daemon may take to answer."""
MAX_INQUIRIES = 256
ASKED_ABOUT = frozenset({"timeout"})
"""Errors that only say what one rank saw: all daemons are asked before there is a verdict."""
_MAY_BE_SLOW = frozenset({"never entered", "entered late", "slow link", "unknown"})


@dataclass(slots=True)
class Inquiry:
    """One operation's, or one message's."""

    number: int
    first: OpFailed | PostFailed
    due: float
    answers: dict[int, Answer] = field(default_factory=dict)
    awaited: set[int] = field(default_factory=set)

    def judge(self) -> Verdict:
        """The verdict on what was answered."""
        if isinstance(self.first, PostFailed):
            return judge_post(self.first, self.answers)
        return judge(self.answers, self.first.members, self.first.seq)


class Inquiries:
    """All that are under way. Each step costs the same, however many there are."""

    def __init__(self) -> None:
        self._open: dict[int, Inquiry] = {}  # by number, so in the order in which they are due
        self._complete: list[Inquiry] = []
        self._last = 0

    def next_deadline(self) -> float | None:
        """When the next one ends, whoever has not answered."""
        return next((inquiry.due for inquiry in self._open.values()), None)

    def begin(
        self, failed: OpFailed | PostFailed, present: tuple[int, ...], now: float
    ) -> Send | None:
        """Ask those of its ranks that are here; None: it can't be asked, and has to be taken as it
        is."""
        if len(self._open) >= MAX_INQUIRIES:
            return None
        asked = tuple(rank for rank in failed.asked if rank in present)
        if not asked:
            return None
        self._last = number = self._last + 1
        self._open[number] = Inquiry(number, failed, now + INQUIRY_S, awaited=set(asked))
        return Send(asked, *failed.question(number))

    def answer(self, event: OpAnswered) -> None:
        """A daemon's answer; one that nobody waits for is dropped."""
        inquiry = self._open.get(event.inquiry)
        if inquiry is not None and event.rank in inquiry.awaited:
            inquiry.answers[event.rank] = event.answer
            self._settle(inquiry, event.rank)

    def gone(self, rank: int) -> None:
        """A daemon is gone: nobody waits for its answer."""
        for inquiry in list(self._open.values()):
            self._settle(inquiry, rank)

    def _settle(self, inquiry: Inquiry, rank: int) -> None:
        inquiry.awaited.discard(rank)
        if not inquiry.awaited:
            self._complete.append(self._open.pop(inquiry.number))

    def ended(self, now: float) -> list[Inquiry]:
        """Those that are complete or due; they are forgotten here."""
        done, self._complete = self._complete, []
        while (due := self.next_deadline()) is not None and now >= due:
            done.append(self._open.pop(next(iter(self._open))))
        return done

    def clear(self) -> None:
        """A new epoch."""
        self._open.clear()
        self._complete.clear()


def error_of(failed: OpFailed, verdict: Verdict, number: str) -> dict[str, Any]:
    """The reported error, as the verdict has it: with culprits and case, and a text that says both.

    Args:
        failed: the first report; its error says op, seq, limit and setting.
        number: the verdict's id.
    """
    fields: Mapping[str, Any] = failed.error.get("fields") or {}
    op, setting = fields.get("op", "an operation"), fields.get("setting", "timeout_s")
    group = f"group {failed.group}" if failed.group else "the world"
    where = f"operation {failed.seq} of {group}"
    limit = fields.get("limit", "its deadline")
    text = f"{op} ({where}, epoch {failed.epoch}) ended at {limit}: {verdict.text}. "
    text += f"{verdict.advice}."
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
            "partial": False,
            **({"late_ranks": list(verdict.culprits)} if op == "barrier" else {}),
        },
    }
