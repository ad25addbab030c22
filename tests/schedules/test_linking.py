"""Which send meets which receive, which version it reads, and who waits for whom."""

import pytest

from ringd.schedules.build import build_group
from ringd.schedules.linking import (
    SEGMENTS,
    ScheduleError,
    applications,
    in_order,
    in_segments,
    link,
)
from ringd.schedules.model import Recv, Round, Schedule, Send


def group(*rounds: tuple[Round, ...], n_chunks: int = 2) -> tuple[Schedule, ...]:
    return tuple(
        Schedule("all_reduce", "ring", rank, len(rounds), n_chunks, mine)
        for rank, mine in enumerate(rounds)
    )


def test_messages_of_a_link_meet_first_with_first() -> None:
    sender = (Round(sends=(Send(1, 0),)), Round(sends=(Send(1, 1),)))
    receiver = (Round(recvs=(Recv(0, 0, "reduce"), Recv(0, 1, "reduce"))),)
    messages = link(group(sender, receiver))
    assert [(m.chunk, m.sent_in, m.reads, m.makes) for m in messages] == [
        (0, 0, 0, 1),
        (1, 1, 0, 1),
    ]


def test_a_send_reads_what_earlier_rounds_made() -> None:
    reads = [m.reads for m in link(build_group("all_reduce", "ring", world_size=3)) if not m.source]
    assert reads == [0, 1, 1, 1]


def test_reductions_with_no_send_between_them_are_one_application() -> None:
    schedules = build_group("all_reduce", "tree", world_size=8)
    changes = applications(schedules, link(schedules))
    at_root = changes[0, 0, 1]
    assert [message.source for message in at_root.messages] == [1, 2, 4]
    assert (0, 0, 2) not in changes


def test_a_send_between_two_reductions_parts_them() -> None:
    middle = (
        Round(recvs=(Recv(0, 0, "reduce"),)),
        Round(sends=(Send(2, 0),), recvs=(Recv(2, 0, "reduce"),)),
    )
    first = (Round(sends=(Send(1, 0),)),)
    last = (Round(recvs=(Recv(1, 0, "reduce"),), sends=(Send(1, 0),)),)
    schedules = group(first, middle, last)
    changes = applications(schedules, link(schedules))
    assert sorted(key for key in changes if key[0] == 1) == [(1, 0, 1), (1, 0, 2)]


def test_reductions_of_one_round_are_folded_as_listed() -> None:
    schedules = build_group("all_reduce", "exchange", world_size=4)
    changes = applications(schedules, link(schedules))
    assert [message.source for message in changes[1, 0, 1].messages] == [0, 3, 2]


@pytest.mark.parametrize(
    ("sender", "receiver", "text"),
    [
        (Send(1, 0), None, "rank 0 sends 1 messages to rank 1, which receives 0"),
        (None, Recv(0, 0, "copy"), "rank 0 sends 0 messages to rank 1, which receives 1"),
        (Send(1, 0), Recv(0, 1, "copy"), "sends rank 1 chunk 0 in round 0, which expects chunk 1"),
        (Send(1, 0, True), Recv(0, 0, "reduce"), "chunk 0 as partial sums in round 0"),
        (Send(2, 0), None, "rank 0 has no peer 2"),
        (Send(0, 0), None, "rank 0 has no peer 0"),
        (Send(1, 2), Recv(0, 2, "copy"), "rank 0 has no chunk 2"),
    ],
)
def test_what_does_not_match_is_refused(
    sender: Send | None, receiver: Recv | None, text: str
) -> None:
    sends = (Round(sends=(sender,)),) if sender else ()
    recvs = (Round(recvs=(receiver,)),) if receiver else ()
    with pytest.raises(ScheduleError, match=text):
        link(group(sends, recvs))


@pytest.mark.parametrize(
    ("first", "second"), [("copy", "copy"), ("copy", "reduce"), ("reduce", "copy")]
)
def test_a_copy_and_another_receive_on_a_chunk_may_not_run_at_once(first: str, second: str) -> None:
    recvs = (Recv(1, 0, first), Recv(2, 0, second))  # type: ignore[arg-type]
    sends = (Round(sends=(Send(0, 0),)),)
    with pytest.raises(ScheduleError, match="run at once"):
        link(group((Round(recvs=recvs),), sends, sends))


def test_ranks_that_wait_for_each_other_are_a_deadlock() -> None:
    def waits_for(peer: int) -> tuple[Round, ...]:
        return (Round(recvs=(Recv(peer, 0, "reduce"),)), Round(sends=(Send(peer, 0),)))

    schedules = group(waits_for(1), waits_for(0))
    messages = link(schedules)
    with pytest.raises(ScheduleError, match="deadlock: chunk 0 of rank 0 never gets its change"):
        in_order(messages, applications(schedules, messages))


def test_contributions_that_come_in_opposite_orders_are_a_deadlock_without_storage() -> None:
    """Rank 2 folds chunk 0 only with both contributions, but each is behind the other chunk's."""
    one = (Round(sends=(Send(2, 0), Send(2, 1))),)
    other = (Round(sends=(Send(2, 1), Send(2, 0))),)
    moves = [(0, 0), (0, 1), (1, 1), (1, 0)]
    folds = (Round(recvs=tuple(Recv(peer, chunk, "reduce") for peer, chunk in moves)),)
    schedules = group(one, other, folds)
    messages = link(schedules)
    with pytest.raises(ScheduleError, match="deadlock"):
        in_order(messages, applications(schedules, messages))


