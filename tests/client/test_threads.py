"""Several threads on one communicator: leaders, followers, and the order of calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ringd.errors import CollectiveTimeoutError
from ringd.wire import ipc
from ringd_client import Communicator
from tests.client.conftest import eventually
from tests.client.stub_daemon import StubDaemon


def at_once(count: int, work: Callable[[int], Any]) -> None:
    failures: list[BaseException] = []

    def run(n: int) -> None:
        try:
            work(n)
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert not any(thread.is_alive() for thread in threads)


def test_many_threads_get_their_own_results(comm: Communicator) -> None:
    def work(n: int) -> None:
        for round_ in range(150):
            tensor = torch.full((64,), float(n + round_))
            if round_ % 3:
                comm.all_reduce(tensor)
            else:
                comm.all_reduce_async(tensor).wait()
            assert tensor.tolist() == [3.0 * (n + round_)] * 64

    at_once(6, work)
    assert comm._arena.used_bytes == 0


def test_requests_travel_in_the_order_of_their_numbers(
    comm: Communicator, daemon: StubDaemon
) -> None:
    at_once(6, lambda n: [comm.barrier() for _ in range(50)])
    requests = [m[1] for m in daemon.log if m[0] == ipc.SUBMIT]
    assert requests == sorted(requests)
    assert len(set(requests)) == 300


def test_a_thread_whose_operation_is_late_leads_for_the_others(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = lambda s: "hold" if s.spec.shape == (9,) else None
    slow = torch.ones(9)
    leader = threading.Thread(target=comm.all_reduce, args=(slow,))
    leader.start()
    eventually(lambda: daemon.held)
    at_once(4, lambda n: [comm.all_reduce(torch.ones(3)) for _ in range(20)])
    assert leader.is_alive()
    daemon.release()
    leader.join(15)
    assert slow.tolist() == [3.0] * 9


def test_when_the_leader_leaves_a_follower_reads_on(comm: Communicator, daemon: StubDaemon) -> None:
    daemon.script = lambda s: "hold"
    handles = [comm.all_reduce_async(torch.ones(3)) for _ in range(3)]
    waiting = [threading.Thread(target=h.wait) for h in handles]
    for thread in waiting:
        thread.start()
        time.sleep(0.02)
    eventually(lambda: len(daemon.held) == 3)
    for thread in waiting:
        daemon.answer(daemon.held.pop(0))
        thread.join(15)
        assert not thread.is_alive()


def test_a_follower_whose_wait_expires_leaves_the_others_alone(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = lambda s: "hold"
    first, second = comm.barrier_async(), comm.barrier_async()
    leader = threading.Thread(target=first.wait)
    leader.start()
    time.sleep(0.02)
    with pytest.raises(CollectiveTimeoutError):
        second.wait(0.05)
    eventually(lambda: len(daemon.held) == 2)
    daemon.release()
    second.wait(5)
    leader.join(15)


def test_refused_and_good_calls_mix(comm: Communicator, daemon: StubDaemon) -> None:
    def work(n: int) -> None:
        for _ in range(30):
            if n % 2:
                with pytest.raises(ValueError, match="op"):
                    comm.all_reduce(torch.ones(3), "x")
            else:
                comm.all_reduce(torch.ones(3))

    at_once(4, work)
    eventually(lambda: len(daemon.poisons) == 60)
