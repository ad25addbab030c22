"""Blocks of calls that travel together."""

# ruff: noqa: PT012 (a block is the call under test)

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ringd_client
from ringd.errors import (
    ArenaFullError,
    CollectiveMismatchError,
    InvalidArgumentError,
    InvalidTensorError,
    UnsupportedReductionError,
)
from ringd.vocabulary import MAX_SPEC_BYTES, OpSpec, shapes_digest
from ringd_client import AsyncCommunicator, Communicator, premul_sum
from tests.client.conftest import eventually
from tests.client.stub_cluster import Cluster
from tests.client.stub_daemon import StubDaemon, Submitted


def grid(rank: int, *shape: int) -> torch.Tensor:
    size = int(np.prod(shape))
    return (torch.arange(float(size)) * (rank + 1)).reshape(shape)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_every_call_gets_what_it_would_have_got_alone(
    new_cluster: Callable[[int], Cluster], n: int
) -> None:
    shapes = [(3,), (2, 5), (), (0, 2), (70,)]
    root = n - 1

    def calls(comm: Communicator) -> dict[str, list[Any]]:
        rank = comm.rank
        made: dict[str, list[Any]] = {
            "all_reduce": [grid(rank, *s) for s in shapes],
            "max": [grid(rank, *s).t() if len(s) == 2 else grid(rank, *s) for s in shapes],
            "reduce": [grid(rank, *s) for s in shapes],
            "broadcast": [grid(rank, *s) for s in shapes],
            "all_gather": [torch.zeros(n, *s) for s in shapes],
            "list": [[torch.zeros(s) for _ in range(n)] for s in shapes],
            "reduce_scatter": [torch.zeros(s) for s in shapes],
            "premul": [grid(rank, *s) for s in shapes],
        }
        for i, shape in enumerate(shapes):
            comm.all_reduce(made["all_reduce"][i])
            comm.all_gather(made["all_gather"][i], grid(rank, *shape))
            comm.all_reduce(made["max"][i], "max")
            comm.reduce(made["reduce"][i], root)
            comm.broadcast(made["broadcast"][i], root)
            whole = grid(rank, n, *shape)
            source = whole if i % 2 else list(whole)
            comm.reduce_scatter(made["reduce_scatter"][i], source)
            comm.all_gather(made["list"][i], grid(rank, *shape))
            comm.all_reduce(made["premul"][i], premul_sum(rank + 0.5))
        return made

    def program(comm: Communicator) -> None:
        with comm.coalesce():
            fused = calls(comm)
            assert fused["broadcast"][0].equal(grid(comm.rank, 3))
        alone = calls(comm)
        for name, results in alone.items():
            for got, expected in zip(fused[name], results, strict=True):
                pairs = zip(got, expected, strict=True) if name == "list" else [(got, expected)]
                assert all(g.equal(e) for g, e in pairs), name
        assert comm._arena.used_bytes == 0

    cluster = new_cluster(n)
    cluster.run(program)
    together = cluster.performed[: -8 * len(shapes)]
    assert [(s.collective, s.reduce_op) for s in together] == [
        ("all_reduce", "sum"),
        ("all_gather", ""),
        ("all_reduce", "max"),
        ("reduce", "sum"),
        ("broadcast", ""),
        ("reduce_scatter", "sum"),
        ("all_reduce", "premul_sum"),
    ]
    assert together[0] == OpSpec(
        "all_reduce", "float32", "sum", (84,), fused=(3, 10, 1, 0, 70),
        fused_shapes=shapes_digest(shapes),
    )  # fmt: skip
    assert len(together[1].fused) == 2 * len(shapes)


def test_shapes_are_compared_in_a_block_as_outside(new_cluster: Callable[[int], Cluster]) -> None:
    def program(comm: Communicator) -> None:
        same, other = torch.ones(5), torch.ones((3, 4) if comm.rank else (4, 3))
        with pytest.raises(CollectiveMismatchError), comm.coalesce():
            comm.all_reduce(same)
            comm.all_reduce(other)
        with comm.coalesce():
            comm.all_reduce(same)
            comm.all_reduce(other.reshape(12))
        assert (same == comm.world_size).all()
        assert (other == comm.world_size).all()

    for n in (2, 3):
        new_cluster(n).run(program)


