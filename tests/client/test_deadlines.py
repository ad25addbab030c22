"""The client's own clock, and daemons that fall silent, stop reading, or die."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ringd.errors import (
    CollectiveTimeoutError,
    CommunicatorClosedError,
    DaemonLostError,
    PeerLostError,
    ResourceError,
    RingdError,
    TooManyOperationsError,
)
from ringd.wire import ipc
from ringd_client import Communicator, _core
from ringd_client import _collectives as collectives
from ringd_client._operation import GRACE_S, Operation
from ringd_client._regions import Region
from tests.client.conftest import eventually, is_held
from tests.client.stub_daemon import StubDaemon


def mute(submitted: object) -> str:
    return "mute"


def timed(call: Any) -> tuple[float, RingdError]:
    began = time.monotonic()
    with pytest.raises(RingdError) as caught:
        call()
    return time.monotonic() - began, caught.value


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("timeout_s", [0.01, 0.2])
def test_a_silent_daemon_is_given_up_at_the_deadline_and_a_quarter_second(
    comm: Communicator, daemon: StubDaemon, asynchronous: bool, timeout_s: float
) -> None:
    daemon.script = mute
    tensor = torch.ones(3)
    if asynchronous:
        elapsed_s, error = timed(lambda: comm.all_reduce_async(tensor, timeout_s=timeout_s).wait())
    else:
        elapsed_s, error = timed(lambda: comm.all_reduce(tensor, timeout_s=timeout_s))
    assert isinstance(error, CollectiveTimeoutError)
    assert "all_reduce op=sum" in str(error)
    assert error.timeout_s == timeout_s
    assert timeout_s + GRACE_S <= elapsed_s < timeout_s + GRACE_S + 4
    assert tensor.tolist() == [1, 1, 1]


def test_a_handle_nobody_waits_for_ends_by_the_clients_clock_too(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = mute
    handle = comm.all_reduce_async(torch.ones(3), timeout_s=0.05)
    began = time.monotonic()
    eventually(handle.done)
    assert time.monotonic() - began > 0.2
    assert isinstance(handle.exception(), CollectiveTimeoutError)


def test_an_answer_that_has_come_counts_where_the_client_itself_was_held_up(
    comm: Communicator, daemon: StubDaemon
) -> None:
    tensor = torch.ones(3)
    operation = collectives.all_reduce(comm, tensor, timeout_s=0.01)
    connection = comm._connection
    connection.post(operation)
    eventually(lambda: connection._transport.watch(0.0))
    connection.give_up(operation)
    assert operation.error is None
    assert tensor.tolist() == [3, 3, 3]


def test_memory_of_an_operation_given_up_is_held_until_the_daemon_wakes_up(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = lambda s: "hold"
    tensor = torch.ones(3)
    timed(lambda: comm.all_reduce(tensor, timeout_s=0.01))
    assert comm._arena.used_bytes > 0
    daemon.script = lambda s: None
    daemon.release()
    other = torch.ones(3)
    comm.all_reduce(other)
    assert other.tolist() == [3, 3, 3]
    assert comm._arena.used_bytes == 0
    assert tensor.tolist() == [1, 1, 1]  # the call had raised: its tensor is left alone


def test_calls_that_were_given_up_take_room_until_the_daemon_has_answered(
    comm: Communicator, daemon: StubDaemon
) -> None:
    comm._state.max_in_flight = 3
    daemon.script = lambda s: "hold"
    for _ in range(3):
        with pytest.raises(CollectiveTimeoutError):
            comm.barrier(timeout_s=0.01)
    for _ in range(2):
        with pytest.raises(TooManyOperationsError):
            comm.barrier()
    daemon.script = lambda s: None
    daemon.release()
    comm.barrier()


def test_a_daemon_that_does_not_read_is_lost_at_the_deadline(
    comm: Communicator, daemon: StubDaemon
) -> None:
    comm._connection._transport._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    daemon.reads.clear()
    # The stand-in takes one more message, or none, before it looks at the switch.
    handles = []

    def flood() -> None:
        while True:
            handles.append(comm.barrier_async(timeout_s=0.2 if handles else 60))

    elapsed_s, error = timed(flood)
    assert isinstance(error, DaemonLostError)
    assert "does not read" in str(error)
    assert 0.4 < elapsed_s < 5
    for handle in handles[1:]:  # the first may have been answered
        assert isinstance(timed(handle.wait)[1], DaemonLostError)


def test_a_call_does_not_wait_longer_because_another_thread_is_stuck_in_sending(
    comm: Communicator, daemon: StubDaemon
) -> None:
    comm._connection._transport._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    daemon.reads.clear()

    def flood() -> None:
        while True:
            comm.barrier_async(timeout_s=60)

    thread = threading.Thread(target=timed, args=(flood,))
    thread.start()

    def stuck() -> bool:
        count = len(comm._state.pending)
        time.sleep(0.3)
        return count == len(comm._state.pending) and is_held(comm._connection._sender.lock)

    eventually(stuck)
    elapsed_s, error = timed(lambda: comm.barrier(timeout_s=0.1))
    assert isinstance(error, DaemonLostError)
    assert 0.3 < elapsed_s < 5
    thread.join(15)
    assert not thread.is_alive()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_daemon_that_dies_ends_everything_at_once(
    comm: Communicator, daemon: StubDaemon, asynchronous: bool
) -> None:
    daemon.script = mute
    tensor = torch.ones(3)
    pending = comm.barrier_async()
    threading.Timer(0.05, daemon.die).start()
    if asynchronous:
        _, error = timed(comm.all_reduce_async(tensor).wait)
    else:
        _, error = timed(lambda: comm.all_reduce(tensor))
    assert isinstance(error, DaemonLostError)  # the call's own deadline is beyond this test's
    eventually(pending.done)
    assert isinstance(timed(pending.wait)[1], DaemonLostError)
    assert isinstance(timed(lambda: comm.all_reduce(tensor))[1], DaemonLostError)
    assert tensor.tolist() == [1, 1, 1]
    comm.close()
    assert isinstance(timed(comm.barrier)[1], CommunicatorClosedError)


def test_handles_that_nobody_waits_for_end_with_the_daemon(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = mute
    handle = comm.all_reduce_async(torch.ones(3))
    time.sleep(0.05)
    daemon.die()
    eventually(handle.done)
    assert isinstance(handle.exception(), DaemonLostError)


def test_a_daemon_that_says_bye_is_quoted(comm: Communicator, daemon: StubDaemon) -> None:
    daemon.send(ipc.BYE)
    daemon.die()
    error = timed(lambda: comm.all_reduce(torch.ones(3)))[1]
    assert isinstance(error, DaemonLostError)
    assert "it said that it ends" in str(error)


@pytest.mark.parametrize("garbage", [b"\xc1", ipc.pack("kind"), ipc.pack(ipc.DONE)])
def test_a_daemon_that_sends_garbage_is_lost(
    comm: Communicator, daemon: StubDaemon, garbage: bytes
) -> None:
    daemon.script = mute
    threading.Timer(0.05, lambda: daemon.send_raw(garbage)).start()
    error = timed(lambda: comm.all_reduce(torch.ones(3)))[1]
    assert isinstance(error, DaemonLostError)
    assert "no message of this protocol" in str(error)
    assert daemon.gone.wait(10), "it is hung up on, so that it tells the others"


def test_an_answer_that_there_is_no_memory_for_is_no_garbage(
    comm: Communicator, daemon: StubDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unpack(data: object, followed: bool = False) -> None:
        raise MemoryError("Unable to allocate")

    daemon.script = lambda s: CollectiveTimeoutError("waiting on rank 2", op="all_reduce", seq=7)
    monkeypatch.setattr(_core, "ipc", types.SimpleNamespace(**(vars(ipc) | {"unpack": unpack})))
    error = timed(lambda: comm.all_reduce(torch.ones(3)))[1]
    assert isinstance(error, DaemonLostError)
    assert "this program has no memory left to take its answer in" in str(error)
    assert daemon.gone.wait(10)
    assert daemon.goodbye["how"] == "raised"
    assert "no memory left" in daemon.goodbye["detail"], "the others hear why"


def test_without_room_for_a_thread_who_reads_writes_what_was_dropped(
    comm: Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    dropped = torch.ones(5)
    comm.all_reduce_async(dropped)
    comm.barrier()
    assert dropped.tolist() == [3.0] * 5


def test_without_room_for_a_thread_who_waits_or_asks_reads_for_itself(
    comm: Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        waited, asked = comm.all_reduce_async(torch.ones(3)), comm.all_reduce_async(torch.ones(4))
        assert waited.wait().tolist() == [3.0] * 3
        eventually(asked.done)
    unasked = torch.ones(5)
    comm.all_reduce_async(unasked)
    eventually(lambda: unasked.tolist() == [3.0] * 5)


def test_errors_of_the_same_epoch_leave_the_group_standing(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = lambda s: CollectiveTimeoutError("waiting on rank 2", op="all_reduce", seq=7)
    error = timed(lambda: comm.all_reduce(torch.ones(3)))[1]
    assert isinstance(error, TimeoutError)
    assert error.seq == 7
    daemon.script = lambda s: None
    tensor = torch.ones(3)
    comm.all_reduce(tensor)
    assert tensor.tolist() == [3, 3, 3]


def test_every_call_after_a_lost_peer_gets_the_daemons_own_answer(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = lambda s: "hold"
    pending = comm.barrier_async()
    eventually(lambda: daemon.held)
    daemon.script = lambda s: PeerLostError("rank 2 died", rank=2)
    assert timed(lambda: comm.all_reduce(torch.ones(3)))[1].rank == 2
    for call in (lambda: comm.all_reduce(torch.ones(3)), lambda: comm.barrier_async().wait()):
        assert isinstance(timed(call)[1], PeerLostError)
    assert len(daemon.submitted) == 4
    assert not pending.done()
    daemon.release(PeerLostError("rank 2 died", rank=2))
    assert isinstance(timed(pending.wait)[1], PeerLostError)


def test_ctrl_c_ends_a_wait_and_the_communicator_goes_on(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = lambda s: "hold"
    tensor = torch.ones(3)
    over = threading.Event()

    def press() -> None:
        # Python drops an interrupt that falls into a finalizer: a person presses again, too.
        while not over.wait(0.1 if not presses else 5.0):
            presses.append(1)
            os.kill(os.getpid(), signal.SIGINT)

    presses: list[int] = []
    thread = threading.Thread(target=press)
    # A job in the background of a shell has the signal ignored, and Python leaves it so.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            comm.all_reduce(tensor)
        over.set()
        thread.join()
    finally:
        signal.signal(signal.SIGINT, former)
    daemon.script = lambda s: None
    daemon.release()
    other = torch.ones(3)
    comm.all_reduce(other)
    assert other.tolist() == [3, 3, 3]
    assert tensor.tolist() == [1, 1, 1]
    assert comm._arena.used_bytes == 0
    assert not comm._connection._leading


def test_status_from_a_silent_daemon(comm: Communicator, daemon: StubDaemon) -> None:
    daemon.reads.clear()
    comm.barrier_async()  # the stand-in takes this one before it looks at the switch
    elapsed_s, error = timed(lambda: comm.status(timeout_s=0.05))
    assert isinstance(error, DaemonLostError)
    assert "status of the daemon" in str(error)
    assert 0.05 + GRACE_S <= elapsed_s < 5
    daemon.reads.set()


def test_a_call_that_is_posted_only_when_its_time_is_over_is_still_answered(
    comm: Communicator, daemon: StubDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a process that stood still in between: its daemon is not to blame."""
    transmit = comm._connection._sender.transmit

    def late(*args: Any, **kwargs: Any) -> None:
        time.sleep(0.05 + GRACE_S)
        transmit(*args, **kwargs)

    def script(submitted: object) -> RingdError:
        time.sleep(0.05)  # it takes a moment, of less than the grace
        return CollectiveTimeoutError("rank 1 is stopped", op="all_reduce", seq=7)

    daemon.script = script
    monkeypatch.setattr(comm._connection._sender, "transmit", late)
    error = timed(lambda: comm.all_reduce(torch.ones(3), timeout_s=0.05))[1]
    assert "rank 1 is stopped" in str(error)


