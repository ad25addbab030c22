"""Signal handlers that come while their thread is in a call: they may call, close, and raise."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import ringd_client
from ringd.errors import (
    CommunicatorClosedError,
    MembershipChangedError,
    ReentrantCallError,
    RingdError,
)
from ringd_client import Communicator
from tests.client.conftest import eventually, is_held
from tests.client.points import Handler, points_in
from tests.client.stub_daemon import StubDaemon

Handle = Callable[[], object]
AtSignal = Callable[[Handle], None]


class Interrupted(Exception):
    """What a handler raises."""


@pytest.fixture
def at_signal() -> Iterator[AtSignal]:
    """Set what SIGUSR1 does."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handle: signal.signal(signal.SIGUSR1, lambda number, frame: handle()) and None
    signal.signal(signal.SIGUSR1, before)


def hold(submitted: Any) -> str | None:
    """Keep calls on nine elements back."""
    return "hold" if submitted.spec.shape == (9,) else None


def send_signal_when(condition: Handle) -> None:
    """From another thread, as soon as ``condition`` holds and the main thread had time to wait."""

    def run() -> None:
        eventually(condition)
        time.sleep(0.02)  # whether it waits by now or not, the outcome is the same
        os.kill(os.getpid(), signal.SIGUSR1)

    threading.Thread(target=run).start()


@pytest.fixture
def interrupt(comm: Communicator, daemon: StubDaemon, at_signal: AtSignal) -> Callable[..., Any]:
    """Have a handler interrupt an all_reduce that waits; what the handler got, and the tensor."""

    def run(handle: Handle, release: bool = True) -> tuple[Any, torch.Tensor]:
        daemon.script = hold
        got: list[Any] = []

        def handler() -> None:
            try:
                got.append(handle())
            finally:
                if release:
                    daemon.release()

        at_signal(handler)
        send_signal_when(lambda: daemon.held)
        tensor = torch.ones(9)
        comm.all_reduce(tensor, timeout_s=20)
        return got[0], tensor

    return run


def test_the_status_can_be_asked_for(interrupt: Callable[..., Any], comm: Communicator) -> None:
    status, tensor = interrupt(comm.status)
    assert status["rank"] == 1
    assert tensor.tolist() == [3.0] * 9


def test_a_call_of_a_handler_comes_after_the_one_that_it_interrupts(
    interrupt: Callable[..., Any], comm: Communicator, daemon: StubDaemon
) -> None:
    mine, tensor = interrupt(lambda: comm.all_reduce(torch.full((4,), 2.0)))
    assert mine.tolist() == [6.0] * 4
    assert tensor.tolist() == [3.0] * 9
    assert [s.spec.shape for s in daemon.submitted] == [(9,), (4,)]