def test_what_differs_is_not_fused_and_a_single_call_is_an_ordinary_one(
    comm: Communicator, daemon: StubDaemon
) -> None:
    tensors = [torch.ones(n) for n in range(1, 9)]
    with comm.coalesce():
        comm.all_reduce(tensors[0])
        comm.all_reduce(tensors[1].double())
        comm.broadcast(tensors[2], 0)
        comm.broadcast(tensors[3], 1)
        comm.all_reduce(tensors[4], deterministic=True)
        comm.all_reduce(tensors[5], algorithm="ring")
        comm.all_reduce(tensors[6])
    assert [(s.spec.shape, s.spec.fused) for s in daemon.submitted] == [
        ((8,), (1, 7)),
        ((2,), ()),
        ((3,), ()),
        ((4,), ()),
        ((5,), ()),
        ((6,), ()),
    ]
    assert tensors[0].tolist() == [3]
    assert tensors[6].tolist() == [3] * 7


def test_uneven_parts_travel_alone(comm: Communicator, daemon: StubDaemon) -> None:
    outputs = [torch.zeros(6), torch.zeros(6)]
    with comm.coalesce():
        for output in outputs:
            comm.all_gather(output, torch.ones(2), counts=[1, 2, 3])
    assert [s.spec.counts for s in daemon.submitted] == [(1, 2, 3)] * 2
    assert [o.tolist() for o in outputs] == [[0, 1, 1, 200, 201, 202]] * 2


def test_inputs_are_read_at_the_end_of_the_block(comm: Communicator) -> None:
    tensors = [torch.ones(2), torch.ones(3)]
    with comm.coalesce():
        for tensor in tensors:
            comm.all_reduce(tensor)
            tensor.fill_(5)
    assert [t.tolist() for t in tensors] == [[15, 15], [15, 15, 15]]


def test_one_arena_tensor_may_be_in_several_calls(
    new_cluster: Callable[[int], Cluster],
) -> None:
    def program(comm: Communicator) -> None:
        n, mine = comm.world_size, float(comm.rank + 1)
        tensor, gathered = comm.empty(5).fill_(mine), comm.empty((n, 5))
        with comm.coalesce():
            comm.broadcast(tensor, 1)
            comm.all_gather(gathered, tensor)
            comm.all_reduce(tensor, premul_sum(10))
        assert gathered[:, 0].tolist() == [r + 1 for r in range(n)]
        assert tensor.tolist() == [10 * n * (n + 1) / 2] * 5

    for n in (2, 3):
        new_cluster(n).run(program)


def test_a_block_whose_end_is_refused_leaves_arena_tensors_alone(comm: Communicator) -> None:
    tensor, shrinks = comm.empty(3).fill_(2), torch.ones(4)
    with pytest.raises(InvalidTensorError, match="resized"), comm.coalesce():
        comm.all_reduce(tensor, premul_sum(10))
        comm.broadcast(shrinks, 1)
        comm.all_gather(torch.zeros(12), shrinks)
        shrinks.resize_(2)
    assert tensor.tolist() == [2, 2, 2]
    assert comm.all_reduce(tensor).tolist() == [6, 6, 6]


def test_a_long_block_is_cut_so_that_fingerprints_stay_short(
    comm: Communicator, daemon: StubDaemon
) -> None:
    tensors = [torch.ones(1) for _ in range(2500)]
    with comm.coalesce():
        for tensor in tensors:
            comm.all_reduce(tensor)
    assert [len(s.spec.fused) for s in daemon.submitted] == [1024, 1024, 452]
    assert all(t.item() == 3 for t in tensors)
    largest = OpSpec(
        "all_reduce", "float8_e4m3fnuz", "sum", (2**63,), fused=(2**62,) * 1024,
        fused_shapes=shapes_digest([(2**62,)] * 1024),
    )  # fmt: skip
    assert len(largest.packed) < MAX_SPEC_BYTES


