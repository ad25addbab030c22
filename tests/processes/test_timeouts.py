"""Deadlines of calls, of silence and of waits, and the client's own clock."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.processes.harness import WIDER, Daemons, until
from tests.processes.programs import basics, coordinator, faults, messages

Standing = Callable[[int], Daemons]
SLACK_S = 0.25 * WIDER


def says_all(told: dict[str, Any], *, waiting_on: list[int], seq: int) -> None:
    """A timeout's fields and its text."""
    assert told["error"] == "CollectiveTimeoutError", told
    assert "TimeoutError" in told["is"]
    assert told["retry"] == "same_epoch"
    fields = told["fields"]
    assert fields["op"] == "all_reduce"
    assert fields["seq"] == seq
    assert fields["waiting_on"] == waiting_on
    assert 0 <= fields["bytes_done"] < fields["bytes_total"]
    assert fields["elapsed_s"] > 0
    for word in ("all_reduce", f"operation {seq}", f"rank {waiting_on[0]}", "bytes", " s"):
        assert word in told["text"]
    assert told["untouched"]


def test_a_rank_that_never_enters_is_named_and_a_late_entrant_gets_the_same_verdict(
    standing: Standing,
) -> None:
    group = standing(3)
    group.start(faults.call, but=2, timeout_s=1.0, algorithm="exchange")
    first = group.results(but=2)
    for told in first:
        says_all(told, waiting_on=[2], seq=0)
        assert 0.9 < told["took_s"] < 1.0 + SLACK_S
    late = group.trainer(2).do(faults.call, timeout_s=60.0, algorithm="exchange")
    assert late["error"] == "CollectiveTimeoutError"
    assert late["took_s"] < SLACK_S
    own = " Rank 2 had not made this call when it ended: this rank came late itself."
    verdict, said, _ = late["text"].partition(own)
    assert said
    assert all(told["text"].startswith(verdict) for told in first)
    assert [told["value"] for told in group.do(faults.call)] == [3.0] * 3


def test_the_first_deadline_to_expire_ends_the_operation_for_all(standing: Standing) -> None:
    group = standing(3)
    group.trainer(0).start(faults.call, timeout_s=60.0, algorithm="exchange")
    group.trainer(1).start(faults.call, timeout_s=1.0, algorithm="exchange")
    for told in group.results(but=2):
        assert told["error"] == "CollectiveTimeoutError"
        assert told["took_s"] < 1.0 + 2 * SLACK_S
    assert (
        group.trainer(2).do(faults.call, algorithm="exchange")["error"] == "CollectiveTimeoutError"
    )
    assert [told["value"] for told in group.do(faults.call)] == [3.0] * 3


def test_m4_a_rank_that_makes_one_call_less_is_named_with_the_call_it_did_not_make(
    standing: Standing,
) -> None:
    group = standing(2)
    group.trainer(0).start(faults.call, times=5, timeout_s=1.0, algorithm="exchange")
    assert group.trainer(1).do(faults.call, times=4, algorithm="exchange")["value"] == 2.0
    told = group.trainer(0).result()
    says_all(told, waiting_on=[1], seq=4)  # the fifth: they count from 0
    assert 0.9 < told["took_s"] < 1.0 + SLACK_S
    late = group.trainer(1).do(faults.call, algorithm="exchange")
    assert late["error"] == "CollectiveTimeoutError"
    assert [told["value"] for told in group.do(faults.call)] == [2.0] * 2


@pytest.mark.parametrize("algorithm", ["auto", "exchange", "tree"])
def test_a_barrier_that_runs_out_of_time_lists_all_ranks_that_had_not_come(
    standing: Standing, algorithm: str
) -> None:
    group = standing(5)
    late = (1, 4)
    group.start(faults.meet, but=late, timeout_s=1.0, algorithm=algorithm)
    for told in group.results(but=late):
        assert told["error"] == "CollectiveTimeoutError", told
        assert told["fields"]["waiting_on"] == list(late)
        assert told["took_s"] < 1.0 + SLACK_S
    for rank in late:
        told = group.trainer(rank).do(faults.meet, algorithm=algorithm)
        assert told["error"] == "CollectiveTimeoutError"
    assert [told["error"] for told in group.do(faults.meet)] == [None] * 5


