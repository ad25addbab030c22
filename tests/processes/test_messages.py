"""Messages between two ranks: which receive gets which, and what bounds hold."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.processes.harness import WIDER, Daemons, until
from tests.processes.inventory import private_bytes
from tests.processes.programs import faults, messages

Standing = Callable[[int], Daemons]
MB = 1_000_000
SLACK_S = 0.25 * WIDER


def test_p1_tags_decide_which_receive_gets_which_message(standing: Standing) -> None:
    told = standing(2).do(messages.tagged, n_tags=100)[1]
    assert told["first"] == [1.0] * 3
    assert told["second"] == [0.0] * 3
    assert told["backwards"] == [True] * 100
    assert told["same"] == [[0], [1], [2], [3]]  # first in, first out


@pytest.mark.parametrize("n", [2, 3])
def test_p3_large_messages_go_round_when_all_begin_before_any_waits(
    standing: Standing, n: int
) -> None:
    for rank, told in enumerate(standing(n).do(messages.around)):
        assert told["source"] == (rank - 1) % n
        assert told["right"]


def test_p3_a_handle_is_done_without_a_wait(standing: Standing) -> None:
    results = standing(2).do(messages.polled, patience_s=2.0 * WIDER)
    assert results == [{"done": True, "right": True}] * 2


def test_p3_messages_to_oneself_and_other_wrong_ones_are_refused_at_once_and_take_no_place(
    standing: Standing,
) -> None:
    group = standing(2)
    for told in group.trainer(0).do(messages.to_oneself):
        assert told["error"] == "InvalidArgumentError", told
        assert "ValueError" in told["is"]
    # Only one rank called so, and the order of calls is as it was.
    assert [told["value"] for told in group.do(faults.call)] == [2.0] * 2
    assert [group.status(rank)["next_seq"] for rank in range(2)] == [1, 1]


def test_p3_two_large_blocking_sends_at_each_other_end_at_the_deadline(standing: Standing) -> None:
    for rank, told in enumerate(standing(2).do(messages.both_send, timeout_s=1.0)):
        first, peer = told["first"], 1 - rank
        assert first["error"] == "CollectiveTimeoutError", first
        assert "TimeoutError" in first["is"]
        assert first["fields"]["op"] == "send"
        assert first["fields"]["peer"] == peer
        assert f"rank {peer}" in first["text"]
        assert (first["fields"]["case"], first["fields"]["culprits"]) == ("deadlock", [0, 1])
        assert 0.9 < first["took_s"] < 1.0 + 0.25 * WIDER
        assert told["next"] == [peer] * 3


@pytest.mark.parametrize("count", [1, 50_000])
def test_a_batch_of_messages_between_all_pairs_arrives(standing: Standing, count: int) -> None:
    for rank, told in enumerate(standing(4).do(messages.exchange_in_batch, count=count)):
        others = [r for r in range(4) if r != rank]
        assert told["told"] == [None] * 3 + others
        assert told["right"]


def test_a_receive_from_anybody_says_who_sent_and_keeps_each_senders_order(
    standing: Standing,
) -> None:
    told = standing(4).do(messages.from_anybody, rounds=100)[0]
    assert told["honest"]
    assert told["in_order"] == [list(range(100))] * 3


def test_a_message_that_is_not_what_its_receiver_expects_is_told_with_both_sides(
    standing: Standing,
) -> None:
    sender, receiver = standing(2).do(messages.mismatched)
    small, large = receiver[:2]
    for told in (small, large):
        assert told["error"] == "CollectiveMismatchError", told
        assert told["untouched"]
    for words in ("float32", "int32", "rank 0"):
        assert words in small["text"]
    for words in ("100000", "100001"):
        assert words in large["text"].replace(",", "")
    assert sender[0]["error"] is None  # it was done when it was copied
    assert sender[1]["error"] == "CollectiveMismatchError"
    assert receiver[2]["value"] == [9.0] * 4


def test_a_receive_that_ran_out_of_time_takes_no_message_with_it(standing: Standing) -> None:
    group = standing(2)
    told = group.trainer(1).do(messages.receive_late, timeout_s=0.3)
    assert told["error"] == "CollectiveTimeoutError"
    assert told["untouched"]
    assert told["fields"]["waiting_on"] == [0]
    group.trainer(0).do(messages.send_number, number=4.0)
    assert group.trainer(1).do(messages.receive_number) == [4.0] * 3


def test_a_receiver_that_does_not_receive_makes_no_daemon_grow(
    daemons: Callable[..., Daemons],
) -> None:
    group = daemons(2)
    group.connect()
    arguments = {"small": 10_000, "large": 3}
    # Once around, so that what is loaded on first use does not count.
    group.trainer(0).start(messages.send_number, number=1.0)
    group.trainer(1).do(messages.receive_number)
    group.trainer(0).result()
    pids = [group.daemon_pid(rank) for rank in range(2)]
    before = [private_bytes(pid) for pid in pids]
    group.trainer(0).start(messages.flood, **arguments)
    # Beyond what may wait at the peer, and what a rank may have in flight, nothing goes.
    until(lambda: group.status(0)["in_flight"] >= 1024, "the sender may not go on")
    peak = [private_bytes(pid) for pid in pids]
    group.trainer(1).start(messages.drain, **arguments)
    assert group.trainer(1).result(110) == []
    group.trainer(0).result(110)
    after = [private_bytes(pid) for pid in pids]
    for rank in range(2):
        assert peak[rank] - before[rank] < 40 * MB, f"rank {rank}"
        assert after[rank] - before[rank] < 40 * MB, f"rank {rank}"
    assert group.complaints() == []
    assert [told["value"] for told in group.do(faults.call)] == [2.0] * 2


def test_a_receive_whose_sender_sleeps_says_where_that_one_is(standing: Standing) -> None:
    group = standing(3)
    group.trainer(1).start(messages.dawdle)
    told = group.trainer(0).do(messages.receive_from_who_sleeps, source=1, timeout_s=1.0)
    assert told["error"] == "CollectiveTimeoutError", told
    assert told["took_s"] < 1.0 + SLACK_S
    fields = told["fields"]
    assert (fields["case"], fields["culprits"], fields["partial"]) == ("never entered", [1], False)
    assert "messages.py" in fields["stacks"]["1"][0]
    assert fields["stacks"]["1"][0].endswith("in dawdle")
    assert "Rank 1 never made the matching send; the trainer of rank 1 (process" in told["text"]
    assert "in dawdle" in told["text"]
    group.trainer(1).result()


def test_a_receive_whose_sender_is_stopped_says_how_to_continue_it(standing: Standing) -> None:
    group = standing(2)
    sender = group.trainer(1)
    sender.signal(signal.SIGSTOP)
    try:
        told = group.trainer(0).do(messages.receive_from_who_sleeps, source=1, timeout_s=1.0)
    finally:
        sender.signal(signal.SIGCONT)
    assert (told["fields"]["case"], told["fields"]["culprits"]) == ("trainer stopped", [1])
    assert f"kill -CONT {sender.pid}" in told["text"]


@pytest.mark.parametrize("onward", ["receive_from_who_sleeps", "all_reduce_with_who_sleeps"])
def test_a_chain_of_receives_names_the_rank_at_its_end_and_where_that_one_is(
    standing: Standing, onward: str
) -> None:
    group = standing(3)
    group.trainer(2).start(messages.dawdle)
    begin = getattr(messages, onward)
    group.trainer(1).start(begin, source=2, timeout_s=2.0 * WIDER)
    told = group.trainer(0).do(messages.receive_from_who_sleeps, source=1, timeout_s=1.0)
    assert told["took_s"] < 1.0 + SLACK_S
    fields = told["fields"]
    assert (fields["case"], fields["culprits"], fields["partial"]) == ("never entered", [2], False)
    assert fields["stacks"]["2"][0].endswith("in dawdle")
    assert fields["chain"] == [0, 1]
    assert "Rank 1 waits itself in a" in told["text"]
    assert "in dawdle" in told["text"]
    group.trainer(1).result()
    group.trainer(2).result()


@pytest.mark.parametrize("pair", [True, False])
def test_a_collective_with_one_that_waits_for_a_message_names_who_does_not_send_it(
    standing: Standing, pair: bool
) -> None:
    told = standing(3).do(messages.reduce_while_one_waits, pair=pair, timeout_s=1.0)
    assert told[0]["took_s"] < 1.0 + SLACK_S
    fields = told[0]["fields"]
    assert (fields["case"], fields["culprits"], fields["partial"]) == ("never entered", [2], False)
    assert fields["stacks"]["2"][0].endswith("in dawdle")
    assert "in dawdle" in told[0]["text"]
    if pair:
        assert fields["chain"] == [0, 1]
        assert "rank 1 waits itself in a recv from rank 2 with tag 0" in told[0]["text"]
    verdicts = {its["fields"]["verdict"] for its in told if its is not None}
    assert verdicts == {fields["verdict"]}


def test_two_receives_from_each_other_are_a_deadlock_and_show_both_programs(
    standing: Standing,
) -> None:
    for rank, told in enumerate(standing(2).do(messages.receive_from_each_other, timeout_s=1.0)):
        fields = told["fields"]
        assert (fields["case"], fields["culprits"]) == ("deadlock", [0, 1]), told
        assert "wait for each other" in told["text"]
        assert f"rank {rank} in a recv from rank {1 - rank} with tag 0" in told["text"]
        for stack in fields["stacks"].values():
            assert stack[0] == "ringd_client.recv (waiting)"
            assert any(frame.endswith("in receive_from_each_other") for frame in stack)
        assert sorted(fields["stacks"]) == ["0", "1"]
