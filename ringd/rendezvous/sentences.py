"""How operations that failed end for all: the first report of each is judged, once (ADR 13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ringd.rendezvous.events import OpAnswered, OpFailed, PostFailed, Send
from ringd.rendezvous.inquiries import ASKED_ABOUT, Inquiries, Inquiry, error_of
from ringd.rendezvous.post_verdicts import verdict_fields

MAX_FAILED_OPS = 4096
"""Operations whose first error is remembered, so that later ones are not told."""


class Sentences:
    """Of the current epoch.

    Args:
        number: gives the id of the next verdict.
        present: ranks whose daemon is here: they are asked, and told.
    """

    def __init__(self, number: Callable[[], str], present: Callable[[], tuple[int, ...]]) -> None:
        self._number = number
        self._present = present
        self._failed: dict[tuple[int, int, int], None] = {}
        self._inquiries = Inquiries()

    def next_deadline(self) -> float | None:
        """When the next inquiry ends, whoever has not answered."""
        return self._inquiries.next_deadline()

    def clear(self) -> None:
        """A new epoch."""
        self._failed.clear()
        self._inquiries.clear()

    def gone(self, rank: int) -> None:
        """A daemon is gone: nobody waits for its answer."""
        self._inquiries.gone(rank)

    def answer(self, event: OpAnswered, now: float) -> list[Send]:
        """What a daemon knows of a call that was asked about; who else is to be asked."""
        return self._inquiries.answer(event, self._present(), now)

    def report(self, event: OpFailed | PostFailed, now: float) -> list[Send]:
        """An operation, or a message, of the current epoch failed somewhere."""
        if isinstance(event, PostFailed):
            asked = self._inquiries.begin(event, self._present(), now)
            return [] if asked is None else [asked]
        op = event.key
        if op in self._failed:
            return []
        if len(self._failed) >= MAX_FAILED_OPS:
            del self._failed[next(iter(self._failed))]
        self._failed[op] = None
        if event.error.get("code") in ASKED_ABOUT:
            asked = self._inquiries.begin(event, self._present(), now)
            if asked is not None:
                return [asked]
        error = dict(event.error)
        fields = error.get("fields")
        fields = fields if isinstance(fields, dict) else {}
        # One that quotes an earlier operation's is that verdict.
        error["fields"] = {**fields, "verdict": fields.get("verdict") or self._number()}
        return [self._sentence(event, error)]

    def ended(self, now: float) -> list[Send]:
        """The verdicts of inquiries that are complete, or due."""
        return [self._judged(inquiry, now) for inquiry in self._inquiries.ended(now)]

    def _judged(self, inquiry: Inquiry, now: float) -> Send:
        """The verdict: of an operation for everybody, of a message for who asked, and for who has
        begun the other side of it."""
        first, verdict = inquiry.first, self._inquiries.judge(inquiry, now)
        number = self._number()
        if isinstance(first, OpFailed):
            return self._sentence(first, error_of(first, verdict, number, inquiry.missing()))
        sides = {first.rank, *(peer for peer, count in first.peers if count < 0)}
        to = tuple(rank for rank in self._present() if rank in sides)
        return Send(to, "post_verdict", verdict_fields(first, verdict, number))

    def _sentence(self, event: OpFailed, error: dict[str, Any]) -> Send:
        """Tell everybody how an operation ended, who reported it too."""
        fields = {
            "epoch": event.epoch,
            "group": event.group,
            "lowest": event.lowest,
            "seq": event.seq,
            "error": error,
        }
        return Send(self._present(), "abort", fields)