def test_a_handle_can_be_waited_for(
    interrupt: Callable[..., Any], comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = hold
    handle = comm.all_reduce_async(torch.ones(9))

    def wait() -> Any:
        with pytest.raises(TimeoutError):
            handle.wait(0.01)
        return handle.done()

    done, tensor = interrupt(wait)
    assert not done
    assert tensor.tolist() == handle.wait().tolist() == [3.0] * 9


def test_reform_ends_the_call_that_it_interrupts(
    interrupt: Callable[..., Any], comm: Communicator
) -> None:
    with pytest.raises(MembershipChangedError):
        interrupt(lambda: comm.reform(timeout_s=5), release=False)
    assert comm.epoch == 5
    assert comm.all_reduce(torch.ones(3)).tolist() == [3.0] * 3


def test_closing_ends_the_call_that_it_interrupts_and_waits_for_nothing(
    interrupt: Callable[..., Any], comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = hold
    handle = comm.all_reduce_async(torch.ones(9))
    with pytest.raises(CommunicatorClosedError):
        interrupt(comm.close, release=False)
    assert daemon.gone.wait(10)
    assert daemon.goodbye == {"how": "closed", "detail": ""}
    with pytest.raises(CommunicatorClosedError):
        handle.wait()
    assert comm.closed
    comm.close()


def test_a_handler_may_close_and_exit(
    interrupt: Callable[..., Any], comm: Communicator, daemon: StubDaemon
) -> None:
    def leave() -> None:
        comm.close()
        sys.exit(0)

    with pytest.raises(SystemExit):
        interrupt(leave, release=False)
    assert daemon.gone.wait(10)
    assert daemon.goodbye == {"how": "closed", "detail": ""}


def test_closing_a_group_waits_for_nothing(
    interrupt: Callable[..., Any], comm: Communicator, daemon: StubDaemon
) -> None:
    group = comm.new_group([0, 1])
    assert group is not None
    daemon.script = hold
    handle = group.all_reduce_async(torch.ones(9))
    _, tensor = interrupt(group.close)
    eventually(lambda: daemon.freed == [group.group])
    assert tensor.tolist() == [3.0] * 9
    handle.wait()


def test_while_another_thread_reads_a_handler_may_call_too(
    interrupt: Callable[..., Any], comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = hold
    reader = threading.Thread(target=comm.all_reduce, args=(torch.ones(9),))
    reader.start()
    eventually(lambda: comm._connection._leading)
    status, tensor = interrupt(comm.status)
    reader.join(10)
    assert status["rank"] == 1
    assert tensor.tolist() == [3.0] * 9


def test_a_handler_reads_when_the_interrupted_call_was_made_the_reader(
    comm: Communicator, daemon: StubDaemon, at_signal: AtSignal
) -> None:
    """The other thread hands over to the call that can't read before its handler returns."""
    daemon.script = hold
    reader = threading.Thread(target=comm.all_reduce, args=(torch.ones(9),))
    reader.start()
    eventually(lambda: comm._connection._leading and daemon.held)
    got: list[Any] = []

    def handle() -> None:
        daemon.answer(daemon.held.pop(0))
        reader.join(10)
        got.append(comm.status())
        daemon.release()

    at_signal(handle)
    send_signal_when(lambda: len(daemon.held) == 2 and comm._connection._followers)
    assert comm.all_reduce(torch.ones(9)).tolist() == [3.0] * 9
    assert got[0]["rank"] == 1


@pytest.fixture
def stuck(comm: Communicator, daemon: StubDaemon) -> None:
    """The daemon reads nothing, and what we send fills the socket soon."""
    comm._connection._transport._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    daemon.reads.clear()
    comm.barrier_async()  # the one that it is reading already
    daemon.script = hold


def _post_many(comm: Communicator) -> None:
    for _ in range(900):
        comm.barrier_async(timeout_s=20)


@pytest.mark.usefixtures("stuck")
def test_what_can_t_be_sent_now_is_refused_at_once(
    comm: Communicator, daemon: StubDaemon, at_signal: AtSignal
) -> None:
    refused: list[RingdError] = []

    def handle() -> None:
        for call in (comm.status, comm.barrier, comm.reform, comm.newcomers, comm.barrier_async):
            with pytest.raises(ReentrantCallError, match="Set a flag") as caught:
                call()
            refused.append(caught.value)
        comm.close()

    at_signal(handle)
    send_signal_when(lambda: is_held(comm._connection._sender.lock))
    with pytest.raises(CommunicatorClosedError):
        _post_many(comm)
    assert [error.retry for error in refused] == ["same_epoch"] * 5
    daemon.reads.set()


# ------------------------------------------------------------ at every point


def all_reduce(comm: Communicator) -> None:
    comm.all_reduce(torch.ones(3))


def handle(comm: Communicator) -> None:
    comm.all_reduce_async(torch.ones(3)).wait()


def in_place(comm: Communicator) -> None:
    comm.all_reduce(comm.empty(3))


def several(comm: Communicator) -> None:
    with comm.coalesce():
        comm.all_reduce(torch.ones(3))
        comm.broadcast(torch.ones(4), root=1)


def steps(comm: Communicator) -> None:
    comm.broadcast_object([1, 2], root=1)


def status(comm: Communicator) -> None:
    comm.status()


def reform(comm: Communicator) -> None:
    comm.reform()


WORK = [all_reduce, handle, in_place, several, steps, status, reform]


def assert_usable(comm: Communicator, where: str) -> None:
    connection = comm._connection
    assert connection._leading != threading.get_ident(), where
    assert not connection._followers, where
    for lock in (connection._sender.lock, connection._turn, connection.memory):
        assert not lock._is_owned(), where
    try:
        sum_ = comm.all_reduce(torch.ones(3), timeout_s=5).tolist()
        waited = comm.all_reduce_async(torch.ones(4), timeout_s=5).wait().tolist()
    except MembershipChangedError:  # a reform was interrupted
        comm.reform(timeout_s=5)
        sum_ = comm.all_reduce(torch.ones(3), timeout_s=5).tolist()
        waited = comm.all_reduce_async(torch.ones(4), timeout_s=5).wait().tolist()
    assert sum_ == [3.0] * 3, where
    assert waited == [3.0] * 4, where


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("raised", [KeyboardInterrupt, TimeoutError])
def test_what_a_handler_raises_at_any_point_leaves_the_communicator_usable(
    comm: Communicator, work: Callable[[Communicator], None], raised: type[BaseException]
) -> None:
    def handler() -> None:
        raise raised("by a handler")

    work(comm)
    for at in range(points_in(lambda: work(comm))):
        with Handler(at, handler) as point, contextlib.suppress(raised, RingdError):
            work(comm)
        assert_usable(comm, point.line)


@pytest.mark.parametrize("work", WORK)
def test_a_handler_may_call_at_any_point_or_is_refused_at_once(
    comm: Communicator, work: Callable[[Communicator], None]
) -> None:
    refused = 0

    def handler() -> None:
        nonlocal refused
        try:
            assert comm.status(timeout_s=2)["rank"] == comm.rank
            comm.all_reduce(torch.ones(5), timeout_s=2)
        except ReentrantCallError:
            refused += 1
        except MembershipChangedError:
            assert work is reform

    work(comm)
    points = points_in(lambda: work(comm))
    for at in range(points):
        with Handler(at, handler) as point:
            work(comm)
        assert_usable(comm, point.line)
    assert refused < points / 2


@pytest.mark.parametrize("work", WORK)
def test_a_handler_may_close_at_any_point(
    start_daemon: Callable[..., StubDaemon], work: Callable[[Communicator], None]
) -> None:
    daemon = start_daemon()
    with ringd_client.connect(socket=daemon.path, timeout_s=5) as comm:
        work(comm)
        points = points_in(lambda: work(comm))
    for at in range(0, points, 3):
        assert daemon.gone.wait(10)
        daemon.goodbye = None
        daemon.gone.clear()
        daemon.epoch = 4
        daemon.groups = {0: (0, 1, 2)}
        with ringd_client.connect(socket=daemon.path, timeout_s=5) as comm:
            work(comm)
            began = time.monotonic()
            closed = contextlib.suppress(CommunicatorClosedError)
            with Handler(at, comm.close) as point, closed:
                work(comm)
            assert time.monotonic() - began < 5, point.line
        assert daemon.gone.wait(10), point.line
        assert daemon.goodbye == {"how": "closed", "detail": ""}, point.line


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("raised", [KeyboardInterrupt, Interrupted, TimeoutError])
def test_what_handlers_raise_at_random_times_leaves_the_communicator_usable(
    comm: Communicator, raised: type[BaseException]
) -> None:
    """By real signals, with another thread at work all the while."""
    rng = random.Random(1)
    comm.all_reduce(torch.ones(5))  # imports, which are not ours to protect, are done
    hits = 0
    ended = threading.Event()
    failures: list[BaseException] = []

    def raises(number: int, frame: Any) -> None:
        raise raised("by a handler")

    def others() -> None:
        try:
            while not ended.is_set():
                assert comm.all_reduce(torch.ones(5), timeout_s=5).tolist() == [3.0] * 5
        except BaseException as exc:
            failures.append(exc)

    before = signal.signal(signal.SIGALRM, raises)
    other = threading.Thread(target=others)
    other.start()
    try:
        while hits < 100 and not failures:
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 2e-3))
                for _ in range(200):  # the end of a dropped call may swallow what is raised
                    comm.all_reduce(torch.ones(3), timeout_s=5)
                    comm.all_reduce_async(torch.ones(4), timeout_s=5).wait()
            except (raised, RingdError):
                hits += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        ended.set()
        other.join(10)
        signal.signal(signal.SIGALRM, before)
    assert failures == []
    assert_usable(comm, "")
