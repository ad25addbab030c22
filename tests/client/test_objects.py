"""Objects between ranks: values, sizes on both sides of one exchange, and failures in step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ringd_client
from ringd.errors import (
    ArenaFullError,
    CollectiveMismatchError,
    InvalidArgumentError,
    ObjectTooLargeError,
    ProtocolError,
    ResourceError,
    RingdError,
    TooManyOperationsError,
    UnsupportedTypeError,
)
from ringd_client import AsyncCommunicator, Communicator
from ringd_client import _objects as objects
from ringd_client._calls import Caller
from ringd_client._objects import ROOM_BYTES
from tests.client.stub_cluster import Cluster
from tests.client.stub_daemon import StubDaemon

SIZES = [1, 2, 3, 5]
JUST_FITS = ROOM_BYTES - 3
"""Of bytes whose msgpack is as long as the room in a head."""


def sized(rank: int, size: int) -> bytes:
    return bytes((7 * rank + i) % 251 for i in range(size))


OBJECTS: list[Callable[[int], Any]] = [
    lambda rank: None,
    lambda rank: {"rank": rank, "deep": [{1: 2.5}, "ä", b"\0", True, [], -rank]},
    lambda rank: sized(rank, JUST_FITS),
    lambda rank: sized(rank, JUST_FITS + 1),
    lambda rank: sized(rank, [0, 5000, 100_000, 1, JUST_FITS + 2][rank]),
]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("number", range(len(OBJECTS)))
def test_objects_arrive_as_they_were(
    new_cluster: Callable[[int], Cluster], n: int, number: int
) -> None:
    make, root = OBJECTS[number], n - 1
    everything = [make(rank) for rank in range(n)]

    def program(comm: Communicator) -> None:
        is_root = comm.rank == root
        assert comm.all_gather_object(make(comm.rank)) == everything
        got = comm.gather_object(make(comm.rank), root)
        assert got == (everything if is_root else None)
        assert comm.broadcast_object(make(root) if is_root else None, root) == make(root)
        objs = everything if is_root else None
        assert comm.scatter_object(objs, root) == make(comm.rank)
        tensor = torch.ones(2)
        assert comm.all_reduce(tensor).tolist() == [n, n]

    new_cluster(n).run(program)


def test_small_objects_take_one_exchange_of_a_kibibyte(
    new_cluster: Callable[[int], Cluster],
) -> None:
    def program(comm: Communicator) -> None:
        comm.all_gather_object(sized(comm.rank, JUST_FITS))
        comm.gather_object("small", 0)
        comm.broadcast_object("small", 0)

    cluster = new_cluster(2)
    cluster.run(program)
    assert [(s.collective, s.dtype, s.shape) for s in cluster.performed] == [
        ("all_gather", "uint8", (1024,)),
        ("all_gather", "uint8", (1024,)),
        ("all_reduce", "uint8", (1024,)),
    ]


def test_tuples_come_back_as_lists_on_their_own_rank_too(
    new_cluster: Callable[[int], Cluster],
) -> None:
    def program(comm: Communicator) -> Any:
        return comm.all_gather_object((comm.rank, {3: (4,)})), comm.broadcast_object((1,), 0)

    expected = [[0, {3: [4]}], [1, {3: [4]}]]
    assert new_cluster(2).run(program) == [(expected, [1])] * 2


class Stranger:
    """msgpack does not know it."""


RECURSIVE: list[Any] = []
RECURSIVE.append(RECURSIVE)
UNFIT = [Stranger(), {1, 2}, 1 << 70, "\ud800", RECURSIVE, {(1, 2): 3}, lambda: None]
CALLS: list[Callable[[Communicator, Any], Any]] = [
    lambda comm, obj: comm.all_gather_object(obj),
    lambda comm, obj: comm.gather_object(obj, 0),
    lambda comm, obj: comm.broadcast_object(obj, 1),
    lambda comm, obj: comm.scatter_object([0, 1, obj], 1),
]


def outcome(call: Callable[[], Any]) -> type[RingdError]:
    with pytest.raises(RingdError) as caught:
        call()
    return type(caught.value)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("number", range(len(UNFIT)))
def test_an_object_that_msgpack_cant_carry_fails_on_all_ranks_in_step(
    new_cluster: Callable[[int], Cluster], call: Callable[[Communicator, Any], Any], number: int
) -> None:
    def program(comm: Communicator) -> Any:
        obj = UNFIT[number] if comm.rank == 1 else sized(0, 5000)
        failed = outcome(lambda: call(comm, obj))
        return failed, comm.all_gather_object(comm.rank)

    cluster = new_cluster(3)
    failures, after = zip(*cluster.run(program), strict=True)
    assert failures == (CollectiveMismatchError, UnsupportedTypeError, CollectiveMismatchError)
    assert after == ([0, 1, 2],) * 3
    assert [len(daemon.poisons) for daemon in cluster.daemons] == [0, 1, 0]


def full_at_the_second(comm: Caller, patched: pytest.MonkeyPatch) -> None:
    """The arena has room for the next operation, and for none after it."""
    take, taken = comm._arena.take, iter(range(100))

    def take_once(size_bytes: int) -> Any:
        if next(taken):
            raise ArenaFullError("the shared-memory arena has no room")
        return take(size_bytes)

    patched.setattr(comm._arena, "take", take_once)


def too_many_at_the_second(comm: Caller, patched: pytest.MonkeyPatch) -> None:
    """When the next operation has ended, as many as may be are in flight."""
    free = comm._arena.free

    def free_last(block: Any) -> None:
        free(block)
        patched.setattr(comm._state, "max_in_flight", 0)

    patched.setattr(comm._arena, "free", free_last)


def no_memory_at_the_second(comm: Caller, patched: pytest.MonkeyPatch) -> None:
    """There is no ordinary memory for the rest."""
    mine, room, array = threading.get_ident(), objects._room, objects._array
    heads_bytes = comm.world_size * objects.HEAD_BYTES

    def scarce(size_bytes: int, make: Callable[[], Any]) -> Any:
        if threading.get_ident() == mine and size_bytes > heads_bytes:
            raise MemoryError(f"Unable to allocate {size_bytes}")
        return make()

    patched.setattr(objects, "_room", lambda size: scarce(size, lambda: room(size)))
    patched.setattr(objects, "_array", lambda data: scarce(len(data), lambda: array(data)))


TWICE = [*CALLS, lambda comm, obj: comm.split(0)]
HARM: list[tuple[Callable[[Caller, pytest.MonkeyPatch], None], type[RingdError]]] = [
    (full_at_the_second, ArenaFullError),
    (too_many_at_the_second, TooManyOperationsError),
    (no_memory_at_the_second, ResourceError),
]


@pytest.mark.parametrize(
    ("call", "harm", "error"),
    [
        (call, harm, error)
        for call in TWICE
        for harm, error in HARM
        if call in CALLS or harm is not no_memory_at_the_second
    ],
)
def test_a_second_exchange_that_fails_here_fails_on_all_ranks_in_step(
    new_cluster: Callable[[int], Cluster],
    call: Callable[[Communicator, Any], Any],
    harm: Callable[[Caller, pytest.MonkeyPatch], None],
    error: type[RingdError],
) -> None:
    def program(comm: Communicator) -> Any:
        with pytest.MonkeyPatch.context() as patched:
            if comm.rank == 1:
                harm(comm, patched)
            failed = outcome(lambda: call(comm, sized(comm.rank, 6000)))
        return failed, comm.all_gather_object(comm.rank)

    cluster = new_cluster(3)
    failures, after = zip(*cluster.run(program), strict=True)
    assert failures == (CollectiveMismatchError, error, CollectiveMismatchError)
    assert after == ([0, 1, 2],) * 3
    assert [len(daemon.poisons) for daemon in cluster.daemons] == [0, 1, 0]


def scarce(patched: pytest.MonkeyPatch, part: str, calls_before: int) -> None:
    """Let a function of the module fail for want of memory, after so many calls."""
    unpatched, calls = getattr(objects, part), iter(range(100))

    def failing(*args: Any) -> Any:
        if next(calls) >= calls_before:
            raise MemoryError("Unable to allocate")
        return unpatched(*args)

    patched.setattr(objects, part, failing)


PARTS = [("_unpack", 1), ("_content", 0)]
"""The first call of ``_unpack`` looks at what was packed."""


@pytest.mark.parametrize(("part", "calls_before"), PARTS)
def test_a_want_of_memory_for_what_has_come_is_no_fault_of_the_senders(
    comm: Communicator, monkeypatch: pytest.MonkeyPatch, part: str, calls_before: int
) -> None:
    with monkeypatch.context() as patched:
        scarce(patched, part, calls_before)
        with pytest.raises(ResourceError, match="out of memory") as caught:
            comm.broadcast_object([1, 2], root=1)
    assert caught.value.retry == "same_epoch"
    assert comm.broadcast_object([1, 2], root=1) == [1, 2]


@pytest.mark.parametrize(("part", "calls_before"), PARTS)
async def test_nor_is_it_with_asyncio(
    daemon: StubDaemon, monkeypatch: pytest.MonkeyPatch, part: str, calls_before: int
) -> None:
    async with await ringd_client.connect_async(socket=daemon.path) as acomm:
        with monkeypatch.context() as patched:
            scarce(patched, part, calls_before)
            with pytest.raises(ResourceError, match="out of memory"):
                await acomm.broadcast_object([1, 2], root=1)
        assert await acomm.broadcast_object([1, 2], root=1) == [1, 2]


async def test_so_it_does_with_asyncio(new_cluster: Callable[[int], Cluster]) -> None:
    async def program(comm: AsyncCommunicator) -> Any:
        with pytest.MonkeyPatch.context() as patched:
            if comm.rank == 1:
                full_at_the_second(comm, patched)
            with pytest.raises(RingdError) as caught:
                await comm.all_gather_object(sized(comm.rank, 6000))
        return type(caught.value), await comm.all_gather_object(comm.rank)

    failures, after = zip(*await new_cluster(3).run_async(program), strict=True)
    assert failures == (CollectiveMismatchError, ArenaFullError, CollectiveMismatchError)
    assert after == ([0, 1, 2],) * 3


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("size", [600, 5000])
def test_an_object_over_the_cap_is_named_on_every_rank(
    new_cluster: Callable[[int], Cluster], call: Callable[[Communicator, Any], Any], size: int
) -> None:
    capped: list[Callable[[Communicator, Any, int], Any]] = [
        lambda comm, obj, cap: comm.all_gather_object(obj, max_object_bytes=cap),
        lambda comm, obj, cap: comm.gather_object(obj, 0, max_object_bytes=cap),
        lambda comm, obj, cap: comm.broadcast_object(obj, 1, max_object_bytes=cap),
        lambda comm, obj, cap: comm.scatter_object([0, obj, 2], 1, max_object_bytes=cap),
    ]
    make = capped[CALLS.index(call)]

    def program(comm: Communicator) -> Any:
        obj = sized(1, size - 3) if comm.rank == 1 else b"small"
        with pytest.raises(ObjectTooLargeError, match="object of rank 1") as caught:
            make(comm, obj, size - 1)
        make(comm, obj, size)
        return caught.value.rank, caught.value.size_bytes, caught.value.limit_bytes

    assert new_cluster(3).run(program) == [(1, size, size - 1)] * 3


def test_a_group_names_the_rank_of_the_world(new_cluster: Callable[[int], Cluster]) -> None:
    def program(comm: Communicator) -> Any:
        group = comm.new_group([1, 2])
        if group is None:
            return None
        with pytest.raises(ObjectTooLargeError) as caught:
            group.all_gather_object("x" * (100 * group.rank), max_object_bytes=50)
        return caught.value.rank, group.all_gather_object(comm.rank)

    assert new_cluster(3).run(program) == [None, (2, [1, 2]), (2, [1, 2])]


@pytest.mark.parametrize(
    "call",
    [
        lambda comm: comm.gather_object(1, comm.rank % 2),
        lambda comm: comm.broadcast_object(1, comm.rank % 2),
        lambda comm: comm.scatter_object([1, 2, 3], comm.rank % 2),
        lambda comm: comm.broadcast_object(1, 0, max_object_bytes=100 + comm.rank),
        lambda comm: comm.all_gather_object(1, max_object_bytes=100 + comm.rank),
    ],
)
def test_roots_and_caps_that_differ_are_a_mismatch_on_all_ranks(
    new_cluster: Callable[[int], Cluster], call: Callable[[Communicator], Any]
) -> None:
    def program(comm: Communicator) -> Any:
        return outcome(lambda: call(comm)), comm.all_gather_object(comm.rank)

    expected = (CollectiveMismatchError, [0, 1, 2])
    assert new_cluster(3).run(program) == [expected] * 3


def test_a_wrong_number_of_objects_is_refused_and_told(
    new_cluster: Callable[[int], Cluster],
) -> None:
    def program(comm: Communicator) -> Any:
        failed = outcome(lambda: comm.scatter_object([1, 2], 1))
        return failed, comm.scatter_object([1, 2, 3], 1)

    mismatch = CollectiveMismatchError
    results = new_cluster(3).run(program)
    assert results == [(mismatch, 1), (InvalidArgumentError, 2), (mismatch, 3)]


def test_bytes_that_are_no_msgpack_are_the_senders_error(
    comm: Communicator, daemon: StubDaemon
) -> None:
    # The stand-in's heads count from 100*r, which are not the terms of any rank.
    with pytest.raises(CollectiveMismatchError, match="same root and max_object_bytes"):
        comm.all_gather_object(1)

    def garble(submitted: Any) -> None:
        region = daemon.region(submitted)
        region[40:42] = 0xC1  # behind the terms: a byte that begins nothing in msgpack

    daemon.script = garble
    with pytest.raises(ProtocolError, match="rank 1 sent is no msgpack"):
        comm.broadcast_object(5, 1)


def test_one_deadline_covers_all_exchanges(new_cluster: Callable[[int], Cluster]) -> None:
    def program(comm: Communicator) -> None:
        comm.all_gather_object(sized(0, 5000), timeout_s=20)

    cluster = new_cluster(2)
    cluster.run(program)
    for daemon in cluster.daemons:
        first, second = (s.timeout_s for s in daemon.submitted)
        assert 0 < second < first <= 20


async def test_the_asyncio_face_has_objects(new_cluster: Callable[[int], Cluster]) -> None:
    async def program(comm: AsyncCommunicator) -> Any:
        large = sized(comm.rank, 3000)
        gathering = comm.all_gather_object(large)  # its first exchange begins here
        await comm.barrier()
        assert await gathering == [sized(rank, 3000) for rank in range(3)]
        with pytest.raises(RingdError):
            await comm.broadcast_object({1} if comm.rank == 2 else None, 2)
        return (
            await comm.gather_object(comm.rank, 1),
            await comm.scatter_object(["a", "b", "c"], 0),
            await comm.broadcast_object("x", 2),
        )

    results = await new_cluster(3).run_async(program)
    assert results == [(None, "a", "x"), ([0, 1, 2], "b", "x"), (None, "c", "x")]
