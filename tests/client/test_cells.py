"""Calls that look like earlier ones: the short way keeps what the ordinary one promises."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import ringd_client
from ringd.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    InvalidTensorError,
    ResourceError,
    UnsupportedTypeError,
)
from ringd_client import Communicator
from ringd_client._cells import MAX_BYTES, MAX_CELLS
from tests.client.stub_daemon import StubDaemon

LIBRARIES = ["torch", "numpy"]


def ones(library: str, *shape: int, dtype: str = "float32") -> Any:
    if library == "torch":
        return torch.ones(shape, dtype=getattr(torch, dtype))
    return np.ones(shape, dtype)


def warm(comm: Communicator, *tensors: Any) -> None:
    """Let calls on such tensors leave their cells."""
    for tensor in tensors:
        for _ in range(2):
            comm.all_reduce(tensor.clone() if isinstance(tensor, torch.Tensor) else tensor.copy())


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_next_call_finds_the_block_of_the_last_one(
    comm: Communicator, daemon: StubDaemon, library: str
) -> None:
    warm(comm, ones(library, 5))
    assert len(comm._arena.kept) == 1
    (cell,) = comm._arena.kept.values()
    place = cell.block.segment.number, cell.block.offset
    for n in range(4):
        tensor = ones(library, 5)
        tensor *= n
        assert comm.all_reduce(tensor) is tensor
        assert tensor.tolist() == [3.0 * n] * 5
        assert (daemon.submitted[-1].segment, daemon.submitted[-1].offset) == place
    assert comm._arena.used_bytes == 0


@pytest.mark.parametrize("library", LIBRARIES)
def test_calls_that_look_alike_may_be_in_flight_at_once(
    comm: Communicator, daemon: StubDaemon, library: str
) -> None:
    warm(comm, ones(library, 5))
    daemon.script = lambda s: "hold"
    tensors = [ones(library, 5) * n for n in range(4)]
    handles = [comm.all_reduce_async(tensor) for tensor in tensors]
    comm.status()
    assert len({(s.segment, s.offset) for s in daemon.submitted[-4:]}) == 4
    daemon.release()
    for handle in handles:
        handle.wait()
    assert [tensor.tolist() for tensor in tensors] == [[3.0 * n] * 5 for n in range(4)]
    assert len(comm._arena.kept) == 1
    assert comm._arena.used_bytes == 0


@pytest.mark.parametrize("library", LIBRARIES)
def test_op_dtype_and_options_are_those_of_the_call(
    comm: Communicator, daemon: StubDaemon, library: str
) -> None:
    for _ in range(3):
        assert comm.all_reduce(ones(library, 4)).tolist() == [3.0] * 4
        assert comm.all_reduce(ones(library, 4), "max").tolist() == [1.0] * 4
        assert comm.all_reduce(ones(library, 4), op="avg").tolist() == [1.0] * 4
        assert comm.all_reduce(ones(library, 2, 2)).tolist() == [[3.0] * 2] * 2
        assert comm.all_reduce(ones(library, 4, dtype="int32")).tolist() == [3] * 4
        assert comm.all_reduce(ones(library, 4), deterministic=True).tolist() == [3.0] * 4
        assert comm.all_reduce(ones(library, 4), algorithm="ring", timeout_s=7.0).tolist()
    asked = [(s.spec.reduce_op, s.spec.dtype, s.spec.shape) for s in daemon.submitted]
    assert asked[:7] == asked[7:14] == asked[14:]
    last = daemon.submitted[-7:]
    assert [s.spec.deterministic for s in last] == [False] * 5 + [True, False]
    assert [s.spec.algorithm for s in last] == ["auto"] * 6 + ["ring"]
    assert [s.bound[0] for s in last] == [comm.default_timeout_s] * 6 + [7.0]


def test_what_has_the_look_of_a_kept_one_is_refused_all_the_same(
    comm: Communicator, daemon: StubDaemon
) -> None:
    warm(comm, torch.ones(4), np.ones(4, np.float32))
    frozen = np.ones(4, np.float32)
    frozen.flags.writeable = False
    emptied = torch.ones(4)
    emptied.untyped_storage().resize_(0)
    cut = torch.ones(4)
    cut.untyped_storage().resize_(8)
    refused: list[tuple[Any, type[Exception]]] = [
        (frozen, InvalidTensorError),
        (emptied, InvalidTensorError),
        (cut, InvalidTensorError),
        (torch.ones(1).expand(4), InvalidTensorError),
        (torch.empty(4, device="meta"), UnsupportedTypeError),
        (torch.ones(4).to_sparse(), UnsupportedTypeError),
    ]
    posted = len(daemon.submitted)
    for n, (tensor, error) in enumerate(refused, 1):
        with pytest.raises(error):
            comm.all_reduce(tensor)
        comm.status()
        assert len(daemon.poisons) == n
    assert len(daemon.submitted) == posted
    assert comm._arena.used_bytes == 0


def test_an_argument_too_many_is_the_callers_mistake(comm: Communicator) -> None:
    warm(comm, torch.ones(4))
    for arguments in ((), (torch.ones(4), "sum", 1)):
        with pytest.raises(TypeError, match="all_reduce"):
            comm.all_reduce(*arguments)


def test_layouts_that_take_a_closer_look_get_it(comm: Communicator) -> None:
    warm(comm, torch.ones(3, 2), np.ones((3, 2), np.float32), torch.ones(2, dtype=torch.complex64))
    wide = torch.arange(6.0).reshape(2, 3).t()
    assert comm.all_reduce(wide).tolist() == [[0, 9], [3, 12], [6, 15]]
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert comm.all_reduce(array).tolist() == [[0, 9], [3, 12], [6, 15]]
    view = torch.arange(8.0)[2:].reshape(3, 2)
    assert comm.all_reduce(view).tolist() == [[6, 9], [12, 15], [18, 21]]
    for lazy in (torch.ones(2, dtype=torch.complex64).conj(), torch.ones(3, 2)._neg_view()):
        with pytest.raises(InvalidTensorError, match="lazily"):
            comm.all_reduce(lazy)


@pytest.mark.parametrize("library", LIBRARIES)
def test_shared_memory_is_worked_on_in_place_all_the_same(
    comm: Communicator, daemon: StubDaemon, library: Any
) -> None:
    warm(comm, ones(library, 6))
    (cell,) = comm._arena.kept.values()
    shared = comm.empty(6, like=library)
    shared[...] = 1
    comm.all_reduce(shared)
    assert shared.tolist() == [3.0] * 6
    assert daemon.submitted[-1].offset != cell.block.offset
    ordinary = ones(library, 6)
    assert comm.all_reduce(ordinary).tolist() == [3.0] * 6
    assert daemon.submitted[-1].offset == cell.block.offset


def test_what_becomes_of_an_array_in_flight_is_not_taken_for_its_values(
    comm: Communicator, daemon: StubDaemon
) -> None:
    warm(comm, np.ones(4, np.float32))
    daemon.script = lambda s: "hold"
    bits, shaped, longer = (np.ones(4, np.float32) for _ in range(3))
    handles = [comm.all_reduce_async(array) for array in (bits, shaped, longer)]
    bits.dtype = np.int32  # type: ignore[assignment]
    shaped.shape = (2, 2)
    longer.resize(5, refcheck=False)
    daemon.script = lambda s: None
    comm.status()
    daemon.release()
    handles[0].wait()
    handles[1].wait()
    assert bits.view(np.float32).tolist() == [3.0] * 4
    assert shaped.tolist() == [[3.0] * 2] * 2
    with pytest.raises(InvalidTensorError, match="had 16 bytes"):
        handles[2].wait()
    assert comm._arena.used_bytes == 0


def test_what_becomes_of_a_tensor_in_flight_is_noticed(
    comm: Communicator, daemon: StubDaemon
) -> None:
    warm(comm, torch.ones(4))
    daemon.script = lambda s: "hold"
    emptied, longer = torch.ones(4), torch.ones(4)
    handles = [comm.all_reduce_async(tensor) for tensor in (emptied, longer)]
    emptied.untyped_storage().resize_(0)
    longer.resize_(5)
    comm.status()
    daemon.release()
    for handle in handles:
        with pytest.raises(InvalidTensorError):
            handle.wait()
    assert comm._arena.used_bytes == 0


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_call_that_fails_leaves_the_tensor_and_the_cell(
    comm: Communicator, daemon: StubDaemon, library: str
) -> None:
    warm(comm, ones(library, 5))
    daemon.script = lambda s: CollectiveMismatchError("another call")
    tensor = ones(library, 5)
    with pytest.raises(CollectiveMismatchError):
        comm.all_reduce(tensor)
    assert tensor.tolist() == [1.0] * 5
    daemon.script = lambda s: None
    assert comm.all_reduce(tensor).tolist() == [3.0] * 5
    assert len(comm._arena.kept) == 1
    assert comm._arena.used_bytes == 0


@pytest.fixture
def hurried(daemon: StubDaemon) -> Iterator[Communicator]:
    """A communicator whose calls have little time."""
    with ringd_client.connect(
        socket=daemon.path, timeout_s=5, default_timeout_s=0.3
    ) as communicator:
        yield communicator


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_cell_that_the_daemon_may_still_write_to_is_not_used(
    hurried: Communicator, daemon: StubDaemon, library: str
) -> None:
    warm(hurried, ones(library, 5))
    daemon.script = lambda s: "hold"
    tensor = ones(library, 5)
    with pytest.raises(CollectiveTimeoutError, match="default_timeout_s"):
        hurried.all_reduce(tensor)
    assert not hurried._arena.kept
    daemon.script = lambda s: None
    assert hurried.all_reduce(ones(library, 5)).tolist() == [3.0] * 5
    late, last = daemon.submitted[-2:]
    assert (late.segment, late.offset) != (last.segment, last.offset)
    daemon.release()
    assert hurried.all_reduce(ones(library, 5)).tolist() == [3.0] * 5
    assert tensor.tolist() == [1.0] * 5
    assert hurried._arena.used_bytes == 0


def test_cells_of_a_segment_that_the_daemon_has_no_room_for_are_given_up(
    comm: Communicator, daemon: StubDaemon
) -> None:
    warm(comm, torch.ones(4), torch.ones(5))
    daemon.script = lambda s: ResourceError("no descriptor is left", segment=s.segment)
    with pytest.raises(ResourceError):
        comm.all_reduce(torch.ones(4))
    daemon.script = lambda s: None
    first = daemon.submitted[-1].segment
    for size in (5, 4, 5):
        assert comm.all_reduce(torch.ones(size)).tolist() == [3.0] * size
        assert daemon.submitted[-1].segment != first


def test_kept_blocks_are_given_up_where_there_is_no_room_else(daemon: StubDaemon) -> None:
    limit = 1 << 20
    with ringd_client.connect(socket=daemon.path, timeout_s=5, arena_limit_bytes=limit) as comm:
        shared = comm.empty(1)  # so the segment can't be given back as a whole
        for n in range(1, 9):
            warm(comm, torch.ones(MAX_BYTES // 4 - n))
        assert len(comm._arena.kept) == 8
        most = torch.ones(limit // 4 // 4 * 3)
        assert comm.all_reduce(most).sum().item() == 3 * len(most)
        assert not comm._arena.kept
        assert comm._arena.size_bytes <= limit
        assert shared.numel() == 1


def test_few_are_kept_and_none_that_is_large(comm: Communicator) -> None:
    for n in range(1, 3 * MAX_CELLS):
        warm(comm, torch.ones(n))
        assert len(comm._arena.kept) <= MAX_CELLS
    comm._arena.give_up_kept()
    warm(comm, torch.ones(MAX_BYTES // 4 + 1))
    assert not comm._arena.kept
    assert comm._arena.used_bytes == 0


def test_shapes_that_come_once_leave_nothing(comm: Communicator) -> None:
    for n in range(1, 20):
        comm.all_reduce(torch.ones(n))
    assert not comm._arena.kept


def test_the_next_epoch_has_its_own(comm: Communicator, daemon: StubDaemon) -> None:
    warm(comm, torch.ones(4))
    daemon.next_place = {"rank": 0, "world_size": 2}
    comm.reform(timeout_s=5)
    for _ in range(3):
        assert comm.all_reduce(torch.ones(4)).tolist() == [2.0] * 4


def test_groups_have_their_own(comm: Communicator) -> None:
    group = comm.new_group([0, 1])
    assert group is not None
    for _ in range(3):
        assert comm.all_reduce(torch.ones(4)).tolist() == [3.0] * 4
        assert group.all_reduce(torch.ones(4)).tolist() == [2.0] * 4
    assert len(comm._arena.kept) == 2
    group.close()
    with pytest.raises(ringd_client.CommunicatorClosedError):
        group.all_reduce(torch.ones(4))


class Odd(Exception):
    """What a tensor raises that can't be read."""


def test_a_tensor_that_raises_takes_its_place_in_the_order(
    comm: Communicator, daemon: StubDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm(comm, torch.ones(4))
    (cell,) = comm._arena.kept.values()

    def load(self: object, tensor: object) -> bool:
        raise Odd("in the short way only")

    monkeypatch.setattr(type(cell), "load", load)
    calls: list[Callable[[], object]] = [
        lambda: comm.all_reduce(torch.ones(4)),
        lambda: comm.all_reduce(torch.ones(4), timeout_s=5),
    ]
    for n, call in enumerate(calls, 1):
        with pytest.raises(InvalidTensorError, match="Odd"):
            call()
        comm.status()
        assert len(daemon.poisons) == n
    assert comm._arena.used_bytes == 0
    with contextlib.suppress(InvalidTensorError):
        comm.all_reduce(torch.ones(4))