def test_other_calls_in_the_block_are_refused(comm: Communicator, daemon: StubDaemon) -> None:
    others: list[Callable[[], Any]] = [
        lambda: comm.barrier(),
        lambda: comm.send(torch.ones(1), 0),
        lambda: comm.gather(None, torch.ones(1), 0),
        lambda: comm.batch_p2p([]),
        lambda: comm.all_reduce_async(torch.ones(1)),
        lambda: comm.all_gather_object(1),
        lambda: comm.new_group([0, 1]),
        lambda: comm.coalesce().__enter__(),
    ]
    for other in others:
        with pytest.raises(InvalidArgumentError, match="block"), comm.coalesce():
            comm.all_reduce(torch.ones(2))
            other()
    with pytest.raises(InvalidArgumentError, match="^all_reduce_async can't"), comm.coalesce():
        comm.all_reduce_async(torch.ones(1))
    with pytest.raises(InvalidArgumentError, match="^irecv can't"), comm.coalesce():
        comm.irecv(torch.ones(1))
    assert comm.all_reduce(torch.ones(2)).tolist() == [3, 3]
    assert len(daemon.submitted) == 1


def test_an_exception_in_the_block_posts_nothing(comm: Communicator, daemon: StubDaemon) -> None:
    tensor = torch.ones(2)
    with pytest.raises(KeyError), comm.coalesce():
        comm.all_reduce(tensor)
        raise KeyError("ours")
    assert tensor.tolist() == [1, 1]
    comm.all_reduce(tensor)
    assert daemon.poisons == []
    assert [s.spec.fused for s in daemon.submitted] == [()]


@pytest.mark.parametrize("caught_inside", [False, True])
def test_a_refused_call_poisons_what_the_peers_will_post(
    new_cluster: Callable[[int], Cluster], caught_inside: bool
) -> None:
    def program(comm: Communicator) -> str:
        tensors = [torch.ones(2), torch.ones(3)]
        error = ""
        try:
            with comm.coalesce():
                comm.all_reduce(tensors[0])
                try:
                    comm.all_reduce(tensors[1], "band" if comm.rank == 1 else "sum")
                except UnsupportedReductionError:
                    if not caught_inside:
                        raise
        except (UnsupportedReductionError, CollectiveMismatchError) as exc:
            error = type(exc).__name__
        assert [t.tolist() for t in tensors] == [[1, 1], [1, 1, 1]]
        assert comm.all_reduce(tensors[0]).tolist() == [3, 3]
        return error

    mismatch = "CollectiveMismatchError"
    expected = [mismatch, "UnsupportedReductionError", mismatch]
    assert new_cluster(3).run(program) == expected


