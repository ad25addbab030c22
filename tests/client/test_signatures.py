"""What ``help`` and ``inspect.signature`` show of the calls."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from ringd_client import AsyncCommunicator, Communicator


@pytest.mark.parametrize(
    ("method", "returns"),
    [
        (Communicator.all_reduce, "T"),
        (Communicator.barrier, "None"),
        (Communicator.recv, "int"),
        (Communicator.all_reduce_async, "Handle[T]"),
        (Communicator.irecv, "Handle[int]"),
        (Communicator.all_gather_object, "list[Any]"),
        (AsyncCommunicator.all_reduce, "AsyncHandle[T]"),
        (AsyncCommunicator.gather_object, "Coroutine[Any, Any, list[Any] | None]"),
    ],
)
def test_a_method_shows_itself_and_what_it_returns(method: Any, returns: str) -> None:
    signature = inspect.signature(method)
    assert next(iter(signature.parameters)) == "self"
    assert "caller" not in str(signature)
    assert signature.return_annotation == returns


def test_a_bound_method_shows_what_is_to_be_given() -> None:
    communicator = object.__new__(Communicator)
    parameters = inspect.signature(communicator.all_reduce).parameters
    assert list(parameters)[:3] == ["tensor", "op", "timeout_s"]


def test_a_method_that_returns_a_handle_has_its_own_name() -> None:
    assert Communicator.all_reduce_async.__name__ == "all_reduce_async"
    assert Communicator.isend.__name__ == "isend"
