"""The communicator's methods, made of the functions that prepare their calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ringd_client._calls import Caller
from ringd_client._coalesce import misplaced
from ringd_client._collectives import Preparer
from ringd_client._handle import Handle
from ringd_client._handover import AgreeHeard
from ringd_client._operation import Operation
from ringd_client._signatures import name_with_handle, show_as_method
from ringd_client._steps import Steps

if TYPE_CHECKING:
    from ringd_client.communicator import Communicator

T = TypeVar("T")
P = ParamSpec("P")


def blocking(
    call: Callable[Concatenate[Preparer, P], Operation[T]],
    again: Callable[..., Operation[Any] | None] | None = None,
) -> Callable[Concatenate[Communicator, P], T]:
    """The method that makes a call and waits for it.

    Args:
        again: a short way to prepare a call that has one or two arguments and no options; None,
            and what returns None: there is none.
    """
    is_agree = call.__name__ == "agree"

    @wraps(call)
    def method(self: Communicator, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._batch is not None and (batch := self._collecting()):
            return call(batch, *args, **kwargs).output
        operation = None
        if again is not None and not kwargs and 0 < len(args) < 3:
            operation = again(self, *args)
        if operation is None:
            operation = call(self, *args, **kwargs)
        self._connection.perform(operation)
        if is_agree:
            with AgreeHeard(self._state, operation):
                return operation.output
        return operation.output

    show_as_method(method, call)
    return method


def started(
    call: Callable[Concatenate[Preparer, P], Operation[T]],
) -> Callable[Concatenate[Communicator, P], Handle[T]]:
    """The method that makes a call and returns a handle."""
    name = name_with_handle(call)

    @wraps(call)
    def method(self: Communicator, /, *args: P.args, **kwargs: P.kwargs) -> Handle[T]:
        if self._collecting():
            raise misplaced(name)
        operation = call(self, *args, **kwargs)
        operation.detached = True
        self._connection.post(operation)
        return Handle(self._connection, operation)

    method.__name__ = method.__qualname__ = name
    show_as_method(method, call, "Handle[{}]")
    method.__doc__ = (
        f"As :meth:`{call.__name__}`, without waiting: a :class:`Handle`, whose ``wait()`` returns "
        "what that\n    returns. The input has been read when this returns; do not touch the "
        "output before ``wait()``."
    )
    return method


def played(
    call: Callable[Concatenate[Caller, P], Steps[T]],
) -> Callable[Concatenate[Communicator, P], T]:
    """The method that makes a call of several operations."""

    @wraps(call)
    def method(self: Communicator, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._play(call.__name__, call(self, *args, **kwargs))

    show_as_method(method, call)
    return method