def test_a_failure_leaves_the_tensors_alone_and_the_other_operations_go_on(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = lambda s: (
        CollectiveMismatchError("differs") if s.spec.reduce_op == "max" else None
    )
    tensors = [torch.ones(2) for _ in range(4)]
    with pytest.raises(CollectiveMismatchError), comm.coalesce():
        comm.all_reduce(tensors[0], "max")
        comm.all_reduce(tensors[1], "max")
        comm.all_reduce(tensors[2])
        comm.all_reduce(tensors[3])
    assert [t.tolist() for t in tensors] == [[1, 1], [1, 1], [3, 3], [3, 3]]
    assert comm._arena.used_bytes == 0


def test_an_output_that_shrank_is_the_only_one_not_written(
    comm: Communicator, daemon: StubDaemon
) -> None:
    tensors = [torch.ones(4), torch.ones(2)]

    def shrink(submitted: Submitted) -> None:
        tensors[0].resize_(1)

    daemon.script = shrink
    with pytest.raises(InvalidTensorError, match="had 16 bytes"), comm.coalesce():
        for tensor in tensors:
            comm.broadcast(tensor, 0)
    assert tensors[0].tolist() == [1]
    assert tensors[1].tolist() == [4, 5]
    assert comm._arena.used_bytes == 0


def test_an_input_that_was_resized_in_the_block_is_refused_at_its_end(
    comm: Communicator, daemon: StubDaemon
) -> None:
    tensors = [torch.ones(4), torch.ones(2)]
    with pytest.raises(InvalidTensorError, match="resized"), comm.coalesce():
        for tensor in tensors:
            comm.all_reduce(tensor)
        tensors[0].resize_(1)
    assert comm.all_reduce(tensors[1]).tolist() == [3, 3]
    assert [spec.collective for spec, _ in daemon.poisons] == ["all_reduce"]
    assert comm._arena.used_bytes == 0


def test_without_room_nothing_is_posted(daemon: StubDaemon) -> None:
    with ringd_client.connect(socket=daemon.path, arena_limit_bytes=1 << 20) as comm:
        small, large = torch.ones(4), torch.ones(1 << 19)
        with pytest.raises(ArenaFullError), comm.coalesce():
            comm.all_reduce(small, "max")
            comm.all_reduce(small, "min")
            comm.all_reduce(large)
        assert daemon.submitted == []
        assert daemon.poisons == []
        assert comm._arena.used_bytes == 0


def test_the_shortest_deadline_of_the_block_is_that_of_all(
    comm: Communicator, daemon: StubDaemon
) -> None:
    with comm.coalesce():
        comm.all_reduce(torch.ones(2), timeout_s=30)
        comm.all_reduce(torch.ones(2), timeout_s=20, recv_timeout_ms=700)
        comm.broadcast(torch.ones(2), 0)
    assert all(15 < s.timeout_s <= 20 for s in daemon.submitted)
    assert [s.recv_timeout_s for s in daemon.submitted] == [0.7, 0.7]


def test_calls_of_other_threads_are_ordinary_ones(comm: Communicator, daemon: StubDaemon) -> None:
    other = torch.ones(2)
    with comm.coalesce():
        comm.all_reduce(torch.ones(3))
        thread = threading.Thread(target=comm.all_reduce, args=(other,))
        thread.start()
        thread.join(15)
        assert other.tolist() == [3, 3]
    assert [s.spec.shape for s in daemon.submitted] == [(2,), (3,)]


def test_an_empty_block_posts_nothing(comm: Communicator, daemon: StubDaemon) -> None:
    with comm.coalesce():
        pass
    comm.barrier()
    assert len(daemon.submitted) == 1


async def test_the_asyncio_face_collects_the_calls_of_one_task(
    new_cluster: Callable[[int], Cluster],
) -> None:
    async def program(comm: AsyncCommunicator) -> None:
        tensors = [torch.full((size,), float(comm.rank)) for size in (2, 3)]
        async with comm.coalesce():
            handles = [comm.all_reduce(tensor) for tensor in tensors]
            with pytest.raises(InvalidArgumentError, match="has not ended"):
                await handles[0]
        assert [t.tolist() for t in tensors] == [[3, 3], [3, 3, 3]]
        assert [(await h).tolist() for h in handles] == [[3, 3], [3, 3, 3]]

    cluster = new_cluster(3)
    await cluster.run_async(program)
    assert [s.fused for s in cluster.performed] == [(2, 3)]


async def test_handles_of_a_block_that_failed_say_how(daemon: StubDaemon) -> None:
    async with await ringd_client.connect_async(socket=daemon.path) as comm:
        daemon.script = lambda s: CollectiveMismatchError("differs")
        handles = []
        with pytest.raises(CollectiveMismatchError):
            async with comm.coalesce():
                handles += [comm.all_reduce(torch.ones(2)) for _ in range(2)]
        for handle in handles:
            with pytest.raises(CollectiveMismatchError):
                await handle
        daemon.script = lambda s: None
        with pytest.raises(KeyError):
            async with comm.coalesce():
                handles.append(comm.all_reduce(torch.ones(2)))
                raise KeyError
        with pytest.raises(ringd_client.RingdError, match="not posted"):
            await handles[-1]
        assert (await comm.all_reduce(torch.ones(2))).tolist() == [3, 3]
    eventually(lambda: daemon.goodbye)