def test_recv_timeout_ends_an_operation_whose_peer_is_silent_long_before_its_deadline(
    standing: Standing,
) -> None:
    group = standing(3)
    group.start(faults.call, but=2, recv_timeout_ms=300, timeout_s=60.0, algorithm="exchange")
    for told in group.results(but=2):
        says_all(told, waiting_on=[2], seq=0)
        assert told["fields"]["setting"] == "recv_timeout_ms"
        assert 0.25 < told["took_s"] < 0.3 + SLACK_S
    assert (
        group.trainer(2).do(faults.call, algorithm="exchange")["error"] == "CollectiveTimeoutError"
    )
    assert [told["value"] for told in group.do(faults.call)] == [3.0] * 3


def test_an_expired_wait_leaves_the_operation_running(standing: Standing) -> None:
    group = standing(2)
    group.trainer(0).do(faults.call_async)
    expired = group.trainer(0).do(faults.wait, timeout_s=0.2)
    assert expired["error"] == "CollectiveTimeoutError"
    assert expired["took_s"] < 0.2 + SLACK_S
    assert group.trainer(0).do(faults.wait, timeout_s=0.01)["error"] == "CollectiveTimeoutError"
    assert group.trainer(1).do(faults.call)["value"] == 2.0
    assert group.trainer(0).do(faults.wait)["value"] == 2.0


@pytest.mark.parametrize("n", [2, 3])
def test_the_client_keeps_its_own_clock_when_its_daemon_is_stopped(
    daemons: Callable[..., Daemons], n: int
) -> None:
    group = daemons(n)
    group.connect()
    group.daemon_signal(1, signal.SIGSTOP)
    try:
        group.start(faults.call, timeout_s=1.0)
        told = group.results()
    finally:
        group.daemon_signal(1, signal.SIGCONT)
    own = told.pop(1)
    assert own["error"] == "CollectiveTimeoutError", own
    assert own["retry"] == "same_epoch"
    assert own["fields"]["daemon_pid"] == group.daemon_pid(1)
    assert own["fields"]["daemon_state"] == "stopped"
    assert own["fields"]["partial"] is True
    assert "SIGCONT" in own["text"]
    assert 1.2 < own["took_s"] < 1.0 + SLACK_S
    assert own["untouched"]
    for peer in told:
        assert peer["error"] == "CollectiveTimeoutError", peer
        assert peer["fields"]["culprits"] == [1]
        assert peer["took_s"] < 1.0 + SLACK_S
        assert peer["untouched"]
    for _ in range(2):
        assert [again["value"] for again in group.do(faults.call)] == [float(n)] * n


@pytest.mark.parametrize("before", [True, False], ids=["before the call", "in mid-call"])
def test_a_daemon_that_was_stopped_for_most_of_a_call_gives_it_no_more_time(
    daemons: Callable[..., Daemons], *, before: bool
) -> None:
    group = daemons(3)
    group.connect()
    group.do(faults.call)
    deadline_s = 2.0
    if before:
        group.daemon_signal(1, signal.SIGSTOP)
    began = time.monotonic()
    group.trainer(1).start(faults.call, timeout_s=deadline_s)
    group.trainer(0).start(faults.call, timeout_s=60.0)  # rank 1's ends it for all
    if not before:
        until(lambda: group.status(1)["in_flight"] == 1, "rank 1 waits")
        group.daemon_signal(1, signal.SIGSTOP)
    try:
        until(lambda: time.monotonic() > began + 0.6 * deadline_s, "most of its time is over")
    finally:
        group.daemon_signal(1, signal.SIGCONT)
    for told in group.results(but=2):
        assert told["error"] == "CollectiveTimeoutError", told
        assert "daemon_state" not in told["fields"], told  # its daemon said it, in time
        assert 2 in told["fields"]["culprits"], told
        assert told["took_s"] < deadline_s + 0.25, told
    group.trainer(2).do(faults.call)
    assert [again["value"] for again in group.do(faults.call)] == [3.0] * 3


def test_calls_that_a_stopped_daemon_had_not_read_count_when_it_goes_on(
    daemons: Callable[..., Daemons],
) -> None:
    group = daemons(2)
    group.connect()
    group.do(faults.call)
    group.daemon_signal(1, signal.SIGSTOP)
    try:
        group.start(faults.call, times=3, timeout_s=0.3)
        group.results()
        alone = group.trainer(1).do(faults.meet, timeout_s=0.1)
    finally:
        group.daemon_signal(1, signal.SIGCONT)
    assert alone["error"] == "CollectiveTimeoutError"
    # Rank 1 has made one call more. Rank 0 is told, whatever it calls there; then they are in step.
    told = group.trainer(0).do(faults.call)
    assert told["error"] in ("CollectiveTimeoutError", "CollectiveMismatchError"), told
    assert "barrier" in told["text"]
    assert "rank 1" in told["text"]
    assert [again["value"] for again in group.do(faults.call)] == [2.0] * 2


