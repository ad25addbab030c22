"""Goodbyes: closing, leaving a with block by an exception, the exit of the process, forks."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ringd_client
from ringd.errors import CommunicatorClosedError
from ringd.wire import ipc
from ringd_client import Communicator, _process
from ringd_client._core import MAX_IN_FLIGHT
from tests.client.conftest import eventually
from tests.client.stub_daemon import StubDaemon


def test_closing_says_goodbye_and_may_be_repeated(daemon: StubDaemon) -> None:
    comm = ringd_client.connect(socket=daemon.path)
    comm.all_reduce(torch.ones(3))
    comm.close()
    comm.close()
    assert daemon.gone.wait(10)
    assert daemon.goodbye == {"how": "closed", "detail": ""}
    assert daemon.log[-1][0] == ipc.GOODBYE
    assert comm.closed


@pytest.mark.parametrize(
    "use",
    [
        lambda c: c.all_reduce(torch.ones(3)),
        lambda c: c.all_reduce_async(torch.ones(3)),
        lambda c: c.all_reduce("no tensor"),
        lambda c: c.barrier(),
        lambda c: c.empty(3),
        lambda c: c.status(),
    ],
)
def test_a_closed_communicator_says_so(daemon: StubDaemon, use: Callable[[Any], Any]) -> None:
    comm = ringd_client.connect(socket=daemon.path)
    comm.close()
    with pytest.raises(CommunicatorClosedError, match="closed"):
        use(comm)


def test_closing_waits_for_operations_in_flight(daemon: StubDaemon) -> None:
    comm = ringd_client.connect(socket=daemon.path)
    daemon.script = lambda s: "hold"
    tensor = torch.ones(3)
    handle = comm.all_reduce_async(tensor)
    eventually(lambda: daemon.held)
    threading.Timer(0.15, daemon.release).start()
    comm.close()
    assert tensor.tolist() == [3, 3, 3]
    assert handle.wait() is tensor


def test_closing_waits_no_longer_than_the_deadlines(daemon: StubDaemon) -> None:
    comm = ringd_client.connect(socket=daemon.path)
    daemon.script = lambda s: "mute"
    handle = comm.all_reduce_async(torch.ones(3), timeout_s=0.1)
    began = time.monotonic()
    comm.close()
    assert 0.3 < time.monotonic() - began < 5
    assert handle.done()


def test_an_exception_in_the_with_block_is_told_and_nothing_is_waited_for(
    daemon: StubDaemon,
) -> None:
    daemon.script = lambda s: "mute"
    handles = []

    def program() -> None:
        with ringd_client.connect(socket=daemon.path) as comm:
            handles.append(comm.all_reduce_async(torch.ones(3)))
            print(1 / 0)

    with pytest.raises(ZeroDivisionError):
        program()
    assert daemon.gone.wait(10)
    assert daemon.goodbye is not None
    assert daemon.goodbye["how"] == "raised"
    detail = daemon.goodbye["detail"]
    assert detail.startswith("ZeroDivisionError: division by zero (test_closing.py:")
    with pytest.raises(CommunicatorClosedError):
        handles[0].wait()


def test_with_all_operations_in_flight_the_goodbye_still_arrives(daemon: StubDaemon) -> None:
    daemon.script = lambda s: "mute"

    def program() -> None:
        with ringd_client.connect(socket=daemon.path) as comm:
            fill(comm, daemon)
            threading.Timer(0.05, daemon.reads.set).start()
            raise KeyError("gone")

    with pytest.raises(KeyError):
        program()
    assert daemon.gone.wait(10)
    assert daemon.goodbye is not None
    assert daemon.goodbye["how"] == "raised"
    assert len(daemon.submitted) == MAX_IN_FLIGHT


def fill(comm: Communicator, daemon: StubDaemon) -> None:
    """Have as many operations in flight as may be, and no room in the socket."""
    daemon.reads.clear()
    for _ in range(MAX_IN_FLIGHT):
        comm.barrier_async()
    transport = comm._connection._transport
    while transport.send(ipc.pack(ipc.FREE_GROUP, 1)):
        pass


def test_a_waiting_thread_ends_when_another_leaves_by_an_exception(daemon: StubDaemon) -> None:
    daemon.script = lambda s: "mute"
    errors: list[BaseException] = []

    def wait(comm: Communicator) -> None:
        try:
            comm.barrier()
        except CommunicatorClosedError as exc:
            errors.append(exc)

    def program() -> None:
        with ringd_client.connect(socket=daemon.path) as comm:
            threads.append(threading.Thread(target=wait, args=(comm,)))
            threads[0].start()
            eventually(lambda: daemon.submitted)
            raise KeyError("gone")

    threads: list[threading.Thread] = []
    with pytest.raises(KeyError):
        program()
    threads[0].join(15)
    assert len(errors) == 1


def test_a_daemon_that_is_gone_does_not_hinder_closing(daemon: StubDaemon) -> None:
    comm = ringd_client.connect(socket=daemon.path)
    daemon.die()
    comm.close()


def test_a_daemon_that_keeps_the_connection_does_not_hinder_closing(daemon: StubDaemon) -> None:
    comm = ringd_client.connect(socket=daemon.path)
    daemon.reads.clear()
    comm.barrier()  # the stand-in takes this one before it looks at the switch
    for _ in range(3):
        with pytest.raises(ringd_client.CollectiveTimeoutError):
            comm.barrier(timeout_s=0.01)
    began = time.monotonic()
    comm.close()
    assert time.monotonic() - began < 5


def raised(make: Callable[[], object]) -> BaseException:
    try:
        make()
    except BaseException as exc:
        return exc
    raise AssertionError


def test_the_detail_names_the_callers_line_not_ours(comm: Communicator) -> None:
    exc = raised(lambda: comm.all_reduce("no tensor"))
    leaving = _process.departure(exc)
    line = traceback.extract_tb(exc.__traceback__)[1].lineno
    assert leaving.how == "raised"
    assert leaving.detail.rpartition(" ")[2] == f"(test_closing.py:{line})"


@pytest.mark.parametrize(
    ("exc", "how"), [(None, "closed"), (SystemExit(0), "closed"), (SystemExit(3), "raised")]
)
def test_a_successful_exit_is_no_failure(exc: BaseException | None, how: str) -> None:
    assert _process.departure(exc).how == how


def test_a_long_exception_text_is_cut() -> None:
    exc = raised(lambda: int("x" * 5000))
    assert len(_process.departure(exc).detail) <= 1000


def run_program(daemon: StubDaemon, code: str) -> subprocess.CompletedProcess[str]:
    head = f"import sys; sys.path[:0] = {[p for p in sys.path if p]!r}\n"
    program = head + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "RINGD_SOCKET": daemon.path},
        timeout=60,
    )


def test_a_program_that_forgets_to_close_says_goodbye_at_exit(daemon: StubDaemon) -> None:
    done = run_program(
        daemon,
        """
        import numpy as np, ringd_client
        comm = ringd_client.connect()
        comm.all_reduce_async(np.ones(3))
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert daemon.gone.wait(10)
    assert daemon.goodbye == {"how": "closed", "detail": ""}


