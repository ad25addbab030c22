"""Tensors of ``comm.empty``: no copy, any lifetime, and what a failure does to them."""

from __future__ import annotations

import gc
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
    RingdError,
    UnsupportedTypeError,
)
from ringd.wire import ipc
from ringd_client import Communicator
from tests.client.conftest import eventually, mapped_segments
from tests.client.stub_daemon import StubDaemon


def address(tensor: Any) -> int:
    return tensor.data_ptr() if isinstance(tensor, torch.Tensor) else tensor.ctypes.data


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float64, torch.int64])
@pytest.mark.parametrize("shape", [(2, 3), [4], 5, (), (0, 3)])
def test_torch_tensors_of_any_shape(comm: Communicator, dtype: Any, shape: Any) -> None:
    tensor = comm.empty(shape, dtype)
    wanted = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    assert tensor.dtype is wanted
    assert tensor.shape == torch.empty(shape).shape
    assert tensor.is_contiguous()
    assert tensor.is_leaf
    assert not tensor._is_view()
    tensor.fill_(1)
    comm.all_reduce(tensor)
    assert (tensor == 3).all()


@pytest.mark.parametrize("dtype", ["float16", np.float64, np.dtype("int32"), float])
@pytest.mark.parametrize("shape", [(2, 3), 5, (), (0, 3)])
def test_numpy_arrays_of_any_shape(comm: Communicator, dtype: Any, shape: Any) -> None:
    array = comm.empty(shape, dtype, like="numpy")
    assert array.dtype == dtype
    assert array.shape == np.empty(shape).shape
    assert array.flags.writeable
    array[...] = 1
    comm.all_reduce(array)
    assert (array == 3).all()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda c: c.empty(3, "int4"), UnsupportedTypeError),
        (lambda c: c.empty(3, "float8_e5m2", like="numpy"), UnsupportedTypeError),
        (lambda c: c.empty(3, "bfloat16", like="numpy"), UnsupportedTypeError),
        (lambda c: c.empty(3, np.float32), UnsupportedTypeError),
        (lambda c: c.empty(3, torch.float32, like="numpy"), UnsupportedTypeError),
        (lambda c: c.empty(-1), InvalidArgumentError),
        (lambda c: c.empty((2, -1)), InvalidArgumentError),
        (lambda c: c.empty("3"), InvalidArgumentError),
        (lambda c: c.empty(2.5), InvalidArgumentError),
        (lambda c: c.empty(3, like="jax"), InvalidArgumentError),
        (lambda c: c.empty(3, 4), InvalidArgumentError),
    ],
)
def test_bad_arguments(
    comm: Communicator, daemon: StubDaemon, call: Callable[[Any], Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        call(comm)
    comm.barrier()
    assert not daemon.poisons  # it is no collective


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_collectives_work_on_the_memory_itself(
    comm: Communicator, daemon: StubDaemon, library: Any
) -> None:
    tensor = comm.empty((3, 4), like=library)
    tensor[...] = 1
    where = comm._arena.find(address(tensor), 48)
    assert where is not None
    comm.all_reduce(tensor)
    comm.broadcast(tensor, 0)
    comm.all_gather(tensor, tensor[1])
    comm.all_reduce(tensor[1:])
    comm.all_reduce(tensor[0, 1:])  # not aligned as regions have to be: copied
    places = [(s.segment, s.offset) for s in daemon.submitted]
    assert places[:3] == [(where[0].number, where[1])] * 3
    assert places[3] == (where[0].number, where[1] + 16)
    assert places[4][1] != where[1] + 4
    assert comm._arena.used_bytes == comm._arena.lent_bytes


def test_an_all_gather_into_shared_memory_copies_only_the_input(
    comm: Communicator, daemon: StubDaemon
) -> None:
    output = comm.empty((3, 2))
    comm.all_gather(output, np.array([1, 2], np.float32))
    assert output.tolist() == [[0, 1], [1, 2], [200, 201]]
    assert comm._arena.used_bytes == comm._arena.lent_bytes


def test_views_that_are_not_contiguous_are_copied(comm: Communicator, daemon: StubDaemon) -> None:
    tensor = comm.empty((3, 4))
    tensor.copy_(torch.arange(12.0).reshape(3, 4))
    comm.all_reduce(tensor.t())
    assert tensor.equal(torch.arange(12.0).reshape(3, 4) * 3)
    assert daemon.submitted[-1].spec.shape == (4, 3)


def test_a_reduce_scatter_does_not_destroy_its_input(comm: Communicator) -> None:
    whole = comm.empty(6)
    whole.copy_(torch.arange(6.0))
    output = comm.empty(2)
    comm.reduce_scatter(output, whole)
    assert output.tolist() == [6, 9]
    assert whole.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("preserve_input", [False, True])
def test_after_a_failure_the_contents_are_kept_only_when_asked_for(
    comm: Communicator, daemon: StubDaemon, preserve_input: bool
) -> None:
    tensor = comm.empty(6)
    tensor.fill_(1)
    calls: list[Callable[[], Any]] = [
        lambda: comm.all_reduce(tensor, preserve_input=preserve_input),
        lambda: comm.broadcast(tensor, 0, preserve_input=preserve_input),
        lambda: comm.all_gather(tensor, torch.ones(2), preserve_input=preserve_input),
    ]
    daemon.script = lambda s: CollectiveMismatchError("differs")
    for call in calls:
        with pytest.raises(CollectiveMismatchError) as caught:
            call()
        assert (tensor.tolist() == [1.0] * 6) is preserve_input
        assert caught.value.in_place is not preserve_input
        assert str(caught.value).endswith("restore it before you call again.") is not preserve_input
        tensor.fill_(1)
    daemon.script = lambda s: None
    calls[0]()
    assert tensor.tolist() == [3.0] * 6


def test_only_a_call_that_wrote_to_the_callers_memory_says_so(
    comm: Communicator, daemon: StubDaemon
) -> None:
    shared, ordinary = comm.empty(6), torch.ones(6)
    daemon.script = lambda s: CollectiveMismatchError("differs")
    calls: list[Callable[[], Any]] = [
        lambda: comm.all_reduce(ordinary),
        lambda: comm.all_reduce(shared, op=ringd_client.premul_sum(2.0)),
        lambda: comm.broadcast(shared, comm.rank),  # it is only read
        lambda: comm.all_reduce(shared, op="no such"),  # nothing was posted
        lambda: comm.all_reduce_async(ordinary).wait(),
    ]
    for call in calls:
        with pytest.raises(RingdError) as caught:
            call()
        assert not caught.value.in_place
        assert "restore" not in str(caught.value)
    handle = comm.all_reduce_async(shared)
    for _ in range(2):
        with pytest.raises(CollectiveMismatchError, match="restore it") as again:
            handle.wait()
        assert again.value.fields["in_place"] is True


def test_a_call_that_never_began_has_touched_nothing_but_what_was_copied_before(
    comm: Communicator, daemon: StubDaemon
) -> None:
    shared = comm.empty(6)
    daemon.script = lambda s: CollectiveMismatchError("it had ended before", in_place=False)
    with pytest.raises(CollectiveMismatchError, match=r"^it had ended before$") as caught:
        comm.all_reduce(shared)
    assert not caught.value.in_place
    with pytest.raises(CollectiveMismatchError, match="restore it before you call again") as copied:
        comm.all_gather(shared, torch.ones(2))  # its part lies in the output already
    assert copied.value.in_place


def test_a_call_that_is_given_up_says_so_too(comm: Communicator, daemon: StubDaemon) -> None:
    daemon.script = lambda s: "mute"
    with pytest.raises(RingdError, match="not yours until the daemon answers") as caught:
        comm.all_reduce(comm.empty(6), timeout_s=0.05)
    assert caught.value.in_place
    assert "restore it" not in str(caught.value)


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_memory_lives_as_long_as_any_view(comm: Communicator, library: Any) -> None:
    tensor = comm.empty((2, 3), like=library)
    tensor[...] = 5
    view = tensor.reshape(3, 2)[1:].T
    if library == "torch":
        view = view.detach().numpy()
    else:
        view = torch.from_numpy(view)
    del tensor
    gc.collect()
    assert comm._arena.lent_bytes > 0
    other = comm.empty((2, 3), like=library)
    other[...] = 7
    assert (view == 5).all()
    del view, other
    comm.barrier()
    comm._arena.trim(0.0)
    assert comm._arena.lent_bytes == comm._arena.used_bytes == 0


def test_memory_outlives_the_communicator(daemon: StubDaemon) -> None:
    comm = ringd_client.connect(socket=daemon.path)
    tensor, array = comm.empty(1000), comm.empty(1000, like="numpy")
    tensor.fill_(1)
    array.fill(2)
    comm.close()
    del comm
    assert daemon.gone.wait(10)
    gc.collect()
    assert tensor.sum() == 1000
    assert array.sum() == 2000
    assert mapped_segments() == 1
    del tensor, array
    assert mapped_segments() == 0


def test_memory_of_an_operation_in_flight_is_not_reused(
    comm: Communicator, daemon: StubDaemon
) -> None:
    daemon.script = lambda s: "hold"
    comm.all_reduce_async(comm.empty(256))
    eventually(lambda: daemon.held)
    gc.collect()
    other = comm.empty(256)
    where = comm._arena.find(address(other), 1024)
    assert where is not None
    assert (where[0].number, where[1]) != (daemon.held[0].segment, daemon.held[0].offset)
    daemon.release()
    eventually(lambda: comm._arena.lent_bytes == 1024)


def test_tensors_of_another_communicator_are_ordinary_ones(
    comm: Communicator, start_daemon: Callable[..., StubDaemon]
) -> None:
    with ringd_client.connect(socket=start_daemon(world_size=2).path) as other:
        foreign = other.empty(3)
        own = comm.empty(3)
        foreign.fill_(1)
        comm.all_reduce(foreign)
        assert foreign.tolist() == [3, 3, 3]
        del own, foreign


def test_a_full_arena_says_its_cap_and_nothing_was_posted(daemon: StubDaemon) -> None:
    with ringd_client.connect(socket=daemon.path, arena_limit_bytes=1 << 20) as comm:
        with pytest.raises(ArenaFullError, match="cap is 1,048,576 bytes"):
            comm.all_reduce(torch.ones(1 << 20))
        kept = comm.empty(200_000)
        with pytest.raises(ArenaFullError, match="917,504 more"):
            comm.all_gather(torch.ones(3, 70_000), torch.ones(70_000))
        assert not daemon.submitted
        assert not daemon.poisons
        del kept
        comm.all_gather(torch.ones(3, 70_000), torch.ones(70_000))


def test_the_daemon_learns_of_segments_before_they_are_used(
    comm: Communicator, daemon: StubDaemon
) -> None:
    for count in (1 << 10, 1 << 20, 20 << 20):
        comm.all_reduce(np.ones(count, np.float32))
    announced: set[int] = set()
    for message in daemon.log:
        if message[0] == ipc.SEGMENT:
            announced.add(message[1])
        elif message[0] == ipc.SUBMIT:
            assert message[5] in announced
    comm._arena.trim(float("inf"))
    comm.barrier()
    assert any(m[0] == ipc.DROP_SEGMENT for m in daemon.log)
    assert sum(len(s) for s in daemon.segments.values()) == comm._arena.size_bytes <= 64 << 20
