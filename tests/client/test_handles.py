"""Asynchronous calls: waiting, not waiting, dropping, and who writes the result."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from ringd.errors import CollectiveMismatchError, CollectiveTimeoutError, TooManyOperationsError
from ringd_client import Communicator
from tests.client.conftest import eventually
from tests.client.stub_daemon import StubDaemon, Submitted


def hold(submitted: Submitted) -> str:
    return "hold"


def test_wait_returns_the_output_every_time(comm: Communicator) -> None:
    tensor = torch.ones(3)
    handle = comm.all_reduce_async(tensor)
    assert handle.wait() is tensor
    assert handle.wait(0.001) is tensor
    assert handle.done()
    assert handle.exception() is None
    assert tensor.tolist() == [3, 3, 3]
    assert repr(handle) == ("<Handle all_reduce op=sum dtype=float32 shape=(3,): done>")


def test_every_collective_has_an_asynchronous_form(comm: Communicator) -> None:
    part, whole = torch.ones(2), torch.zeros(3, 2)
    assert comm.all_gather_async(whole, part).wait() is whole
    assert whole.tolist() == [[0, 1], [1, 1], [200, 201]]
    assert comm.reduce_scatter_async(part, whole).wait() is part
    assert part.tolist() == [3, 3]
    assert comm.broadcast_async(part, 0).wait().tolist() == [0, 1]
    assert comm.barrier_async().wait() is None


def test_the_input_is_read_before_the_call_returns(comm: Communicator, daemon: StubDaemon) -> None:
    daemon.script = hold
    part, whole = torch.ones(2), torch.zeros(3, 2)
    handle = comm.all_gather_async(whole, part)
    part.fill_(50)
    eventually(lambda: daemon.held)
    daemon.release()
    handle.wait()
    assert whole.tolist() == [[0, 1], [1, 1], [200, 201]]


def test_a_wait_that_expires_leaves_the_operation_running(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = hold
    tensor = torch.ones(3)
    handle = comm.all_reduce_async(tensor)
    for timeout_s in (0, 0.02, 0.1):
        began = time.monotonic()
        with pytest.raises(CollectiveTimeoutError, match="the operation goes on"):
            handle.wait(timeout_s)
        assert timeout_s <= time.monotonic() - began < timeout_s + 4
    assert not handle.done()
    assert tensor.tolist() == [1, 1, 1]
    assert comm._arena.used_bytes > 0
    daemon.release()
    handle.wait()
    assert tensor.tolist() == [3, 3, 3]
    assert comm._arena.used_bytes == 0


def test_done_turns_true_without_a_wait(comm: Communicator, daemon: StubDaemon) -> None:
    daemon.script = hold
    tensor = torch.ones(3)
    handle = comm.all_reduce_async(tensor)
    eventually(lambda: daemon.held)
    assert not handle.done()
    daemon.release()
    eventually(handle.done)
    assert tensor.tolist() == [3, 3, 3]


def test_a_dropped_handle_still_writes_its_result(comm: Communicator) -> None:
    tensor, array = torch.ones(3), np.ones((4, 2)).T
    comm.all_reduce_async(tensor)
    comm.all_reduce_async(array)
    gc.collect()
    eventually(lambda: tensor.tolist() == [3, 3, 3] and (array == 3).all())
    eventually(lambda: comm._arena.used_bytes == 0)


def test_a_dropped_handle_is_served_while_another_thread_waits_for_long(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = lambda s: "hold" if s.spec.collective == "barrier" else None
    waiting = threading.Thread(target=comm.barrier)
    waiting.start()
    eventually(lambda: daemon.held)
    tensor = torch.ones(3)
    comm.all_reduce_async(tensor)
    eventually(lambda: tensor.tolist() == [3, 3, 3])
    daemon.release()
    waiting.join(15)


def test_the_progress_thread_sleeps_when_there_is_nothing_to_do(
    comm: Communicator,
) -> None:
    comm.barrier_async().wait()
    progress = comm._connection._progress
    eventually(lambda: progress._parked)
    time.sleep(0.02)
    assert progress._parked
    tensor = torch.ones(3)
    comm.all_reduce_async(tensor)
    eventually(lambda: tensor.tolist() == [3, 3, 3])


def test_synchronous_calls_start_no_thread(comm: Communicator) -> None:
    comm.all_reduce(torch.ones(3))
    assert comm._connection._progress._thread is None


def test_operations_may_end_in_any_order(comm: Communicator, daemon: StubDaemon) -> None:
    daemon.script = hold
    tensors = [torch.full((5,), float(n)) for n in range(20)]
    handles = [comm.all_reduce_async(t) for t in tensors]
    eventually(lambda: len(daemon.held) == 20)
    daemon.held.reverse()
    daemon.release()
    for n, handle in enumerate(handles):
        assert handle.wait(5).tolist() == [3.0 * n] * 5


def test_an_error_is_raised_by_every_wait_and_not_printed(
    comm: Communicator, daemon: StubDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.script = lambda s: CollectiveMismatchError("shapes differ", op="all_reduce")
    handle = comm.all_reduce_async(torch.ones(3))
    errors = []
    for _ in range(2):
        with pytest.raises(CollectiveMismatchError) as caught:
            handle.wait()
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert isinstance(handle.exception(), CollectiveMismatchError)
    assert "failed: mismatch" in repr(handle)
    comm.all_reduce_async(torch.ones(3))
    eventually(lambda: comm._state.attended)
    gc.collect()
    assert capsys.readouterr() == ("", "")


def test_one_handle_may_be_waited_for_by_many_threads(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = hold
    tensor = torch.ones(3)
    handle = comm.all_reduce_async(tensor)
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(handle.wait())) for _ in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: daemon.held)
    time.sleep(0.02)
    daemon.release()
    for thread in threads:
        thread.join(15)
    assert len(results) == 8
    assert tensor.tolist() == [3, 3, 3]


def test_beyond_1024_in_flight_nothing_is_posted(comm: Communicator, daemon: StubDaemon) -> None:
    daemon.script = hold
    handles = [comm.barrier_async() for _ in range(1024)]
    with pytest.raises(TooManyOperationsError, match="1,024"):
        comm.all_reduce_async(torch.ones(3))
    with pytest.raises(TooManyOperationsError):
        comm.all_reduce("not even a tensor")  # type: ignore[type-var]
    assert comm._arena.used_bytes == 0
    eventually(lambda: len(daemon.held) == 1024)
    assert not daemon.poisons
    daemon.script = lambda s: None
    daemon.release()
    for handle in handles:
        handle.wait(5)
    comm.all_reduce(torch.ones(3))


def test_ten_thousand_operations_leave_memory_threads_and_descriptors_flat(
    comm: Communicator,
) -> None:
    tensors = [torch.ones(n) for n in (1, 256, 5000)]

    def some(count: int) -> None:
        for n in range(count):
            tensor = tensors[n % 3]
            if n % 5:
                comm.all_reduce(tensor, "max")
            else:
                comm.all_reduce_async(tensor, "max").wait()

    some(1000)
    size_bytes, threads = comm._arena.size_bytes, threading.active_count()
    some(10_000)
    assert comm._arena.size_bytes == size_bytes
    assert comm._arena.used_bytes == 0
    assert threading.active_count() == threads
    assert not comm._state.pending
    assert not comm._connection._progress._answered