def test_a_program_that_ends_by_an_exception_says_so_at_exit(daemon: StubDaemon) -> None:
    done = run_program(
        daemon,
        """
        import ringd_client
        comm = ringd_client.connect()
        comm.barrier_async()
        raise ValueError("bad data")
        """,
    )
    assert done.returncode == 1
    assert daemon.gone.wait(10)
    assert daemon.goodbye == {
        "how": "raised",
        "detail": "ValueError: bad data (<string>:6)",
        "exception": {"type": "ValueError", "message": "bad data", "file": "<string>", "line": 6},
    }


def test_a_program_that_is_killed_says_nothing(daemon: StubDaemon) -> None:
    run_program(
        daemon, "import os, ringd_client; comm = ringd_client.connect(); os.kill(os.getpid(), 9)"
    )
    assert daemon.gone.wait(10)
    assert daemon.ended_without_goodbye


def in_child(work: Callable[[], object]) -> str:
    """What ``work`` returns or raises in a forked child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = str(work())
        except BaseException as exc:
            said = f"{type(exc).__name__}: {exc}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    said = Path(f"/proc/self/fd/{reader}").read_text()
    os.close(reader)
    os.waitpid(pid, 0)
    return said


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_in_a_forked_child_the_communicator_is_closed_and_the_parents_lives_on(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = lambda s: "hold"
    tensor = torch.ones(3)
    handle = comm.all_reduce_async(tensor)
    eventually(lambda: daemon.held)
    belongs = "CommunicatorClosedError: rank 1: the communicator belongs to the parent"
    for use in (comm.barrier, handle.wait, lambda: comm.empty(3), comm.status):
        assert in_child(use).startswith(belongs)
    assert in_child(lambda: (comm.close(), comm.closed)) == "(None, True)"
    socket_fd = comm._connection._transport.fileno()
    assert "No such file" in in_child(lambda: os.readlink(f"/proc/self/fd/{socket_fd}"))
    daemon.release()
    handle.wait(5)
    assert tensor.tolist() == [3, 3, 3]
    assert daemon.goodbye is None


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_that_is_forked_while_others_work_is_not_stuck(comm: Communicator) -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            comm.all_reduce_async(torch.ones(3))
            comm.all_reduce(torch.ones(3))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            assert in_child(comm.barrier).startswith("CommunicatorClosedError")
    finally:
        stop.set()
        for thread in threads:
            thread.join(15)
