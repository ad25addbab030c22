"""Who waits for whom through collectives and messages, and whom the report therefore names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ringd.observe.explain import explain
from ringd.observe.explain_text import paragraph
from ringd.observe.records import Loss, Op, RankDump
from tests.observe.recorders import START, dump, message, operation


def recv(peer: int) -> Op:
    return message("recv", peer, tag=5)


def look_at(*ranks: int) -> str:
    """Where a text sends its reader to."""
    where = [
        f"rank {r} on host{r}, process {100 + r} (its log; while it still runs: "
        f"py-spy dump --pid {100 + r})"
        for r in ranks
    ]
    return "; ".join(where) + "."


IN_GROUP = operation("sum?2", 0, group=4)


@pytest.mark.parametrize(
    ("rows", "chain", "roots"),
    [
        # in the call, in a message or another group's call, doing nothing known
        ([("sum?1,2", []), ("", [recv(2)]), ("", [])], (0, 1, 2), (2,)),
        ([("sum?1,2", []), ("", [IN_GROUP]), ("", [])], (0, 1, 2), (2,)),
        ([("sum?1", []), ("", [recv(2)]), ("", [recv(3)]), ("", [])], (0, 1, 2, 3), (3,)),
        ([("sum?1", []), ("", [message("send", 2)]), ("sum?0", [])], (0, 1, 2, 0), ()),
        # two that stay away on their own
        ([("sum?1,2,3", []), ("", [recv(2)]), ("", []), ("", [])], (0, 1, 2), (2, 3)),
        # those in the call, too, are no way round to who is missing
        ([("sum?1,2,3", []), ("sum?0,2,3", []), ("sum?0,1,3", []), ("", [])], (0, 3), (3,)),
        # what a receive from any lacks may come from anybody: its rank is where the way ends
        ([("sum?1", []), ("", [message("recv", -1)]), ("sum?1", [])], (0, 1), (1,)),
        # both sides are there: what lacks is between them
        ([("sum?1", []), ("", [message("recv", 2)]), ("", [message("send", 1)])], (0, 1), (1, 2)),
    ],
)  # fmt: skip
def test_the_way_leads_through_messages_to_those_who_wait_for_nobody(
    rows: Sequence[tuple[str, list[Op]]], chain: tuple[int, ...], roots: tuple[int, ...]
) -> None:
    n = len(rows)
    report = explain([dump(r, n, *cell.split(), others=ops) for r, (cell, ops) in enumerate(rows)])
    assert (report.chain, report.circle) == (chain, not roots)
    assert report.roots == roots
    if roots:
        assert paragraph(report).endswith(f"See what it does instead: {look_at(*roots)}")


def test_who_waits_itself_is_told_by_what_it_waits_in_and_not_blamed() -> None:
    report = explain([dump(0, 3, "sum?1,2"), dump(1, 3, messages=[recv(2)]), dump(2, 3)])
    text = paragraph(report)
    assert "rank 1 never did: it has this in flight: recv from rank 2, tag 5;" in text
    assert "Who waits for whom: 0 → 1 → 2." in text
    assert "py-spy dump --pid 101" not in text


def test_ranks_that_wait_for_each_other_are_all_named_and_told_to_let_one_go_first() -> None:
    report = explain([dump(0, 2, "sum?1"), dump(1, 2, messages=[recv(0)])])
    assert (report.chain, report.circle) == ((0, 1, 0), True)
    text = paragraph(report)
    assert "Let one of them go first" in text
    assert text.endswith(f"See where each is: {look_at(0, 1)}")


def test_messages_alone_lead_to_the_rank_at_the_end_too() -> None:
    report = explain([dump(0, 3, messages=[recv(1)]), dump(1, 3, messages=[recv(2)]), dump(2, 3)])
    assert (report.chain, report.roots) == ((0, 1, 2), (2,))
    assert paragraph(report).endswith(look_at(2))


def ended(op: Op, after_s: float, code: str) -> Op:
    return replace(
        op, state="failed", ended_at=op.entered_at + after_s, error=code, message="it is over"
    )


@pytest.mark.parametrize(
    ("theirs", "chain", "roots"),
    [
        (ended(recv(2), 0.49, "timeout"), (0, 1, 2), (2,)),
        (ended(recv(2), 0.51, "peer_lost"), (0, 1, 2), (2,)),
        (ended(IN_GROUP, 0.49, "timeout"), (0, 1, 2), (2,)),
        (ended(recv(2), 0.2, "timeout"), (0, 1), (1, 2)),  # it had time to come
    ],
)
def test_what_was_waited_in_while_the_call_failed_leads_on_too(
    theirs: Op, chain: tuple[int, ...], roots: tuple[int, ...]
) -> None:
    call = ended(operation("sum?1,2", 0), 0.5, "timeout")
    assert call.entered_at == theirs.entered_at == START
    report = explain([dump(0, 3, others=[call]), dump(1, 3, others=[theirs]), dump(2, 3)])
    assert (report.chain, report.circle, report.roots) == (chain, False, roots)
    assert paragraph(report).endswith(look_at(*roots))
    assert ("rank 1 never did: it had this in flight" in paragraph(report)) is (roots == (2,))


def test_calls_that_lead_back_and_are_over_name_who_never_came() -> None:
    call = ended(operation("sum?1", 0), 0.5, "timeout")
    report = explain(
        [dump(0, 2, others=[call]), dump(1, 2, others=[ended(recv(0), 0.5, "timeout")])]
    )
    assert (report.chain, report.circle, report.roots) == ((), False, ())
    assert paragraph(report).endswith(look_at(1))


# Ranks that ended


def test_of_a_rank_that_said_goodbye_no_dump_is_asked_for() -> None:
    call = replace(operation("sum!1", 0), error="peer_lost", message="rank 1 is lost: it left")
    rows = [dump(r, 3, others=[call], left={1: 0}) for r in (0, 2)]
    report = explain(rows)
    assert (report.missing, report.gone) == ((1,), (1,))
    text = paragraph(report)
    assert "There is no dump of rank 1, which had said goodbye" in text
    assert "Dump rank 1" not in text
    assert "the cause may be there" not in text
    assert text.endswith("Make all ranks end after the same number of calls.")


def lost_by(detail: str, place: str = "") -> list[RankDump]:
    loss = Loss(1, "trainer raised", detail, place=place)
    return [replace(dump(0, 2, "sum"), losses={1: loss}), dump(1, 2, "sum")]


@pytest.mark.parametrize(
    ("detail", "place", "says"),
    [
        ("SystemExit: 3 (a.py:5)", "/s/a.py:5", "sys.exit() at /s/a.py:5 (exited with code 3)"),
        ("SystemExit: 3", "", "sys.exit() (exited with code 3)"),
        ("SystemExit: -1", "", "sys.exit() (exited with code -1)"),
        ("SystemExit: no (x) (a.py:5)", "/s/a.py:5", "sys.exit() at /s/a.py:5 (said 'no (x)')"),
    ],
)  # fmt: skip
def test_a_program_that_called_exit_left_no_traceback(detail: str, place: str, says: str) -> None:
    text = paragraph(explain(lost_by(detail, place)))
    assert f"See why the program of rank 1 on host1 called {says}: that prints no" in text
    assert "in its log" not in text


def test_a_program_that_raised_left_one() -> None:
    text = paragraph(explain(lost_by("SystemExitish: 3 (a.py:5)", "/s/a.py:5")))
    assert text.endswith("raised at /s/a.py:5; the traceback is in its log.")
