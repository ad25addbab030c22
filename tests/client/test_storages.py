"""Tensors whose elements have no memory: refused, where reading them would end the process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ringd.errors import InvalidArgumentError, InvalidTensorError
from ringd_client import Communicator


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
