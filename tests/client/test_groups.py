"""Groups: who is in them, what travels with their number, and how they end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ringd_client
from ringd.errors import (
    CollectiveMismatchError,
    CommunicatorClosedError,
    GroupFreedError,
    InvalidArgumentError,
    MembershipChangedError,
    PeerLostError,
    RingdError,
)
from ringd.vocabulary import OpSpec
from ringd.wire import ipc
from ringd_client import AsyncCommunicator, Communicator
from tests.client.conftest import eventually
from tests.client.stub_cluster import Cluster
from tests.client.stub_daemon import StubDaemon


def group_of(comm: Communicator, ranks: list[int]) -> Communicator:
    group = comm.new_group(ranks)
    assert group is not None
    return group


def test_a_new_group_is_a_call_on_its_parent(comm: Communicator, daemon: StubDaemon) -> None:
    group = group_of(comm, [2, 1])
    submitted = daemon.submitted[0]
    assert submitted.spec == OpSpec("new_group", "int64", "max", (1,), counts=(1, 2))
    assert submitted.segment > 0
    assert (group.rank, group.world_size, group.ranks, group.group) == (0, 2, (1, 2), 1)
    assert (comm.rank, comm.world_size, comm.ranks, comm.group) == (1, 3, (0, 1, 2), 0)
    assert type(group) is Communicator
    text = "<Communicator rank 0 of 2 in group 1 (ranks 1, 2 of the world), epoch 4>"
    assert repr(group) == text
    assert comm.new_group([0, 2]) is None
    assert comm._arena.used_bytes == 0


def test_every_call_on_a_group_carries_its_number_and_its_ranks(
    comm: Communicator, daemon: StubDaemon
) -> None:
    group = group_of(comm, [1, 2])
    tensor = torch.ones(4)
    assert group.all_reduce(tensor).tolist() == [2, 2, 2, 2]
    group.reduce_scatter(torch.ones(2), tensor)
    group.broadcast(tensor, 1)
    group.gather(torch.ones(2, 4), tensor, 0)
    group.all_to_all(torch.ones(2), torch.ones(2))
    group.send(tensor, 1)
    assert group.recv(tensor) == 1
    group.barrier()
    with group.coalesce():
        group.all_reduce(tensor)
        group.all_reduce(tensor)
    group.all_reduce_async(tensor).wait()
    with pytest.raises(InvalidArgumentError, match="ranks are 0 to 1"):
        group.broadcast(tensor, 2)
    comm.all_reduce(tensor)
    numbers = [s.spec.group for s in daemon.submitted]
    assert numbers == [0, *[1] * 10, 0]
    ((poison, _),) = daemon.poisons
    assert poison == OpSpec("broadcast", "", "", (), group=1)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7])
def test_colors_and_keys(new_cluster: Callable[[int], Cluster], n: int) -> None:
    def program(comm: Communicator) -> Any:
        color = None if comm.rank == n - 1 else comm.rank % 2
        group = comm.split(color, key=-comm.rank // 2)
        if group is None:
            assert color is None
            comm.barrier()
            return None
        tensor = torch.full((3,), float(comm.rank))
        group.all_reduce(tensor)
        gathered = torch.zeros(group.world_size)
        group.all_gather(gathered, torch.tensor([float(comm.rank)]))
        comm.barrier()
        group.close()
        return group.ranks, group.rank, tensor[0].item(), gathered.tolist()

    results = new_cluster(n).run(program)
    for rank, result in enumerate(results[:-1]):
        alike = [r for r in range(n - 1) if r % 2 == rank % 2]
        expected = tuple(sorted(alike, key=lambda r: (-r // 2, r)))
        assert result == (expected, expected.index(rank), sum(alike), list(map(float, expected)))
    assert results[-1] is None


def test_a_group_of_a_group_speaks_of_its_parents_ranks(
    new_cluster: Callable[[int], Cluster],
) -> None:
    def program(comm: Communicator) -> Any:
        outer = comm.new_group([4, 2, 1, 3])
        if outer is None:
            return None
        inner = outer.new_group([3, 1])
        if inner is None:
            return outer.ranks
        tensor = torch.tensor([float(comm.rank)])
        inner.broadcast(tensor, 1)
        return inner.ranks, inner.rank, tensor.item()

    cluster = new_cluster(5)
    outer = (1, 2, 3, 4)
    assert cluster.run(program) == [None, outer, ((2, 4), 0, 4.0), outer, ((2, 4), 1, 4.0)]


def test_members_that_disagree_are_told_and_the_parent_stands(
    new_cluster: Callable[[int], Cluster],
) -> None:
    def program(comm: Communicator) -> bool:
        with pytest.raises(CollectiveMismatchError):
            comm.new_group([0, 1] if comm.rank else [0, 1, 2])
        return comm.new_group([0, 1]) is not None

    assert new_cluster(3).run(program) == [True, True, False]


def test_a_refused_color_leaves_all_ranks_in_step(new_cluster: Callable[[int], Cluster]) -> None:
    def program(comm: Communicator) -> Any:
        with pytest.raises((InvalidArgumentError, CollectiveMismatchError)):
            comm.split("red" if comm.rank == 1 else 0)  # type: ignore[arg-type]
        group = comm.split(0)
        return group.ranks if group else None

    assert new_cluster(3).run(program) == [(0, 1, 2)] * 3


def test_closing_a_group_waits_for_its_operations_and_gives_it_back(
    comm: Communicator, daemon: StubDaemon
) -> None:
    group = group_of(comm, [1, 2])
    daemon.script = lambda submitted: "hold" if submitted.spec.group else None
    tensor = torch.ones(2)
    handle = group.all_reduce_async(tensor)
    eventually(lambda: daemon.held)
    other = comm.all_reduce_async(torch.ones(1))
    threading.Timer(0.1, daemon.release).start()
    group.close()
    assert tensor.tolist() == [2, 2]
    group.close()
    assert group.closed
    assert not comm.closed
    comm.barrier()
    assert daemon.freed == [1]
    handle.wait()
    other.wait()
    for call in (lambda: group.all_reduce(tensor), group.barrier, lambda: group.empty(2)):
        with pytest.raises(CommunicatorClosedError, match="group 1 is closed"):
            call()
    assert daemon.poisons == []
    assert comm.all_reduce(tensor).tolist() == [6, 6]


def test_a_with_block_gives_the_group_back_and_an_exception_does_not_wait(
    comm: Communicator, daemon: StubDaemon
) -> None:
    with group_of(comm, [1, 2]) as group:
        group.barrier()
    daemon.script = lambda submitted: "hold" if submitted.spec.group else None
    handles = []

    def program() -> None:
        with group_of(comm, [0, 1]) as group:
            handles.append(group.barrier_async())
            raise KeyError

    with pytest.raises(KeyError):
        program()
    eventually(lambda: daemon.freed == [1, 2])
    daemon.script = lambda submitted: None
    daemon.release(GroupFreedError("freed", group=2))
    with pytest.raises(GroupFreedError):
        handles[0].wait()
    comm.barrier()
    assert daemon.goodbye is None


def test_closing_the_world_closes_its_groups(daemon: StubDaemon) -> None:
    comm = ringd_client.connect(socket=daemon.path)
    group = group_of(comm, [0, 1])
    comm.close()
    assert group.closed
    group.close()
    with pytest.raises(CommunicatorClosedError):
        group.barrier()
    assert daemon.gone.wait(10)
    assert daemon.freed == []


@pytest.mark.parametrize("error", [PeerLostError, MembershipChangedError])
def test_what_ends_a_group_does_not_end_the_world(
    comm: Communicator, daemon: StubDaemon, error: type[RingdError]
) -> None:
    group, other = group_of(comm, [1, 2]), group_of(comm, [0, 1])
    daemon.script = lambda s: error("rank 2 is gone", group=1) if s.spec.group == 1 else None
    with pytest.raises(error):
        group.barrier()
    with pytest.raises(error, match="rank 2 is gone"):
        group.all_reduce(torch.ones(2))
    comm.barrier()
    other.barrier()
    group.close()
    with pytest.raises(CommunicatorClosedError):
        group.barrier()


def test_a_loss_in_the_world_leaves_a_group_of_living_ranks(
    comm: Communicator, daemon: StubDaemon
) -> None:
    group = group_of(comm, [0, 1])
    lost = PeerLostError("rank 2 died", rank=2, group=0)
    daemon.script = lambda s: lost if not s.spec.group else None
    with pytest.raises(PeerLostError):
        comm.barrier()
    assert group.all_reduce(torch.ones(2)).tolist() == [2, 2]
    with pytest.raises(PeerLostError):
        comm.recv(torch.ones(2), 2)
    group.send(torch.ones(2), 0)


def test_groups_share_memory_and_connection(comm: Communicator, daemon: StubDaemon) -> None:
    group = group_of(comm, [0, 1])
    tensor = group.empty(4)
    tensor.fill_(1)
    place = comm._arena.find(tensor.data_ptr(), 16)
    assert place is not None
    comm.all_reduce(tensor)
    group.all_reduce(tensor)
    assert {s.offset for s in daemon.submitted[-2:]} == {place[1]}
    assert tensor.tolist() == [6, 6, 6, 6]
    assert [m[0] for m in daemon.log].count(ipc.HELLO) == 1


def test_two_hundred_groups_come_and_go(comm: Communicator, daemon: StubDaemon) -> None:
    tensor = torch.ones(2)
    for _ in range(200):
        with group_of(comm, [0, 1]) as group:
            group.all_reduce(tensor, "max")
    comm.barrier()
    assert daemon.freed == list(range(1, 201))
    assert comm._state.groups == set()
    assert comm._arena.used_bytes == 0


async def test_the_asyncio_face_has_groups(new_cluster: Callable[[int], Cluster]) -> None:
    async def program(comm: AsyncCommunicator) -> Any:
        assert await comm.split(None) is None
        everybody = await comm.new_group(range(3))
        assert everybody is not None
        group = await comm.split(comm.rank % 2, comm.rank)
        assert group is not None
        tensor = torch.tensor([float(comm.rank)])
        await group.all_reduce(tensor)
        handle = group.all_reduce(tensor, "max")
        await group.close()
        assert handle.done()
        with pytest.raises(CommunicatorClosedError):
            group.barrier()
        await comm.barrier()
        return group.ranks, tensor.item()

    cluster = new_cluster(3)
    assert await cluster.run_async(program) == [((0, 2), 2.0), ((1,), 1.0), ((0, 2), 2.0)]
    assert [len(daemon.freed) for daemon in cluster.daemons] == [1, 1, 1]