def test_the_order_puts_what_is_needed_before_what_needs_it() -> None:
    schedules = build_group("all_reduce", "ring", world_size=5)
    messages = link(schedules)
    changes = applications(schedules, messages)
    done: set[tuple[int, int, int]] = set()
    for application in in_order(messages, changes):
        for message in application.messages:
            needed = (message.source, message.chunk, message.reads)
            assert message.reads == 0 or needed in done
        done.add((application.rank, application.chunk, application.version))
    assert done == changes.keys()


# ---------------------------------------------------------------- pacing


def test_a_paced_send_names_the_change_that_it_waits_for() -> None:
    schedules = build_group("all_to_all", "pairwise", world_size=3)
    first, second = (m for m in link(schedules) if m.source == 0)
    assert (first.target, first.after) == (1, None)
    # In round 0 rank 0 received chunk 6 from rank 2.
    assert (second.target, second.after) == (2, (0, 6, 1))


@pytest.mark.parametrize("after", [1, 2])
def test_a_send_after_what_does_not_come_before_is_refused(after: int) -> None:
    sender = (Round(sends=(Send(1, 0, after=after),), recvs=(Recv(1, 1, "copy"),)),)
    receiver = (Round(sends=(Send(0, 1),), recvs=(Recv(0, 0, "copy"),)),)
    with pytest.raises(ScheduleError, match=f"after chunk {after}, which has not come before"):
        link(group(sender, receiver))


def test_ranks_that_pace_each_other_are_a_deadlock() -> None:
    """Each sends only after the other's chunk, which it does not read."""

    def rounds(peer: int, mine: int, theirs: int, *, paced: bool) -> tuple[Round, ...]:
        send = Send(peer, mine, after=theirs if paced else -1)
        return (Round(recvs=(Recv(peer, theirs, "copy"),)), Round(sends=(send,)))

    free, paced = (
        group(rounds(1, 0, 1, paced=paced), rounds(0, 1, 0, paced=paced)) for paced in (False, True)
    )
    messages = link(free)
    in_order(messages, applications(free, messages))
    messages = link(paced)
    with pytest.raises(ScheduleError, match="deadlock"):
        in_order(messages, applications(paced, messages))


# ---------------------------------------------------------------- guards


def test_two_ranks_that_exchange_a_chunk_need_room_for_what_has_left() -> None:
    schedules = build_group("all_reduce", "recursive_doubling", world_size=2)
    messages = link(schedules)
    order = in_order(messages, applications(schedules, messages), guarded=True)
    assert sorted(application.rank for application in order) == [0, 1]


def test_a_guard_that_waits_for_a_send_that_waits_for_the_change_is_a_deadlock() -> None:
    """Both send chunk 0 behind chunk 1, in opposite orders; each change waits for its send."""
    one = (Round((Send(1, 0), Send(1, 1)), (Recv(1, 1, "reduce"), Recv(1, 0, "reduce"))),)
    other = (Round((Send(0, 1), Send(0, 0)), (Recv(0, 0, "reduce"), Recv(0, 1, "reduce"))),)
    schedules = group(one, other)
    messages = link(schedules)
    changes = applications(schedules, messages)
    in_order(messages, changes)
    with pytest.raises(ScheduleError, match="deadlock"):
        in_order(messages, changes, guarded=True)


def test_the_room_of_a_guarded_link_is_a_segments_and_not_a_chunks() -> None:
    """Rank 0's chunk must have left whole before rank 1 sends what guards its own.

    It would be right if the link to rank 1 could hold a whole chunk.
    """
    zero = (
        Round((Send(1, 0),), (Recv(2, 0, "reduce"),)),
        Round(sends=(Send(2, 0),)),
    )
    one = (
        Round(recvs=(Recv(2, 1, "reduce"),)),
        Round((Send(2, 0, after=1),), (Recv(0, 0, "reduce"),)),
    )
    two = (
        Round(sends=(Send(0, 0),)),
        Round(recvs=(Recv(0, 0, "reduce"),)),
        Round((Send(1, 1, after=0),), (Recv(1, 0, "reduce"),)),
    )
    schedules = group(zero, one, two)
    messages = link(schedules)
    in_order(messages, applications(schedules, messages), guarded=True)
    cut = in_segments(schedules)
    messages = link(cut)
    with pytest.raises(ScheduleError, match="deadlock"):
        in_order(messages, applications(cut, messages), guarded=True)


def test_segments_of_a_chunk_pass_in_order_and_pacing_waits_for_the_last() -> None:
    cut = in_segments(build_group("all_to_all", "pairwise", world_size=3))
    assert cut[0].n_chunks == 9 * SEGMENTS
    first, second = cut[0].rounds
    assert first.sends == tuple(Send(1, 1 * SEGMENTS + i) for i in range(SEGMENTS))
    last_of_six = 6 * SEGMENTS + SEGMENTS - 1
    assert [send.after for send in second.sends] == [last_of_six] * SEGMENTS
