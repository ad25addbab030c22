"""Which deadline a call has, who set it, and that it is one for the whole call."""

# ruff: noqa: PT012 (a block is the call under test)

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ringd_client
from ringd.errors import DaemonLostError, InvalidArgumentError, InvalidTensorError, RingdError
from ringd.wire.bounds import OF_CALL, OF_COMMUNICATOR, OF_DAEMON
from ringd_client import Communicator, Recv
from tests.client.conftest import eventually, is_held
from tests.client.stub_cluster import Cluster
from tests.client.stub_daemon import StubDaemon

BAD = [0, -1, float("nan"), float("inf"), "5"]


def bound_of(daemon: StubDaemon) -> list[Any]:
    return list(daemon.submitted[-1].bound)


def test_a_call_says_the_time_that_was_asked_for_and_who_asked(
    start_daemon: Callable[..., StubDaemon],
) -> None:
    daemon, tensor = start_daemon(), torch.ones(3)
    with ringd_client.connect(socket=daemon.path) as comm:
        comm.all_reduce(tensor)
        assert bound_of(daemon) == [300.0, OF_DAEMON]
        comm.all_reduce(tensor, timeout_s=2.3456789)
        assert bound_of(daemon) == [2.3456789, OF_CALL]
        assert 1 < daemon.submitted[-1].timeout_s <= 2.3456789
        assert comm.default_timeout_s == 300
    daemon = start_daemon()
    with ringd_client.connect(socket=daemon.path, default_timeout_s=7.5) as comm:
        comm.barrier()
        assert bound_of(daemon) == [7.5, OF_COMMUNICATOR]
        comm.barrier(timeout_s=20)  # the default is no cap
        assert bound_of(daemon) == [20.0, OF_CALL]
        assert comm.default_timeout_s == 7.5


@pytest.mark.parametrize("make", ["new_group", "split"])
def test_a_group_has_its_own_default_or_its_parents(
    new_cluster: Callable[[int], Cluster], make: str
) -> None:
    def grouped(comm: Communicator, **options: Any) -> Communicator:
        args: tuple[Any, ...] = ([0, 1],) if make == "new_group" else (1,)
        found = getattr(comm, make)(*args, **options)
        assert found is not None
        return found

    cluster = new_cluster(2)

    def program(comm: Communicator) -> None:
        daemon = cluster.daemons[comm.rank]
        own = grouped(comm, timeout_s=50, default_timeout_s=4 + comm.rank)
        assert bound_of(daemon) == [50.0, OF_CALL]  # of the call that made it
        heir, other = grouped(own), grouped(own, default_timeout_s=9)
        for group, timeout_s in ((own, 4 + comm.rank), (heir, 4 + comm.rank), (other, 9)):
            assert group.default_timeout_s == timeout_s
            group.barrier()
            assert bound_of(daemon) == [timeout_s, OF_COMMUNICATOR]
        plain = grouped(comm)
        plain.barrier()
        assert bound_of(daemon) == [300.0, OF_DAEMON]
        for group in (own, heir, other, plain):
            group.close()

    cluster.run(program)


@pytest.mark.parametrize("default", BAD)
def test_a_bad_default_is_refused_and_takes_its_place(comm: Communicator, default: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="default_timeout_s is a positive number"):
        comm.new_group([0, 1], default_timeout_s=default)
    with pytest.raises(InvalidArgumentError, match="default_timeout_s is a positive number"):
        comm.split(1, default_timeout_s=default)


def test_a_refused_default_of_a_group_is_told_to_the_peers(
    comm: Communicator, daemon: StubDaemon
) -> None:
    for call in (comm.new_group, comm.split):
        with pytest.raises(InvalidArgumentError):
            call([0, 1] if call == comm.new_group else 1, default_timeout_s=0)  # type: ignore[arg-type]
    eventually(lambda: len(daemon.poisons) == 2)
    assert [spec.collective for spec, _ in daemon.poisons] == ["new_group", "all_gather"]


@pytest.mark.parametrize("default", BAD)
def test_a_bad_default_of_the_world_is_refused(daemon: StubDaemon, default: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="default_timeout_s"):
        ringd_client.connect(socket=daemon.path, default_timeout_s=default)


def test_all_operations_of_one_call_share_its_deadline(
    comm: Communicator, daemon: StubDaemon
) -> None:
    """The first operation of each call takes its time; the second one has what is left."""

    def slowly(submitted: Any) -> None:
        time.sleep(0.1)  # the daemon's work

    daemon.script = slowly
    calls: list[Callable[[], Any]] = [
        lambda: comm.all_gather_object("x" * 5000, timeout_s=9.125),
        lambda: comm.gather_object("x" * 5000, 1, timeout_s=9.125),
        lambda: comm.split(None, timeout_s=9.125),
    ]
    for call in calls:
        before = len(daemon.submitted)
        with contextlib.suppress(RingdError):  # what the stand-in's other ranks gave is no object
            call()
        made = daemon.submitted[before:]
        assert {tuple(one.bound) for one in made} == {(9.125, OF_CALL)}
        assert all(one.timeout_s <= 9.125 for one in made)
        later = [one.timeout_s for one in made[1:]]
        assert all(left_s <= 9.125 - 0.1 for left_s in later)


