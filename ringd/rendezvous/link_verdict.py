"""Whose fault is a broken link: reports of both its ends, and a pure judgement over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from ringd.rendezvous.bounds import GATHER_LINK_REPORTS_S
from ringd.rendezvous.events import LinkLost
from ringd.rendezvous.news import Lost

LINK_LOST = "link lost"


class LinkReports:
    """What daemons said of lost links, until it is judged."""

    def __init__(self, gather_s: float = GATHER_LINK_REPORTS_S) -> None:
        self._gather_s = gather_s
        self._reports: list[LinkLost] = []
        self.judge_at: float | None = None

    def add(self, event: LinkLost, now: float) -> None:
        """A daemon's report; the first of a link counts."""
        if any((r.rank, r.peer) == (event.rank, event.peer) for r in self._reports):
            return
        self._reports.append(event)
        if self.judge_at is None:
            self.judge_at = now + self._gather_s

    def forget(self, rank: int) -> None:
        """A rank that went explains the links that it had."""
        self._reports = [r for r in self._reports if rank not in (r.rank, r.peer)]
        if not self._reports:
            self.judge_at = None

    def clear(self) -> None:
        """There is a verdict, or a new epoch."""
        self._reports.clear()
        self.judge_at = None

    def due(self, now: float) -> list[LinkLost]:
        """The reports, if they are to be judged now."""
        return self._reports if self.judge_at is not None and now >= self.judge_at else []


def judge(reports: Collection[LinkLost], epoch: int) -> Lost:
    """The verdict over at least one report.

    A rank that says that it is its own fault is named. Else it is the one that most reporters
    accuse. Among several with as many accusers it is the
    one accused by the lowest reporter: where both ends of one link accuse each other, the higher
    end is named, and the text says that the link broke, not the rank.
    """
    for report in sorted(reports, key=lambda report: report.rank):
        if report.own:
            detail = f"rank {report.rank} has no link to rank {report.peer}: {report.reason}"
            link = (report.peer, report.rank)
            return Lost(report.rank, LINK_LOST, detail, epoch, link=link)
    by_link = {(report.rank, report.peer): report for report in reports}
    accusers = Counter(peer for _, peer in by_link)
    most = max(accusers.values())
    reporter, accused = min(link for link in by_link if accusers[link[1]] == most)
    named_by = sorted(rank for rank, peer in by_link if peer == accused)
    reason = by_link[reporter, accused].reason
    if most == 1 and (accused, reporter) in by_link:
        other = by_link[accused, reporter].reason
        detail = f"the link {reporter}→{accused} broke, both ends report it: {reason}; {other}"
    elif most == 1:
        detail = f"rank {reporter} lost its link to rank {accused}: {reason}"
    else:
        who = ", ".join(map(str, named_by))
        detail = f"ranks {who} lost their links to rank {accused}: {reason}"
    return Lost(accused, LINK_LOST, detail, epoch, link=(reporter, accused))
