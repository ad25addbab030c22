"""Where ranks part, by tables of what each of them did."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ringd.errors import InvalidArgumentError
from ringd.observe.explain import explain
from ringd.observe.explain_report import Report
from ringd.observe.explain_text import paragraph
from ringd.observe.records import GroupView, Loss, Op, RankDump
from tests.observe.recorders import TAKEN, dump, dumps, message, operation


def headline(report: Report) -> tuple[int, int, str]:
    found = report.headline
    assert found is not None
    return found.group, found.seq, found.kind


@pytest.mark.parametrize(
    ("rows", "seq", "kind", "states"),
    [
        # different calls at one place in the order
        ([["sum", "max!"], ["sum", "sum!"]], 1, "mismatch", ["failed", "failed"]),
        ([["max?"], ["sum?"], ["sum"]], 0, "mismatch", ["in flight", "in flight", "done"]),
        # a rank that never came; failed or still waiting elsewhere
        (
            [["sum", "sum?2"], ["sum", "sum?0"], ["sum"]],
            1,
            "never entered",
            ["in flight", "in flight", "never entered"],
        ),
        ([["sum!"], [], ["sum!"]], 0, "never entered", ["failed", "never entered", "failed"]),
        # the same call, which failed or is not done
        ([["sum!"], ["sum!"]], 0, "failed", ["failed", "failed"]),
        ([["sum?"], ["sum!"]], 0, "failed", ["in flight", "failed"]),
        ([["sum", "sum?1"], ["sum", "sum?0"]], 1, "unfinished", ["in flight", "in flight"]),
        ([["sum"], ["sum?"]], 0, "unfinished", ["done", "in flight"]),
        # who has entered is through: a broadcast's root runs ahead
        ([["sum", "sum"], ["sum"]], 1, "behind", ["done", "never entered"]),
        # what is forgotten speaks against nobody
        ([["...", "sum", "sum!"], ["sum", "sum", "sum!"]], 2, "failed", ["failed", "failed"]),
        # only what came after the last agreement counts
        ([["max!", "sum", "sum?"], ["sum!", "sum", "sum?"]], 2, "unfinished", ["in flight"] * 2),
        # and if all was overcome, the last of it
        ([["sum!", "max!", "sum"], ["sum!", "sum!", "sum"]], 1, "mismatch", ["failed", "failed"]),
    ],
)  # fmt: skip
def test_the_first_place_where_ranks_part(
    rows: Sequence[Sequence[str]], seq: int, kind: str, states: list[str]
) -> None:
    report = explain(dumps(*rows))
    assert headline(report) == (0, seq, kind)
    assert report.headline is not None
    assert [entry.state for entry in report.headline.entries] == states
    assert [entry.rank for entry in report.headline.entries] == list(range(len(rows)))


@pytest.mark.parametrize("rows", [[["sum"], ["sum"]], [["...", "sum"], ["max", "sum"]], [[], []]])
def test_ranks_that_agree_do_not_part(rows: Sequence[Sequence[str]]) -> None:
    report = explain(dumps(*rows))
    assert (report.partings, report.headline, report.chain) == ((), None, ())
    assert "agrees" in paragraph(report)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7])
def test_whichever_rank_stays_away_is_found_and_stands_at_the_end_of_the_chain(n: int) -> None:
    for absent in range(n):
        rows = [["sum"] * 3 + [f"max?{(rank - 1) % n}"] for rank in range(n)]
        rows[absent] = ["sum"] * 3
        report = explain(dumps(*rows))
        assert report.headline is not None
        assert headline(report) == (0, 3, "never entered")
        assert report.headline.ranks("never entered") == [absent]
        assert report.chain == tuple((absent - 1 - i) % n for i in range(n))
        assert not report.circle
        text = paragraph(report)
        assert f"rank {absent} never did: its last operation there, 2 (all_reduce op=sum" in text
        assert text.endswith(
            f"rank {absent} on host{absent}, process {100 + absent} (its log; while it still "
            f"runs: py-spy dump --pid {100 + absent})."
        )


def test_a_chain_leads_over_every_rank_to_the_one_that_waits_for_nobody() -> None:
    report = explain(dumps(["sum?3"], [], ["sum?1"], ["sum?2"]))
    assert (report.chain, report.circle) == ((0, 3, 2, 1), False)
    assert "Who waits for whom: 0 → 3 → 2 → 1." in paragraph(report)


def test_ranks_that_wait_for_each_other_in_two_groups_wait_in_a_circle() -> None:
    in_group = operation("sum?0", 0, group=4)
    report = explain([dump(0, 2, "sum?1"), dump(1, 2, others=[in_group])])
    assert report.circle
    assert report.chain == (0, 1, 0)
    assert "wait in a circle: 0 → 1 → 0" in paragraph(report)


@pytest.mark.parametrize("rows", [[["max!1"], ["sum!0"]], [["sum", "sum!1"], ["sum", "sum!0"]]])
def test_what_has_ended_is_not_said_to_wait(rows: Sequence[Sequence[str]]) -> None:
    report = explain(dumps(*rows))
    assert (report.chain, report.circle) == ((), False)
    assert "wait in a circle" not in paragraph(report)
    assert "Who waits" not in paragraph(report)


def test_each_group_has_an_order_of_its_own_and_the_gravest_parting_comes_first() -> None:
    both = [operation("sum", 0, group=3), operation("sum?", 1, group=3)]
    other = [operation("sum", 0, group=3), operation("max?", 1, group=3)]
    report = explain([dump(0, 2, "sum!", others=both), dump(1, 2, "sum!", others=other)])
    assert [(p.group, p.seq, p.kind) for p in report.partings] == [
        (0, 0, "failed"),
        (3, 1, "mismatch"),
    ]
    assert headline(report) == (3, 1, "mismatch")
    text = paragraph(report)
    assert "Ranks part at operation 1 of group 3" in text
    assert "rank 1 called all_reduce op=max" in text
    assert "rank 0 called all_reduce op=sum" in text


def test_a_rank_without_a_dump_is_named_and_asked_for() -> None:
    first, second, _ = dumps(["sum?2"], ["sum?0"], ["sum"])
    report = explain([second, first])
    assert report.missing == (2,)
    assert headline(report) == (0, 0, "unfinished")
    text = paragraph(report)
    assert "There is no dump of rank 2: the cause may be there." in text
    assert text.endswith("Dump rank 2 too, and explain all together.")


def test_a_dump_that_is_older_than_the_call_does_not_say_that_its_rank_never_came() -> None:
    old = replace(dump(1, 2, "sum"), taken_at=TAKEN - 999.5)
    report = explain([dump(0, 2, "sum", "sum?1"), old])
    assert report.headline is not None
    assert [entry.state for entry in report.headline.entries] == ["in flight", "dump is older"]
    assert "The dump of rank 1 is older than this call: dump again." in paragraph(report)


def test_a_rank_that_said_goodbye_did_not_stay_away() -> None:
    report = explain([dump(0, 2, "sum", "sum!", left={1: 1}), dump(1, 2, "sum")])
    assert report.headline is not None
    assert [entry.state for entry in report.headline.entries] == ["failed", "left"]
    text = paragraph(report)
    assert "rank 1 had said goodbye before" in text
    assert text.endswith("Make all ranks end after the same number of calls.")


def test_a_rank_that_came_when_it_had_failed_is_told_apart() -> None:
    late = operation("sum!", 0, late_s=7.25)
    rows = [dump(0, 2, "sum!"), dump(1, 2)]
    rows[1] = replace(rows[1], operations=(late,), groups={(1, 0): GroupView((0, 1), 1, {})})
    report = explain(rows)
    assert headline(report) == (0, 0, "failed")
    assert "Entered when it had failed: rank 1, 7.25 s after the first." in paragraph(report)


def test_only_the_last_epoch_counts_and_older_dumps_say_so() -> None:
    report = explain([dump(0, 2, "sum", "max?1", epoch=2), dump(1, 2, "sum!", epoch=1)])
    assert report.epoch == 2
    assert headline(report) == (0, 1, "unfinished")
    assert report.headline is not None
    assert report.headline.entries[1].state == "no dump"
    assert "The dump of rank 1 is of an earlier epoch." in paragraph(report)


def test_of_several_dumps_of_a_rank_the_newest_counts_in_any_order() -> None:
    old = replace(dump(0, 2, "sum", "sum?1"), taken_at=TAKEN - 5)
    files = [old, *dumps(["sum", "sum"], ["sum", "sum"])]
    for _ in range(6):
        random.Random(3).shuffle(files)
        assert explain(files).headline is None


def test_of_several_jobs_the_newest_is_told_and_the_others_are_named() -> None:
    old = [replace(dump(rank, 3, "sum!"), job_id="torch-1") for rank in range(3)]
    new = [replace(dump(rank, 2, "max?"), taken_at=TAKEN + 1) for rank in range(2)]
    for files in ([*old, *new], [*new, *old]):
        report = explain(files)
        assert (report.job_id, report.world_size, report.others) == ("job", 2, (("torch-1", 3),))
        assert [d.rank for d in report.dumps] == [0, 1]
        assert headline(report) == (0, 0, "unfinished")
        assert "older and left out: torch-1 (3 ranks)" in paragraph(report)
    assert explain([dump(0, 2), replace(dump(1, 3), taken_at=TAKEN + 1)]).world_size == 3


def test_no_dump_at_all_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no dump is here"):
        explain([])


# A rank that was lost


RAISED = Loss(1, "trainer raised", "ValueError: no (train.py:5)", place="/src/train.py:5")
DIED = Loss(1, "trainer died", "process 101 closed its connection without a goodbye")


def lost(loss: Loss, *rows: Sequence[str], epoch: int = 1) -> list[RankDump]:
    """Dumps of which all but that of the lost rank tell of the loss."""
    found = [dump(rank, len(rows), *row, epoch=epoch) for rank, row in enumerate(rows)]
    return [d if d.rank == loss.rank else replace(d, losses={epoch: loss}) for d in found]


def lost_op(seq: int, loss: Loss) -> Op:
    """A call that the loss cut short."""
    text = f"rank {loss.rank} is lost: {loss.case}. Call reform()"
    return replace(operation("sum!", seq), error="peer_lost", message=text)


def test_a_rank_that_raised_between_calls_is_named_with_case_and_place() -> None:
    report = explain(lost(RAISED, ["sum"], ["sum"], ["sum"]))
    assert (report.headline, report.loss) == (None, RAISED)
    text = paragraph(report)
    assert "rank 1 was lost: trainer raised (ValueError: no (train.py:5))" in text
    assert "No call was in flight" in text
    assert "rank 1 on host1 raised at /src/train.py:5" in text
    assert "hang" not in text


def test_nobody_is_sent_to_a_process_that_is_dead() -> None:
    files = lost(DIED, ["sum"], ["sum"], ["sum"])
    for rank in (0, 2):
        operations = (*files[rank].operations, lost_op(1, DIED))
        files[rank] = replace(files[rank], operations=operations)
    report = explain(files)
    assert headline(report) == (0, 1, "never entered")
    text = paragraph(report)
    assert "The epoch ended when rank 1 was lost: trainer died (process 101" in text
    assert "It failed on ranks 0 and 2: peer_lost." in text
    assert "py-spy" not in text
    assert "See why that process of rank 1 on host1 ended" in text
    assert "reform" not in text, "the loss is told once"


def test_the_dump_of_a_rank_that_was_gone_is_not_too_old_for_the_next_call() -> None:
    files = lost(RAISED, ["sum"], ["sum"], ["sum"])
    for rank in (0, 2):
        operations = (*files[rank].operations, lost_op(1, RAISED))
        files[rank] = replace(files[rank], operations=operations)
    files[1] = replace(files[1], taken_at=TAKEN - 999.2)
    report = explain(files)
    assert headline(report) == (0, 1, "never entered")
    assert "dump again" not in paragraph(report)


def test_what_failed_before_a_loss_stays_the_first_thing_to_look_at() -> None:
    files = lost(RAISED, ["max!"], ["sum!"])
    text = paragraph(explain(files))
    assert text.index("Ranks part at the first operation") < text.index("After that rank 1 was")
    assert text.endswith("took to operation 0 on each.")


def test_the_rendezvous_is_believed_before_one_ranks_own_view() -> None:
    files = lost(RAISED, ["sum"], ["sum"], ["sum"])
    view = Loss(2, "link lost", partial=True)
    files[0] = replace(files[0], losses={1: view})
    assert explain(files).loss == RAISED
    alone = explain(files[:1])
    assert "one rank's own view" in paragraph(alone)


def test_an_epoch_that_ended_otherwise_says_how() -> None:
    files = [replace(d, broken="the quorum is lost") for d in dumps(["sum"], ["sum"])]
    assert "the epoch is over: the quorum is lost" in paragraph(explain(files))


def test_a_fault_that_was_survived_is_told_and_that_the_job_went_on() -> None:
    before = lost(DIED, ["sum"], ["sum"], ["sum"])
    after = [replace(dump(rank, 3, "sum", "sum", epoch=3), taken_at=TAKEN + 5) for rank in range(3)]
    report = explain([*after, *before])
    assert (report.epoch, report.last_epoch, report.loss) == (1, 3, DIED)
    assert "The job went on after it: epoch 3" in paragraph(report)


def test_a_fault_is_also_told_by_what_a_later_dump_remembers() -> None:
    past = operation("sum", 0, epoch=1)
    later = [
        replace(dump(rank, 3, "sum", epoch=2, others=[past]), losses={1: DIED}) for rank in (0, 2)
    ]
    report = explain([*later, dump(1, 3, epoch=2)])
    assert (report.epoch, report.loss) == (1, DIED)


def test_calls_that_only_made_room_for_the_next_epoch_are_no_fault() -> None:
    cut = replace(operation("sum!", 0), error="membership_changed")
    before = [replace(dump(rank, 2, epoch=1), operations=(cut,)) for rank in range(2)]
    after = [replace(dump(rank, 2, "sum", epoch=2), taken_at=TAKEN + 5) for rank in range(2)]
    report = explain([*before, *after])
    assert (report.epoch, report.headline) == (2, None)


def test_what_is_listed_is_bounded() -> None:
    report = explain(dumps(["sum!"] * 500, ["sum!"] * 500))
    assert len(report.partings) == 100
    assert headline(report) == (0, 0, "failed")


@pytest.mark.parametrize(
    ("ours", "theirs", "partner", "says"),
    [
        (message("recv", 1, tag=4), [], "not posted", "rank 1 has posted no such send"),
        (message("send", 1, tag=4), [], "not posted", "rank 1 has posted no such receive"),
        (
            message("recv", 1, tag=4),
            [message("send", 0, tag=5), message("send", 2, tag=4), message("recv", 0, tag=4)],
            "not posted",
            "rank 1 has posted no such send",
        ),
        (message("recv", 1, tag=4), [message("send", 0, tag=4)], "posted", "the send too"),
        (message("send", 1), [message("recv", -1)], "posted", "the receive too"),
        (message("recv", 1), [message("send", 0, count=6)], "differs", "shape=(6,)"),
        (message("recv", 1), [message("send", 0, dtype="int32")], "differs", "dtype=int32"),
        (message("recv", 1), [message("send", 0, state="done", number=0)], "sent", "has sent it"),
        (message("recv", -1, tag=4), [], "any", "any member may send it"),
        (message("recv", 2, tag=4), [], "no dump", "of rank 2 there is no dump"),
    ],
)
def test_a_message_that_is_stuck_is_shown_with_its_other_side(
    ours: Op, theirs: list[Op], partner: str, says: str
) -> None:
    report = explain([dump(0, 3, "sum", messages=[ours]), dump(1, 3, "sum", messages=theirs)])
    (mine,) = [m for m in report.messages if m.rank == 0]
    assert (mine.op, mine.partner) == (ours, partner)
    assert f"tag {mine.op.tag}, on rank 0 is in flight" in paragraph(report)
    assert says in paragraph(report)


def test_a_send_that_was_received_already_is_not_taken_for_the_one_that_is_awaited() -> None:
    got = message("recv", 1, state="done", number=0)
    sent = message("send", 0, state="done", number=0)
    report = explain([dump(0, 2, messages=[got, message("recv", 1)]), dump(1, 2, messages=[sent])])
    (stuck,) = report.messages
    assert stuck.partner == "not posted"


def test_a_collective_that_is_open_comes_before_messages_and_the_chain_joins_both() -> None:
    stuck = message("recv", 2, tag=9)
    report = explain(
        [
            dump(0, 3, "sum", "sum?1"),
            dump(1, 3, "sum", messages=[stuck]),
            dump(2, 3, "sum", "sum?0"),
        ]
    )
    assert headline(report) == (0, 1, "never entered")
    assert report.circle
    assert "wait in a circle: 0 → 1 → 2 → 0" in paragraph(report)
    assert "Let one of them go first" in paragraph(report)
