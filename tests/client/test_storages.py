"""Tensors whose elements have no memory: refused, where reading them would end the process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ringd.errors import InvalidArgumentError, InvalidTensorError, RingdError
from ringd_client import Communicator
from tests.client.conftest import eventually


def _resized(elements: int) -> torch.Tensor:
    tensor = torch.ones(1000)
    tensor.untyped_storage().resize_(elements * 4)
    return tensor


@pytest.mark.parametrize("elements", [0, 999])
def test_a_storage_that_was_resized_under_its_tensor_is_refused(
    comm: Communicator, elements: int
) -> None:
    with pytest.raises(InvalidTensorError, match="its storage"):
        comm.all_reduce(_resized(elements))
    tensor = torch.ones(3)
    comm.all_reduce(tensor)
    assert tensor.tolist() == [3, 3, 3]


def _shrunk(view: str) -> torch.Tensor:
    """A view whose storage ends before its last element, and after more bytes than it has."""
    base = torch.ones(64, 64)
    views = {
        "a row at the end": base[63],
        "a row before that": base[62],
        "every second": base.view(-1)[::2],
        "transposed, from an offset": base.t()[1:],
        "expanded": base[63].expand(4, 64),
    }
    base.untyped_storage().resize_((62 * 64 + 63) * 4)
    return views[view]


VIEWS = (
    "a row at the end",
    "a row before that",
    "every second",
    "transposed, from an offset",
    "expanded",
)


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_that_ends_beyond_its_storage_is_refused(comm: Communicator, view: str) -> None:
    tensor = _shrunk(view)
    for call in (
        lambda: comm.all_reduce(tensor),
        lambda: comm.all_gather(torch.empty(3, *tensor.shape), tensor),
        lambda: comm.broadcast_async(tensor, root=comm.rank),
    ):
        with pytest.raises(InvalidTensorError, match="its storage"):
            call()
    tensor = torch.ones(3)
    comm.all_reduce(tensor)
    assert tensor.tolist() == [3, 3, 3]


@pytest.mark.parametrize("size", [0, (62 * 64 + 63) * 4])
@pytest.mark.parametrize("view", VIEWS[:-1])
def test_a_result_is_not_written_beyond_a_storage_that_was_resized_meanwhile(
    comm: Communicator, daemon: Any, view: str, size: int
) -> None:
    base = torch.ones(64, 64)
    views = (base[63], base[62], base.view(-1)[::2], base.t()[1:])
    tensor = dict(zip(VIEWS[:-1], views, strict=True))[view]
    daemon.script = lambda submitted: "hold"
    handle = comm.all_reduce_async(tensor)
    base.untyped_storage().resize_(size)
    eventually(lambda: daemon.held)
    daemon.release()
    with pytest.raises(RingdError, match="its storage"):
        handle.wait()


def test_views_within_their_storage_are_taken(comm: Communicator) -> None:
    base = torch.ones(64, 64)
    views = (base[61], base[:62].t()[1:], base[:62].view(-1)[1::2], base[62, 62:63])
    base.untyped_storage().resize_((62 * 64 + 63) * 4)
    for tensor in views:
        assert comm.all_reduce(tensor).unique().tolist() == [3], tensor.stride()
        tensor.fill_(1)
    few = torch.ones(1)
    assert comm.broadcast(few.expand(64), root=comm.rank).tolist() == [1] * 64


def test_a_tensor_without_memory_is_refused(comm: Communicator) -> None:
    with pytest.raises(InvalidTensorError, match="never had memory"):
        comm.all_reduce(torch._efficientzerotensor(1000))


def test_an_empty_tensor_needs_no_memory(comm: Communicator) -> None:
    assert comm.all_reduce(torch.empty(0)).shape == (0,)


@pytest.mark.parametrize("word", ["\ud800", "x" * 200_000])
def test_a_word_of_any_kind_is_refused_and_takes_its_place(
    comm: Communicator, daemon: Any, word: str
) -> None:
    with pytest.raises(InvalidArgumentError):
        comm.all_reduce(torch.ones(3), op=word)
    with pytest.raises(InvalidArgumentError):
        comm.broadcast(torch.ones(3), root=10**30)
    comm.barrier()
    assert len(daemon.poisons) == 2
