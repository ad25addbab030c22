"""Handles: what an asynchronous call returns."""

from __future__ import annotations

import time
from typing import Any, Generic, TypeVar

from ringd.errors import CollectiveTimeoutError, RingdError
from ringd_client._calls import positive
from ringd_client._connection import Connection
from ringd_client._handover import AGREE, AgreeHeard
from ringd_client._operation import Operation

T = TypeVar("T")


class Handle(Generic[T]):
    """An operation on its way.

    It may be waited for by any thread, and more than once. Dropping it changes nothing: the
    result is still written to the caller's tensor.
    """

    __slots__ = ("_connection", "_operation")

    def __init__(self, connection: Connection, operation: Operation[T]) -> None:
        self._connection = connection
        self._operation = operation

    def wait(self, timeout_s: float | None = None) -> T:
        """Wait for the operation; its result is in the caller's tensor then.

        Args:
            timeout_s: how long to wait at most; 0: not at all. None: until the operation ends, by
                its own deadline at the latest.

        Returns:
            What the call returns: the output tensor; of a receive, the sender's rank.

        Raises:
            InvalidArgumentError: ``timeout_s`` is no number, or a negative one.
            CollectiveTimeoutError: the wait expired; the operation goes on, its memory stays
                held, and ``wait`` may be called again. Or the operation's own deadline passed.
            RingdError: how the operation failed, each time this is called.
        """
        operation = self._operation
        wait_s = checked_wait(timeout_s)
        if not operation.finished:
            until = operation.expires
            if wait_s is not None:
                until = min(until, time.monotonic() + wait_s)
            if self._connection.wait(operation, until):
                operation.settle()
            elif until < operation.expires:
                raise wait_expired(operation, wait_s)
            else:
                self._connection.give_up(operation)
        if operation.error is not None:
            raise operation.error.copy()
        if operation.packed == AGREE:
            with AgreeHeard(self._connection.state, operation):
                return operation.output
        return operation.output

    def done(self) -> bool:
        """Whether ``wait`` would return at once: the result is written, or the operation failed."""
        operation = self._operation
        if not operation.finished:
            self._connection.advance()
            if operation.answered:
                operation.settle()
        return operation.finished

    def exception(self) -> RingdError | None:
        """How the operation failed; None while it runs, and when it did not."""
        error = self._operation.error
        return None if error is None else error.copy()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._operation.spec}: {state_of(self._operation)}>"


def state_of(operation: Operation[Any]) -> str:
    """For the text of a handle."""
    if not operation.finished:
        return "in flight"
    return "done" if operation.error is None else f"failed: {operation.error.code}"


def checked_wait(timeout_s: float | None) -> float | None:
    """How long a handle is waited for.

    Raises:
        InvalidArgumentError: no number, or a negative one.
    """
    if timeout_s is None or (timeout_s.__class__ in (int, float) and timeout_s == 0):
        return timeout_s
    return positive("timeout_s", timeout_s)


def wait_expired(operation: Operation[Any], timeout_s: float | None) -> CollectiveTimeoutError:
    """The error of a wait that was shorter than its operation."""
    return CollectiveTimeoutError(
        f"{operation.spec}: not done after a wait of {timeout_s:g} s; the operation goes on, "
        f"until {operation.timeout_s:g} s after its call at the latest. Wait again",
        op=str(operation.spec),
        waited_s=timeout_s,
    )