@pytest.mark.parametrize("is_read", [True, False])
def test_a_receive_that_the_clients_own_clock_ended_takes_no_message_with_it(
    daemons: Callable[..., Daemons], is_read: bool
) -> None:
    """The message comes while the daemon is stopped, after it has read of the receive or before."""
    group = daemons(2)
    group.connect()
    sender, receiver = group.trainer(0), group.trainer(1)
    sender.start(messages.send_one, number=0)
    assert receiver.do(messages.receive_one, timeout_s=30.0)["number"] == 0
    assert sender.result()["error"] is None
    if is_read:
        receiver.start(messages.receive_one, timeout_s=1.0)
        until(lambda: group.status(1)["messages"], "the daemon has read of the receive")
    group.daemon_signal(1, signal.SIGSTOP)
    try:
        if not is_read:
            receiver.start(messages.receive_one, timeout_s=1.0)
        assert sender.do(messages.send_one, number=1)["error"] is None
        told = receiver.result()
        assert told["error"] == "CollectiveTimeoutError", told
        assert (told["fields"]["daemon_state"], told["number"]) == ("stopped", -1)
    finally:
        group.daemon_signal(1, signal.SIGCONT)
    assert receiver.do(messages.receive_one, timeout_s=30.0)["number"] == 1


@pytest.mark.parametrize("n", [2, 3])
def test_a_reform_that_its_stopped_daemon_reads_too_late_does_not_put_the_rank_out(
    daemons: Callable[..., Daemons], n: int
) -> None:
    """The next one is read with it, or right after."""
    group = daemons(n)
    group.connect()
    trainer = group.trainer(0)
    group.daemon_signal(0, signal.SIGSTOP)
    try:
        told = trainer.do(coordinator.reform, timeout_s=0.3)
        assert told["error"] == "DaemonLostError", told
    finally:
        group.daemon_signal(0, signal.SIGCONT)
    for change in group.do(coordinator.reform, timeout_s=20.0):
        assert change["error"] is None, change
        assert change["value"] == {"epoch": 2, "ranks": list(range(n))}
    assert [told["value"] for told in group.do(faults.call)] == [float(n)] * n


def test_a_daemon_that_stays_stopped_holds_up_no_call_beyond_its_deadline_and_no_close(
    daemons: Callable[..., Daemons],
) -> None:
    group = daemons(2)
    group.connect()
    group.daemon_signal(1, signal.SIGSTOP)
    try:
        for timeout_s in (0.1, 0.5):
            for program in (faults.call, faults.meet):
                told = group.trainer(1).do(program, timeout_s=timeout_s)
                assert told["error"] == "CollectiveTimeoutError", told
                assert told["fields"]["daemon_state"] == "stopped"
                assert timeout_s + 0.2 < told["took_s"] < timeout_s + SLACK_S + 0.25
        begun = time.monotonic()
        group.trainer(1).do(basics.disconnect)
        assert time.monotonic() - begun < 4 * SLACK_S
    finally:
        group.daemon_signal(1, signal.SIGCONT)


def test_a_stopped_trainer_only_delays_its_peers(standing: Standing) -> None:
    group = standing(3)
    group.trainer(1).signal(signal.SIGSTOP)
    try:
        group.start(faults.call, but=1)
        group.trainer(1).start(faults.call)
        until(lambda: group.status(0)["in_flight"] == 1, "rank 0 waits")
    finally:
        group.trainer(1).signal(signal.SIGCONT)
    assert [told["value"] for told in group.results()] == [3.0] * 3


def test_a_stopped_daemon_is_found_by_its_missing_heartbeat(
    daemons: Callable[..., Daemons],
) -> None:
    group = daemons(3)
    group.connect()
    group.daemon_signal(2, signal.SIGSTOP)
    try:
        group.start(faults.call, but=2, timeout_s=60.0)
        for told in group.results(but=2):
            assert told["error"] == "PeerLostError"
            assert told["fields"]["rank"] == 2
            assert told["took_s"] < 4.0 * WIDER
    finally:
        group.daemon_signal(2, signal.SIGCONT)