def test_messages_of_a_batch_share_one_beginning(comm: Communicator) -> None:
    handles = comm.batch_p2p([Recv(torch.ones(3), 0, tag) for tag in range(3)], timeout_s=5)
    assert len({handle._operation.began for handle in handles}) == 1
    assert {handle._operation.bound for handle in handles} == {(5.0, OF_CALL)}


def test_a_block_has_the_shortest_deadline_of_its_calls_and_may_have_more_than_the_default(
    start_daemon: Callable[..., StubDaemon],
) -> None:
    daemon = start_daemon()
    with ringd_client.connect(socket=daemon.path, default_timeout_s=10) as comm:
        for given, expected in (
            ((60.0, 40.0), [40.0, OF_CALL]),
            ((60.0, None), [10.0, OF_COMMUNICATOR]),
            ((None, 3.0), [3.0, OF_CALL]),
        ):
            with comm.coalesce():
                for timeout_s in given:
                    comm.all_reduce(torch.ones(3), timeout_s=timeout_s)
            assert bound_of(daemon) == expected


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), "1", None])
def test_a_wait_takes_any_time_from_nothing_on(
    comm: Communicator, daemon: StubDaemon, timeout_s: Any
) -> None:
    daemon.script = lambda s: "hold"
    handle = comm.barrier_async()
    if timeout_s is not None:
        with pytest.raises(InvalidArgumentError, match="timeout_s is a positive number"):
            handle.wait(timeout_s)
    else:
        with pytest.raises(TimeoutError, match="wait of 0 s"):
            handle.wait(0)
    eventually(lambda: daemon.held)
    daemon.release()
    handle.wait()


@pytest.mark.parametrize("timeout_s", [True, "5", float("nan"), float("inf"), 0, -1, [5]])
def test_what_is_no_time_is_refused_wherever_one_is_taken(
    comm: Communicator, daemon: StubDaemon, timeout_s: Any
) -> None:
    tensor, wrong = torch.ones(3), {"timeout_s": timeout_s}
    handle = comm.barrier_async()
    calls: list[Callable[[], Any]] = [
        lambda: comm.all_reduce(tensor, **wrong),
        lambda: comm.all_reduce(tensor, recv_timeout_ms=timeout_s),
        lambda: comm.all_reduce_async(tensor, **wrong),
        lambda: comm.send(tensor, 0, **wrong),
        lambda: comm.batch_p2p([Recv(tensor, 0)], **wrong),
        lambda: comm.all_gather_object(1, **wrong),
        lambda: comm.sync_state({}, **wrong),
        lambda: comm.new_group([0, 1], **wrong),
        lambda: comm.split(0, **wrong),
        lambda: comm.status(**wrong),
        lambda: comm.newcomers(**wrong),
        lambda: comm.reform(**wrong),
        lambda: ringd_client.connect(socket=daemon.path, **wrong),
        lambda: ringd_client.connect(socket=daemon.path, default_timeout_s=timeout_s),
    ]
    if timeout_s != 0:
        calls.append(lambda: handle.wait(timeout_s))
    for n, call in enumerate(calls):
        with pytest.raises(ValueError, match="is a positive number.* and finite, not") as caught:
            call()
        assert isinstance(caught.value, RingdError), n


@pytest.mark.parametrize("timeout_s", [1e300, 2**62, 10**400, 366 * 86400])
def test_a_time_without_end_is_a_year(daemon: StubDaemon, timeout_s: Any) -> None:
    year_s = 365 * 86400.0
    connected = ringd_client.connect(
        socket=daemon.path, timeout_s=timeout_s, default_timeout_s=timeout_s
    )
    with connected as comm:
        assert comm.default_timeout_s == year_s
        assert daemon.log[0][1]["timeout_s"] <= year_s
        comm.barrier(timeout_s=timeout_s, recv_timeout_ms=timeout_s)
        assert bound_of(daemon)[0] == year_s
        comm.barrier_async().wait(timeout_s)
        comm.status(timeout_s=timeout_s)
        comm.reform(timeout_s=timeout_s)
        assert daemon.reforms[-1]["timeout_s"] == year_s


def test_a_refused_call_waits_no_longer_than_its_deadline_for_a_daemon_that_does_not_read(
    comm: Communicator, daemon: StubDaemon
) -> None:
    comm._connection._transport._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    daemon.reads.clear()

    def flood() -> None:
        with pytest.raises(DaemonLostError):
            while True:
                comm.barrier_async(timeout_s=60)

    thread = threading.Thread(target=flood)
    thread.start()

    def stuck() -> bool:
        count = len(comm._state.pending)
        time.sleep(0.3)
        return count == len(comm._state.pending) and is_held(comm._connection._sender.lock)

    eventually(stuck)
    began = time.monotonic()
    with pytest.raises(InvalidTensorError):
        comm.all_reduce(torch.ones(3).expand(2, 3), timeout_s=0.1)
    assert time.monotonic() - began < 5  # of messages that belong to no call it is 10
    thread.join(30)
    assert not thread.is_alive()
