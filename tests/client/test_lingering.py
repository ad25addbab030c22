"""Memory that a late daemon may still use: no other call gets it before the daemon has answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ringd_client
from ringd.errors import CollectiveTimeoutError, MemoryInUseError
from ringd_client import Communicator
from ringd_client._layout import extent
from ringd_client._operation import Operation
from tests.client.stub_daemon import StubDaemon

LATE_S = 0.01
Use = Callable[[Communicator, Any], Any]


def given_up(comm: Communicator, daemon: StubDaemon, tensor: Any) -> None:
    """A sum in place that has ended here, and that the daemon holds."""
    daemon.script = lambda s: "hold"
    with pytest.raises(CollectiveTimeoutError) as caught:
        comm.all_reduce(tensor, timeout_s=LATE_S)
    assert caught.value.in_place
    daemon.script = lambda s: None


def coalesced(comm: Communicator, tensors: list[Any]) -> None:
    with comm.coalesce():
        for tensor in tensors:
            comm.all_reduce(tensor)


def shared_input(comm: Communicator, tensor: Any) -> None:
    comm.all_gather(np.zeros(3 * 2, np.float32), tensor[:2])


USES: dict[str, Use] = {
    "the same": lambda comm, t: comm.all_reduce(t),
    "with a copy": lambda comm, t: comm.all_reduce(t, preserve_input=True),
    "a handle": lambda comm, t: comm.all_reduce_async(t).wait(),
    "its first element": lambda comm, t: comm.all_reduce(t[:1]),
    "its last element": lambda comm, t: comm.broadcast(t[-1:], 0),
    "each other element": lambda comm, t: comm.all_reduce(t[1::2]),
    "as an input": shared_input,
    "in a list": lambda comm, t: comm.all_gather([t[:2], *_ones(2)], _ones(1)[0]),
    "as a message": lambda comm, t: comm.send(t, 0),
    "in a receive": lambda comm, t: comm.recv(t, 0),
    "alone in a block": lambda comm, t: coalesced(comm, [t]),
    "in a block": lambda comm, t: coalesced(comm, [torch.ones(3), t]),
}


def _ones(count: int) -> list[Any]:
    return [np.ones(2, np.float32) for _ in range(count)]


@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize("use", USES)
def test_a_call_on_it_is_refused_until_the_daemon_has_answered(
    comm: Communicator, daemon: StubDaemon, use: str, library: Any
) -> None:
    tensor = comm.empty(6, like=library)
    tensor[...] = 1
    given_up(comm, daemon, tensor)
    posted = len(daemon.submitted)
    for _ in range(2):
        with pytest.raises(MemoryInUseError, match="Wait until it answers"):
            USES[use](comm, tensor)
    comm.status()  # whatever was sent has come
    assert (len(daemon.submitted), daemon.poisons) == (posted, [])
    daemon.release()
    USES[use](comm, tensor)  # nothing was read in between: the call itself looks for the answer
    assert not comm._arena.lingering
    assert comm._arena.used_bytes == comm._arena.lent_bytes


def test_other_memory_is_free_to_use_meanwhile(comm: Communicator, daemon: StubDaemon) -> None:
    whole = comm.empty(12)
    whole.fill_(1)
    given_up(comm, daemon, whole[:6])
    ordinary, lent = torch.ones(3), comm.empty(3)
    lent.fill_(1)
    for tensor in (ordinary, lent, whole[6:], whole[:0]):
        comm.all_reduce(tensor)
    assert ordinary.tolist() == lent.tolist() == [3, 3, 3]
    assert whole[6:].tolist() == [3] * 6
    assert comm._arena.lingering
    daemon.release()


def test_what_was_copied_may_be_used_at_once(comm: Communicator, daemon: StubDaemon) -> None:
    tensor, lent = torch.ones(3), comm.empty(3)
    lent.fill_(1)
    daemon.script = lambda s: "hold"
    for call in (
        lambda: comm.all_reduce(tensor, timeout_s=LATE_S),
        lambda: comm.all_reduce(lent, preserve_input=True, timeout_s=LATE_S),
    ):
        with pytest.raises(CollectiveTimeoutError) as caught:
            call()
        assert not caught.value.in_place
        assert "daemon may still" not in str(caught.value)
    daemon.script = lambda s: None
    for one in (tensor, lent):
        assert comm.all_reduce(one).tolist() == [3, 3, 3]
    daemon.release()
    comm.barrier()
    for one in (tensor, lent):
        assert one.tolist() == [3, 3, 3]


def test_what_is_only_read_may_be_read_and_not_written(
    comm: Communicator, daemon: StubDaemon
) -> None:
    tensor = comm.empty(6)
    tensor.fill_(1)
    daemon.script = lambda s: "hold"
    with pytest.raises(CollectiveTimeoutError, match="do not write to it") as caught:
        comm.broadcast(tensor, comm.rank, timeout_s=LATE_S)
    assert not caught.value.in_place
    daemon.script = lambda s: None
    comm.broadcast(tensor, comm.rank)
    comm.all_gather(np.zeros(18, np.float32), tensor)
    with pytest.raises(MemoryInUseError, match="still read"):
        comm.all_reduce(tensor)
    daemon.release()
    assert comm.all_reduce(tensor).tolist() == [3] * 6


def test_a_daemon_that_is_gone_uses_nothing_any_more(
    comm: Communicator, daemon: StubDaemon
) -> None:
    tensor = comm.empty(6)
    given_up(comm, daemon, tensor)
    daemon.die()
    with pytest.raises(ringd_client.DaemonLostError):
        comm.barrier()
    assert not comm._arena.lingering


async def test_the_asyncio_twin_refuses_and_allows_alike(daemon: StubDaemon) -> None:
    async with await ringd_client.connect_async(socket=daemon.path, timeout_s=5) as acomm:
        tensor = acomm.empty(6)
        tensor.fill_(1)
        daemon.script = lambda s: "hold"
        with pytest.raises(CollectiveTimeoutError, match="not yours until the daemon answers"):
            await acomm.all_reduce(tensor, timeout_s=LATE_S)
        daemon.script = lambda s: None
        for _ in range(2):
            with pytest.raises(MemoryInUseError):
                acomm.all_reduce(tensor)
        assert (await acomm.all_reduce(torch.ones(3))).tolist() == [3, 3, 3]
        tensor_before = len(daemon.submitted)
        daemon.release()
        tensor.fill_(1)
        assert (await acomm.all_reduce(tensor)).tolist() == [3] * 6
        assert len(daemon.submitted) == tensor_before + 1
        assert not acomm._arena.lingering


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((), (), (100, 104)),
        ((0, 3), (12, 4), (100, 100)),
        ((2, 3), (12, 4), (100, 124)),
        ((3, 2), (4, 12), (100, 124)),
        ((3,), (-8,), (84, 104)),
        ((5, 2), (0, -4), (96, 104)),
    ],
)
def test_an_extent_takes_in_all_elements(
    shape: tuple[int, ...], strides: tuple[int, ...], expected: tuple[int, int]
) -> None:
    assert extent(100, shape, strides, 4) == expected


def test_what_was_answered_is_free_though_nobody_has_settled_it(comm: Communicator) -> None:
    """A signal handler's exception may come between the two."""
    tensor = comm.empty(3)
    tensor.fill_(1)
    earlier: Operation[Any] = Operation("an earlier call", b"")
    earlier.in_place = True
    comm._arena.lingering.lend(None, tensor, earlier)
    with pytest.raises(MemoryInUseError):
        comm.all_reduce(tensor)
    earlier.answered = True
    assert comm.all_reduce(tensor).tolist() == [3, 3, 3]
    assert not comm._arena.lingering


def test_a_call_that_was_never_posted_leaves_its_memory_free(comm: Communicator) -> None:
    operation: Operation[Any] = comm._planner.all_reduce(comm.empty(3), "sum", "auto", False, False)
    assert operation.in_place
    assert operation.give_up(ringd_client.RingdError("its caller was interrupted"))
    assert not comm._arena.lingering
