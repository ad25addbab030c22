"""A rank is lost, or leaves: who hears of it, how soon, and what becomes of what was called."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.processes.harness import WIDER, Daemons, until
from tests.processes.inventory import cpu_seconds
from tests.processes.links import link_of
from tests.processes.programs import faults

Standing = Callable[[int], Daemons]
Result = dict[str, Any]
WITHIN_S = 1.0 * WIDER
VICTIM = 2


def await_progress(group: Daemons, operations: int = 20) -> None:
    """Until the ranks are in the middle of their work."""
    first = group.status(0)["completed"]
    until(lambda: group.status(0)["completed"] >= first + operations, "operations complete")


def all_survivors_know(survivors: list[Result], lost: int, since: float) -> None:
    for told in survivors:
        assert told["error"] == "PeerLostError", told
        assert told["fields"]["rank"] == lost, told
        assert told["at"] - since < WITHIN_S
        for ended in (*told["pending"], *told["later"]):
            assert ended["error"] == "PeerLostError", told
            assert ended["fields"]["rank"] == lost
            assert ended["retry"] == "new_epoch"
        assert told["ending_took_s"] < WITHIN_S, "a later call raises at once"


def all_sum(group: Daemons) -> None:
    """The next call is an ordinary one."""
    for rank, told in enumerate(group.do(faults.call)):
        assert told["error"] is None, f"rank {rank}: {told}"
        assert told["value"] == group.n


def daemons_are_idle(group: Daemons, ranks: list[int]) -> None:
    pids = [group.daemon_pid(rank) for rank in ranks]

    def quiet() -> bool:
        before = sum(map(cpu_seconds, pids))
        time.sleep(0.5)  # the time in which processor time is measured
        return sum(map(cpu_seconds, pids)) - before <= 0.05 * len(pids)

    until(quiet, "the daemons of the survivors are idle", 10)


def test_t1_a_killed_trainer_is_known_to_all_survivors_and_the_next_epoch_works(
    standing: Standing,
) -> None:
    group = standing(4)
    group.start(faults.reduce_until_error)
    await_progress(group)
    killed_at = group.kill_trainer(VICTIM)
    survivors = group.results(but=VICTIM)
    all_survivors_know(survivors, VICTIM, killed_at)
    assert all("died" in told["fields"]["case"] for told in survivors)
    daemons_are_idle(group, [0, 1, 2, 3])
    group.disconnect(but=VICTIM)
    group.connect()
    all_sum(group)


def test_t1_a_trainer_that_ends_without_a_goodbye_is_known_to_all_survivors(
    standing: Standing,
) -> None:
    group = standing(4)
    group.start(faults.reduce_until_error, but=VICTIM)
    group.trainer(VICTIM).start(faults.reduce_then_vanish, times=20)
    group.trainers.pop(VICTIM).end()
    ended_at = time.monotonic()
    all_survivors_know(group.results(but=VICTIM), VICTIM, ended_at)


def test_m4_a_rank_that_ends_one_call_before_its_peer_is_named_at_once(
    standing: Standing,
) -> None:
    group = standing(2)
    group.trainer(0).start(faults.call, times=5)
    group.trainer(1).start(faults.reduce_then_vanish, times=4)
    group.trainers.pop(1).end()
    told = group.trainer(0).result()
    assert told["error"] == "PeerLostError", told
    assert told["fields"]["rank"] == 1
    assert told["took_s"] < WITHIN_S
    assert told["untouched"]


def test_m5_a_link_that_is_cut_half_way_is_made_anew_and_nothing_is_lost_or_doubled(
    daemons: Callable[..., Daemons],
) -> None:
    group = daemons(2)
    count = 64_000_000  # 256 MB: long enough to be met on its way
    for _ in range(3):
        group.connect()
        with link_of(group, 1, 0) as link:
            half = link.received_bytes + 2 * count
            group.start(faults.cast_large, count=count, timeout_s=50)
            until(lambda h=half, end=link: end.received_bytes > h, "half of the bytes are there")
            link.cut()
        for ended in group.results():
            assert ended["error"] is None, ended
            assert ended["right"]
        all_sum(group)
        if "is made anew" in group.log("daemon0") + group.log("daemon1"):
            break
        group.disconnect()
    else:
        pytest.fail("no cut met the link in three broadcasts")


def test_t1_an_exception_in_the_with_block_is_told_with_its_type_message_and_place(
    standing: Standing,
) -> None:
    group = standing(3)
    group.start(faults.reduce_until_error, but=1)
    group.trainer(1).do(faults.reduce_then_raise, times=20)
    survivors = group.results(but=1)
    all_survivors_know(survivors, 1, time.monotonic())
    for told in survivors:
        assert "raised" in told["fields"]["case"]
        assert "ZeroDivisionError: the loss is not a number" in told["text"]
        assert "faults.py:" in told["text"]


def test_t1_a_killed_daemon_is_known_to_all_survivors_and_to_its_own_trainer(
    daemons: Callable[..., Daemons],
) -> None:
    group = daemons(4)
    group.connect()
    group.start(faults.reduce_until_error)
    await_progress(group)
    killed_at = time.monotonic()
    group.kill_daemon(VICTIM)
    own = group.trainers[VICTIM].result()
    assert own["error"] == "DaemonLostError"
    assert own["at"] - killed_at < WITHIN_S
    assert {e["error"] for e in (*own["pending"], *own["later"])} == {"DaemonLostError"}
    all_survivors_know(group.results(but=VICTIM), VICTIM, killed_at)
    daemons_are_idle(group, [0, 1, 3])
    group.disconnect()
    group.start_daemon(VICTIM)
    group.await_daemon(VICTIM)
    group.connect()
    all_sum(group)


def test_t1_the_asyncio_face_hears_of_a_loss_too(daemons: Callable[..., Daemons]) -> None:
    group = daemons(3)
    group.start(faults.reduce_until_error_in_a_loop)
    until(lambda: group.status(0)["completed"] > 20, "operations complete")
    killed_at = group.kill_trainer(1)
    for told in group.results(but=1):
        assert told["error"] == "PeerLostError"
        assert told["fields"]["rank"] == 1
        assert told["at"] - killed_at < WITHIN_S
        assert set(told["pending"]) == {"PeerLostError"}


def test_a_goodbye_is_no_failure_until_an_operation_needs_who_said_it(standing: Standing) -> None:
    group = standing(3)
    group.start(faults.call, times=3)
    assert [told["value"] for told in group.results()] == [3.0] * 3
    group.disconnect(but=(0, 1))
    until(lambda: group.status(2)["trainer"] is None, "rank 2 is gone")
    group.start(faults.call, but=2)
    for told in group.results(but=2):
        assert told["error"] == "PeerLostError"
        assert told["fields"]["rank"] == 2
        assert "goodbye" in told["text"]
        assert told["took_s"] < WITHIN_S
        assert told["untouched"]


def test_what_a_rank_had_fed_before_its_goodbye_still_completes(standing: Standing) -> None:
    group = standing(3)
    gone = group.trainer(0).do(faults.cast_and_leave, root=0, count=100)
    assert gone["error"] is None
    until(lambda: group.status(0)["trainer"] is None, "the root is gone")
    group.start(faults.cast, but=0, root=0, count=100)
    assert [told["value"] for told in group.results(but=0)] == [1.0, 1.0]


def test_a_close_waits_for_what_its_peers_still_need(standing: Standing) -> None:
    group = standing(3)
    group.trainer(0).start(faults.cast_and_leave, root=0, count=500_000)
    group.start(faults.cast, but=0, root=0, count=500_000)
    assert [told["value"] for told in group.results()] == [1.0] * 3


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_that_is_told_to_end_says_so_and_exits_with_zero(
    daemons: Callable[..., Daemons], signal_number: int
) -> None:
    group = daemons(2)
    group.connect()
    group.daemon_signal(1, signal_number)
    assert group.daemon_exit(1) == 0
    assert not os.path.exists(group.socket(1))
    told = group.trainer(0).do(faults.call, timeout_s=20)
    assert told["error"] == "PeerLostError"
    assert told["took_s"] < WITHIN_S
    assert group.trainer(1).do(faults.call)["error"] == "DaemonLostError"
