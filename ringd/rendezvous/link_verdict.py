"""Whose fault is a broken link: a pure judgement over the reports of both its ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from ringd.rendezvous.events import LinkLost, Lost

LINK_LOST = "link lost"


def judge(reports: Collection[LinkLost], epoch: int) -> Lost:
    """The verdict over at least one report.

    The rank that most reporters accuse is named. Among several with as many accusers it is the
    one accused by the lowest reporter: where both ends of one link accuse each other, the higher
    end is named, and the text says that the link broke, not the rank.
    """
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
