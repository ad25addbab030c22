"""The asyncio twin: awaiting, cancelling, order, the loop's own clock, closing."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import uvloop

import ringd_client
from ringd.errors import (
    ArenaFullError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    CommunicatorClosedError,
    DaemonLostError,
    InvalidArgumentError,
    PeerLostError,
    RingdError,
    TooManyOperationsError,
    UnsupportedTypeError,
)
from ringd.wire import ipc
from ringd_client import AsyncCommunicator, Communicator
from ringd_client._operation import GRACE_S
from ringd_client._process import IN_ORDER
from tests.client.stub_daemon import StubDaemon


@pytest.fixture
async def acomm(daemon: StubDaemon) -> AsyncIterator[AsyncCommunicator]:
    async with await ringd_client.connect_async(socket=daemon.path, timeout_s=5) as communicator:
        yield communicator


async def eventually(condition: Callable[[], object], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def failure_of(awaitable: Any) -> RingdError:
    with pytest.raises(RingdError) as caught:
        await awaitable
    return caught.value


async def test_all_collectives(acomm: AsyncCommunicator) -> None:
    tensor = torch.ones(3)
    assert await acomm.all_reduce(tensor) is tensor
    assert tensor.tolist() == [3, 3, 3]
    part, whole = torch.ones(2), np.zeros((3, 2), np.float32)
    assert await acomm.all_gather(whole, part) is whole
    assert whole.tolist() == [[0, 1], [1, 1], [200, 201]]
    assert (await acomm.reduce_scatter(part, whole)).tolist() == [3, 3]
    assert (await acomm.broadcast(part, 0)).tolist() == [0, 1]
    assert await acomm.barrier() is None
    assert await acomm.status("group") == {"scope": "group", "rank": 1}
    assert (acomm.rank, acomm.world_size, acomm.epoch) == (1, 3, 4)


async def test_the_asynchronous_names_are_the_same_methods(acomm: AsyncCommunicator) -> None:
    handle = acomm.all_reduce_async(torch.ones(3))
    assert (await handle.wait()).tolist() == [3, 3, 3]
    assert (await handle).tolist() == [3, 3, 3]
    await acomm.barrier_async()


def test_it_has_the_same_calls_as_the_blocking_one() -> None:
    names = {n for n in dir(Communicator) if not n.startswith("_")}
    assert names == {n for n in dir(AsyncCommunicator) if not n.startswith("_")}


async def test_calls_begin_when_they_are_made(acomm: AsyncCommunicator, daemon: StubDaemon) -> None:
    tensors = [torch.ones(n) for n in range(1, 6)]
    handles = [acomm.all_reduce(t) for t in tensors]
    await asyncio.gather(*reversed(handles))
    assert [s.spec.shape for s in daemon.submitted] == [(1,), (2,), (3,), (4,), (5,)]


async def test_a_cancelled_await_leaves_the_operation_running(
    acomm: AsyncCommunicator, daemon: StubDaemon
) -> None:
    daemon.script = lambda s: "hold"
    tensor = torch.ones(3)
    handle = acomm.all_reduce(tensor)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(handle, 0.05)
    with pytest.raises(CollectiveTimeoutError, match="the operation goes on"):
        await handle.wait(0.02)
    assert not handle.done()
    daemon.release()
    assert await handle is tensor
    assert tensor.tolist() == [3, 3, 3]


async def test_a_dropped_handle_still_writes_its_result(
    acomm: AsyncCommunicator, daemon: StubDaemon
) -> None:
    small, large = torch.ones(3), torch.ones(1 << 20)
    acomm.all_reduce(small)
    acomm.all_reduce(large)
    gc.collect()
    await eventually(lambda: small.tolist() == [3, 3, 3] and bool((large == 3).all()))
    await eventually(lambda: acomm._arena.used_bytes == 0)


async def test_errors_are_raised_by_every_await_and_never_printed(
    acomm: AsyncCommunicator, daemon: StubDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.script = lambda s: CollectiveMismatchError("differs")
    handle = acomm.all_reduce(torch.ones(3))
    assert isinstance(await failure_of(handle), CollectiveMismatchError)
    assert isinstance(await failure_of(handle), CollectiveMismatchError)
    assert isinstance(handle.exception(), CollectiveMismatchError)
    acomm.all_reduce(torch.ones(3))
    await eventually(lambda: not acomm._state.pending)
    gc.collect()
    assert not caplog.records


async def test_refusals_poison_and_the_next_call_works(
    acomm: AsyncCommunicator, daemon: StubDaemon
) -> None:
    with pytest.raises(UnsupportedTypeError):
        acomm.all_reduce("no")
    with pytest.raises(InvalidArgumentError, match="did you mean 'sum'"):
        acomm.all_reduce(torch.ones(3), "sun")
    await acomm.all_reduce(torch.ones(3))
    assert [spec.collective for spec, _ in daemon.poisons] == ["all_reduce"] * 2


async def test_beyond_the_bound_nothing_is_posted(
    acomm: AsyncCommunicator, daemon: StubDaemon
) -> None:
    daemon.script = lambda s: "hold"
    handles = [acomm.barrier() for _ in range(1024)]
    with pytest.raises(TooManyOperationsError):
        acomm.barrier()
    await eventually(lambda: len(daemon.held) == 1024)
    await asyncio.to_thread(daemon.release)
    await asyncio.gather(*handles)


async def test_messages_that_the_socket_does_not_take_wait_in_order(
    acomm: AsyncCommunicator, daemon: StubDaemon
) -> None:
    acomm._connection._transport._sock.setsockopt(1, 7, 4096)  # SO_SNDBUF
    daemon.reads.clear()
    tensors = [torch.ones(n) for n in range(1, 200)]
    handles = [acomm.all_reduce(t) for t in tensors]
    assert acomm._connection._outbox
    array = acomm.empty(1 << 19)  # a new segment, whose descriptor waits its turn
    array.fill_(1)
    handles.append(acomm.all_reduce(array))
    daemon.reads.set()
    await asyncio.gather(*handles)
    requests = [m[1] for m in daemon.log if m[0] == ipc.SUBMIT]
    assert requests == sorted(requests)
    assert len(requests) == 200
    assert (array == 3).all()


async def test_a_silent_daemon_is_given_up_by_the_loops_clock(
    acomm: AsyncCommunicator, daemon: StubDaemon
) -> None:
    daemon.script = lambda s: "hold"
    began = time.monotonic()
    late = acomm.barrier(timeout_s=0.5)
    tensor = torch.ones(3)
    error = await failure_of(acomm.all_reduce(tensor, timeout_s=0.05))
    assert isinstance(error, CollectiveTimeoutError)
    assert 0.05 + GRACE_S <= time.monotonic() - began < 5
    assert isinstance(await failure_of(late), CollectiveTimeoutError)
    assert 0.5 + GRACE_S <= time.monotonic() - began < 5
    daemon.script = lambda s: None
    daemon.release()
    await acomm.barrier()
    assert tensor.tolist() == [1, 1, 1]
    assert acomm._arena.used_bytes == 0


async def test_answers_that_have_come_count_where_the_loop_itself_was_held_up(
    acomm: AsyncCommunicator, daemon: StubDaemon
) -> None:
    handles = [acomm.all_reduce(torch.ones(3), timeout_s=0.01) for _ in range(8)]
    while daemon.log[-1][0] != ipc.SUBMIT or len(daemon.submitted) < 8:
        time.sleep(0.01)  # the loop does nothing meanwhile  # noqa: ASYNC251
    time.sleep(max(h._operation.expires for h in handles) - time.monotonic())  # noqa: ASYNC251
    for tensor in await asyncio.gather(*handles):
        assert tensor.tolist() == [3, 3, 3]


async def test_a_daemon_that_dies_ends_everything(
    acomm: AsyncCommunicator, daemon: StubDaemon
) -> None:
    daemon.script = lambda s: "mute"
    handles = [acomm.barrier(), acomm.all_reduce(torch.ones(3))]
    await asyncio.sleep(0.02)
    daemon.die()
    for handle in handles:
        assert isinstance(await failure_of(handle), DaemonLostError)
    with pytest.raises(DaemonLostError):
        acomm.barrier()
    with pytest.raises(DaemonLostError):
        acomm.empty(100)


async def test_the_last_words_of_a_daemon_are_quoted(
    acomm: AsyncCommunicator, daemon: StubDaemon
) -> None:
    daemon.send(ipc.BYE)
    daemon.die()
    with pytest.raises(DaemonLostError, match="it said that it ends"):
        await acomm.all_reduce(torch.ones(3))


async def test_what_becomes_of_calls_after_a_lost_peer_is_the_daemons_to_say(
    acomm: AsyncCommunicator, daemon: StubDaemon
) -> None:
    daemon.script = lambda s: PeerLostError("rank 2 died", rank=2)
    for _ in range(2):
        assert isinstance(await failure_of(acomm.barrier()), PeerLostError)
    daemon.script = lambda s: None
    await acomm.barrier()


async def test_a_handle_shows_its_state(acomm: AsyncCommunicator, daemon: StubDaemon) -> None:
    daemon.script = lambda s: "hold"
    handle = acomm.all_reduce(torch.ones(3))
    text = "<AsyncHandle all_reduce op=sum dtype=float32 shape=(3,): "
    assert repr(handle) == text + "in flight>"
    while not daemon.held:
        await acomm.status()
    daemon.release()
    await handle
    assert repr(handle) == text + "done>"
    daemon.script = lambda s: CollectiveMismatchError("differs")
    failed = acomm.all_reduce(torch.ones(3))
    assert isinstance(await failure_of(failed), CollectiveMismatchError)
    assert repr(failed) == text + "failed: mismatch>"


async def test_a_goodbye_waits_for_room_in_a_full_socket(daemon: StubDaemon) -> None:
    daemon.script = lambda s: "mute"

    async def program() -> None:
        async with await ringd_client.connect_async(socket=daemon.path) as acomm:
            await fill(acomm, daemon)
            asyncio.get_running_loop().call_later(0.05, daemon.reads.set)
            raise ValueError("bad data")

    with pytest.raises(ValueError, match="bad data"):
        await program()
    assert daemon.gone.wait(10)
    assert daemon.goodbye is not None
    assert daemon.goodbye["how"] == "raised"


async def fill(acomm: AsyncCommunicator, daemon: StubDaemon) -> None:
    """Send refusals, which have no bound, until the socket takes no more."""
    daemon.reads.clear()
    acomm.barrier()  # the stand-in takes this one before it looks at the switch
    while not acomm._connection._outbox:
        with pytest.raises(InvalidArgumentError):
            acomm.barrier(algorithm="x" * 1000)


async def test_closing_waits_and_says_goodbye(daemon: StubDaemon) -> None:
    acomm = await ringd_client.connect_async(socket=daemon.path)
    daemon.script = lambda s: "hold"
    tensor = torch.ones(1 << 20)
    acomm.all_reduce(tensor)
    asyncio.get_running_loop().call_later(0.1, daemon.release)
    await acomm.close()
    assert (tensor == 3).all()
    await acomm.close()
    assert daemon.gone.wait(10)
    assert daemon.goodbye == {"how": "closed", "detail": ""}
    with pytest.raises(CommunicatorClosedError):
        acomm.barrier()


async def test_leaving_by_an_exception_waits_for_nothing(daemon: StubDaemon) -> None:
    daemon.script = lambda s: "mute"
    handles = []

    async def program() -> None:
        async with await ringd_client.connect_async(socket=daemon.path) as acomm:
            handles.append(acomm.barrier())
            raise ValueError("bad data")

    with pytest.raises(ValueError, match="bad data"):
        await program()
    assert isinstance(await failure_of(handles[0]), CommunicatorClosedError)
    assert daemon.gone.wait(10)
    assert daemon.goodbye is not None
    assert daemon.goodbye["how"] == "raised"
    assert daemon.goodbye["detail"].startswith("ValueError: bad data (test_aio.py:")


def test_a_loop_that_ends_without_closing_says_goodbye_at_exit(daemon: StubDaemon) -> None:
    async def program() -> AsyncCommunicator:
        acomm = await ringd_client.connect_async(socket=daemon.path)
        await acomm.barrier()
        return acomm

    acomm = asyncio.run(program())
    acomm._leave_at_exit(IN_ORDER)
    assert daemon.gone.wait(10)
    assert daemon.goodbye is not None


def test_it_runs_on_uvloop(daemon: StubDaemon) -> None:
    async def program() -> None:
        async with await ringd_client.connect_async(socket=daemon.path) as acomm:
            tensors = [torch.ones(n) for n in (3, 1 << 19)]
            await asyncio.gather(*(acomm.all_reduce(t) for t in tensors))
            assert all((t == 3).all() for t in tensors)
            daemon.script = lambda s: "mute"
            error = await failure_of(acomm.barrier(timeout_s=0.05))
            assert isinstance(error, CollectiveTimeoutError)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(program())
    assert daemon.gone.wait(10)
    assert daemon.goodbye == {"how": "closed", "detail": ""}


async def test_a_large_result_is_written_though_there_is_no_room_for_a_thread(
    acomm: AsyncCommunicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        large = await acomm.all_reduce(torch.ones(1 << 19))
    assert (large == 3).all()
    assert (await acomm.all_reduce(torch.ones(1 << 19)) == 3).all()


async def test_shared_memory_and_its_cap(daemon: StubDaemon) -> None:
    async with await ringd_client.connect_async(
        socket=daemon.path, arena_limit_bytes=1 << 20
    ) as acomm:
        tensor = acomm.empty((2, 3))
        tensor.fill_(1)
        await acomm.all_reduce(tensor)
        assert tensor.tolist() == [[3] * 3] * 2
        with pytest.raises(ArenaFullError):
            acomm.all_reduce(torch.ones(1 << 20))
        await acomm.barrier()
        assert not daemon.poisons


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
async def test_a_forked_child_leaves_the_loop_alone(
    acomm: AsyncCommunicator, daemon: StubDaemon
) -> None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            acomm.barrier()
        except CommunicatorClosedError as exc:
            os.write(writer, str(exc).encode())
        os._exit(0)
    os.close(writer)
    assert "belongs to the parent" in Path(f"/proc/self/fd/{reader}").read_text()  # noqa: ASYNC240
    os.close(reader)
    os.waitpid(pid, 0)  # noqa: ASYNC222
    await acomm.barrier()
    assert daemon.goodbye is None


async def test_ten_thousand_operations_leave_everything_flat(acomm: AsyncCommunicator) -> None:
    tensor = torch.ones(256)
    for _ in range(1000):
        await acomm.all_reduce(tensor, "max")
    size_bytes = acomm._arena.size_bytes
    for _ in range(1000):
        await asyncio.gather(*(acomm.all_reduce(tensor, "max") for _ in range(9)))
    assert acomm._arena.size_bytes <= size_bytes
    assert acomm._arena.used_bytes == 0
    assert not acomm._state.pending
    assert not acomm._connection._waiters
