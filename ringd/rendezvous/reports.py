"""One round of asking every daemon for its state, for all who want the whole group's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ringd.transport.connection import Connection


class ReportRound:
    """Who asked, who must answer, and what came. Pure bookkeeping; the service sends and times.

    Attributes:
        number: tells the answers of one round from another's.
        requesters: connections that get the result, each with its own request number.
    """

    def __init__(self, number: int, ranks: Iterable[int]) -> None:
        self.number = number
        self.requesters: list[tuple[Connection, int]] = []
        self._states: dict[int, dict[str, Any]] = {}
        self._awaited = set(ranks)

    @property
    def complete(self) -> bool:
        """Nobody is awaited any more."""
        return not self._awaited

    def answered(self, rank: int, number: int, state: dict[str, Any]) -> None:
        """A daemon's answer; one of an earlier round is not taken."""
        if number == self.number and rank in self._awaited:
            self._awaited.discard(rank)
            self._states[rank] = state

    def gone(self, rank: int) -> None:
        """This daemon will not answer; it is not missed either: the snapshot shows it gone."""
        self._awaited.discard(rank)

    def result(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        """The group's state: the snapshot, each daemon's own view, and who did not answer."""
        reports = [{"rank": rank, "state": self._states[rank]} for rank in sorted(self._states)]
        return {**snapshot, "reports": reports, "unanswered": sorted(self._awaited)}
