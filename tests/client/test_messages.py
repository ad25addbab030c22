"""send and recv: tags, any source, batches, and refusals that leave no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ringd.errors import (
    CollectiveMismatchError,
    InvalidArgumentError,
    InvalidTensorError,
    RingdError,
    TooManyOperationsError,
    UnsupportedTypeError,
)
from ringd.vocabulary import ANY_SOURCE, MAX_TAG, OpSpec
from ringd_client import AsyncCommunicator, Communicator, Recv, Send
from tests.client.conftest import eventually
from tests.client.stub_cluster import Cluster
from tests.client.stub_daemon import StubDaemon


def test_a_message_and_what_the_daemon_is_told(comm: Communicator, daemon: StubDaemon) -> None:
    assert comm.send(torch.ones(2, 3), 2, tag=7) is None
    tensor = np.zeros((3, 2))
    assert comm.recv(tensor.T, 0, tag=MAX_TAG) == 0
    assert tensor.tolist() == [[0, 3], [1, 4], [2, 5]]
    sent, received = daemon.submitted
    assert (sent.spec, sent.local) == (OpSpec("send", "float32", "", (2, 3), root=2), 7)
    assert received.spec == OpSpec("recv", "float64", "", (2, 3), root=0)
    assert received.local == MAX_TAG


def test_a_receive_from_anybody_says_who_sent(comm: Communicator, daemon: StubDaemon) -> None:
    tensor = torch.zeros(3)
    assert comm.recv(tensor) == 2
    handle = comm.irecv(tensor)
    assert handle.wait() == 2
    assert handle.wait() == 2
    assert {s.spec.root for s in daemon.submitted} == {ANY_SOURCE}
    assert comm.irecv(torch.zeros(0), 0).wait() == 0
    assert comm.isend(tensor, 0).wait() is None


def test_tags_in_reverse_order_and_first_in_first_out_within_one(
    new_cluster: Callable[[int], Cluster],
) -> None:
    def program(comm: Communicator) -> Any:
        if comm.rank == 0:
            handles = [comm.isend(torch.full((2,), float(tag)), 1, tag) for tag in range(20)]
            handles += [comm.isend(torch.full((2,), 100.0 + n), 1, 99) for n in range(3)]
            return [handle.wait(30) for handle in handles]
        tensor = torch.zeros(2)
        got = []
        for tag in [99, *reversed(range(20)), 99, 99]:
            assert comm.recv(tensor, 0, tag) == 0
            got.append(tensor[1].item())
        return got

    _, got = new_cluster(2).run(program)
    assert got == [100, *reversed(range(20)), 101, 102]


@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_batch_passes_tensors_around_a_ring(
    new_cluster: Callable[[int], Cluster], n: int
) -> None:
    def program(comm: Communicator) -> list[Any]:
        right, left = (comm.rank + 1) % n, (comm.rank - 1) % n
        tensor = torch.zeros(3, 2).t()
        ours = torch.arange(6.0).reshape(2, 3) + 10 * comm.rank
        handles = comm.batch_p2p([Send(ours, right, 4), Recv(tensor, left, 4)])
        assert [h.wait(30) for h in handles] == [None, left]
        return tensor.flatten().tolist()

    expected = [[x + 10.0 * ((r - 1) % n) for x in range(6)] for r in range(n)]
    assert new_cluster(n).run(program) == expected


REFUSED: list[tuple[Callable[[Any], Any], type[RingdError], str]] = [
    (lambda c: c.send(torch.ones(2), 1), InvalidArgumentError, "dest 1 is this rank itself"),
    (lambda c: c.recv(torch.ones(2), 1), InvalidArgumentError, "source 1 is this rank itself"),
    (lambda c: c.send(torch.ones(2), 3), InvalidArgumentError, "dest 3 is no rank"),
    (lambda c: c.isend(torch.ones(2), -1), InvalidArgumentError, "dest -1 is no rank"),
    (lambda c: c.send(torch.ones(2), None), InvalidArgumentError, "number of a rank"),
    (lambda c: c.send(torch.ones(2), 0, -1), InvalidArgumentError, "tag -1 is out of range"),
    (lambda c: c.send(torch.ones(2), 0, 1 << 31), InvalidArgumentError, "out of range"),
    (lambda c: c.send(torch.ones(2), 0, "x"), InvalidArgumentError, "tag is a whole number"),
    (lambda c: c.send([1.0], 0), UnsupportedTypeError, "not list"),
    (lambda c: c.recv(torch.ones(1).expand(3)), InvalidTensorError, "overlaps itself"),
    (lambda c: c.send(torch.ones(2), 0, timeout_s=0), InvalidArgumentError, "timeout_s"),
    (lambda c: c.batch_p2p([Send(torch.ones(2), 0), 5]), InvalidArgumentError, "not 5"),
    (
        lambda c: c.batch_p2p([Send(torch.ones(2), 0), Recv(torch.ones(2), 1)]),
        InvalidArgumentError,
        "itself",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), REFUSED)
def test_a_refused_message_takes_no_place_and_no_memory(
    comm: Communicator,
    daemon: StubDaemon,
    call: Callable[[Any], Any],
    error: type[RingdError],
    text: str,
) -> None:
    with pytest.raises(error, match=text):
        call(comm)
    assert comm.recv(torch.zeros(2), 0) == 0
    assert daemon.poisons == []
    assert [s.spec.collective for s in daemon.submitted] == ["recv"]
    assert comm._arena.used_bytes == 0


def test_a_batch_that_would_be_over_the_bound_is_not_posted(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = lambda submitted: "hold"
    first = comm.batch_p2p([Send(torch.ones(1), 0, tag) for tag in range(1000)])
    with pytest.raises(TooManyOperationsError):
        comm.batch_p2p([Send(torch.ones(1), 0, tag) for tag in range(25)])
    eventually(lambda: len(daemon.held) == 1000)
    daemon.script = lambda submitted: None
    daemon.release()
    for handle in first:
        handle.wait(30)
    assert len(daemon.submitted) == 1000


def test_a_mismatch_leaves_the_tensor_alone_and_the_next_message_works(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = lambda submitted: CollectiveMismatchError("another element count")
    tensor = torch.full((3,), -1.0)
    with pytest.raises(CollectiveMismatchError):
        comm.recv(tensor, 0)
    assert tensor.tolist() == [-1, -1, -1]
    daemon.script = lambda submitted: None
    assert comm.recv(tensor, 0) == 0
    assert tensor.tolist() == [0, 1, 2]


def test_messages_in_shared_memory_are_not_copied(comm: Communicator, daemon: StubDaemon) -> None:
    tensor = comm.empty(4)
    place = comm._arena.find(tensor.data_ptr(), 16)
    comm.recv(tensor, 0)
    assert tensor.tolist() == [0, 1, 2, 3]
    comm.send(tensor, 2)
    assert place is not None
    assert [(s.segment, s.offset) for s in daemon.submitted] == [(place[0].number, place[1])] * 2


async def test_the_asyncio_face_has_the_same_messages(
    new_cluster: Callable[[int], Cluster],
) -> None:
    async def program(comm: AsyncCommunicator) -> Any:
        tensor = torch.zeros(2)
        if comm.rank == 0:
            handle = comm.isend(torch.ones(2), 1, 3)
            assert await comm.send(torch.full((2,), 2.0), 1) is None
            assert await handle is None
            return None
        assert await comm.recv(tensor) == 0
        first = tensor.tolist()
        (handle,) = comm.batch_p2p([Recv(tensor, 0, 3)])
        assert await handle == 0
        return first + tensor.tolist()

    results = await new_cluster(2).run_async(program)
    assert results[1] == [2, 2, 1, 1]