# ------------------------------------------------------------ signals that come often


@pytest.fixture
def often(request: pytest.FixtureRequest) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Have a handler called again and again, 10 ms after it has returned."""

    def begin(handle: Callable[[], object]) -> None:
        def handler(*_: object) -> None:
            handle()
            signal.setitimer(signal.ITIMER_REAL, 0.01)

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.01)

    before = signal.getsignal(signal.SIGALRM)
    yield begin
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


Often = Callable[[Callable[[], object]], None]


@pytest.mark.timeout(60, method="thread")
@pytest.mark.parametrize("call", ["blocking", "handle"])
def test_signals_do_not_put_a_deadline_off(
    comm: Communicator, daemon: StubDaemon, often: Often, call: str
) -> None:
    """The system call is restarted after each of them, by Python too."""
    daemon.script = mute
    often(lambda: None)
    work = {
        "blocking": lambda: comm.all_reduce(torch.ones(3), timeout_s=0.3),
        "handle": lambda: comm.all_reduce_async(torch.ones(3), timeout_s=0.3).wait(),
    }[call]
    elapsed_s, error = timed(work)
    assert isinstance(error, CollectiveTimeoutError)
    assert elapsed_s < 5, "without end, before"


@pytest.mark.timeout(60, method="thread")
def test_an_answer_that_a_handler_reads_is_seen_though_signals_keep_coming(
    comm: Communicator, daemon: StubDaemon, often: Often
) -> None:
    daemon.script = lambda submitted: "hold" if submitted.spec.shape == (9,) else None
    calls = 0

    def handle() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            daemon.release()
        comm.status()  # reads what comes meanwhile

    often(handle)
    assert comm.all_reduce(torch.ones(9), timeout_s=20).tolist() == [3.0] * 9


# ------------------------------------------------------------ without memory


def fails_once(patched: pytest.MonkeyPatch, owner: object, name: str, thread: str) -> list[str]:
    """Let a thread's first call of a method raise MemoryError; afterwards that has one entry."""
    method, failed = getattr(owner, name), []

    def failing(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread().name == thread and not failed:
            failed.append(thread)
            raise MemoryError("injected")
        return method(*args, **kwargs)

    patched.setattr(owner, name, failing)
    return failed


@pytest.mark.parametrize("step", ["receive", "settle"])
def test_the_progress_thread_outlives_a_want_of_memory(
    comm: Communicator, daemon: StubDaemon, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    if step == "receive":
        failed = fails_once(monkeypatch, comm._connection._transport, "receive", "ringd-progress")
    else:
        failed = fails_once(monkeypatch, Operation, "settle_unless_busy", "ringd-progress")
    for _ in range(2):
        dropped = torch.ones(5)
        comm.all_reduce_async(dropped)
        eventually(lambda dropped=dropped: dropped.tolist() == [3.0] * 5)
    assert failed


def test_a_want_of_memory_while_a_call_is_waited_for_is_said_as_such(
    comm: Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        failed = fails_once(patched, comm._connection, "hear", "MainThread")
        error = timed(lambda: comm.all_reduce(torch.ones(3)))[1]
    assert isinstance(error, ResourceError)
    assert failed
    assert comm.all_reduce(torch.ones(3)).tolist() == [3.0] * 3


def test_a_result_that_there_is_no_memory_to_write_is_a_resource_error(
    comm: Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        fails_once(patched, Region, "settle", "MainThread")
        error = timed(lambda: comm.all_reduce(torch.ones(3)))[1]
    assert isinstance(error, ResourceError)
    assert comm.all_reduce(torch.ones(3)).tolist() == [3.0] * 3
