"""The asyncio twin: the same calls, which return handles to await."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

from ringd.errors import RingdError
from ringd_client import _process
from ringd_client._aio_connection import AsyncConnection
from ringd_client._arena import Arena, default_limit_bytes
from ringd_client._attach import Deadline, Membership, attach_async
from ringd_client._calls import Caller, checked_limit
from ringd_client._core import ClientState, Operation, UnsentError
from ringd_client._environment import daemon_socket
from ringd_client._handle import wait_expired
from ringd_client._transport import Transport

T = TypeVar("T")


async def connect_async(
    *,
    socket: str | None = None,
    timeout_s: float = 60.0,
    arena_limit_bytes: int | None = None,
) -> AsyncCommunicator:
    """As :func:`ringd_client.connect`, for the running event loop, to which the result belongs.

    A cancelled attempt leaves nothing behind.
    """
    deadline = Deadline.after(timeout_s)
    limit = checked_limit(arena_limit_bytes)
    transport, membership = await attach_async(socket or daemon_socket(), deadline)
    return AsyncCommunicator(
        transport, membership, limit or membership.arena_limit_bytes or default_limit_bytes()
    )


class AsyncHandle(Generic[T]):
    """An operation on its way; await it for the output tensor, as often as you like.

    A cancelled await, and a dropped handle, leave the operation running: its result is
    still written to the caller's tensor.
    """

    __slots__ = ("_connection", "_operation", "_output")

    def __init__(self, connection: AsyncConnection, operation: Operation, output: T) -> None:
        self._connection = connection
        self._operation = operation
        self._output = output

    def __await__(self) -> Generator[Any, None, T]:
        return self.wait().__await__()

    async def wait(self, timeout_s: float | None = None) -> T:
        """As :meth:`ringd_client.Handle.wait`."""
        operation = self._operation
        if not operation.finished:
            if timeout_s is None:
                await self._connection.over(operation)
            else:
                try:
                    async with asyncio.timeout(timeout_s):
                        await self._connection.over(operation)
                except TimeoutError:
                    raise wait_expired(operation, timeout_s) from None
        if operation.error is not None:
            raise operation.error.copy()
        return self._output

    def done(self) -> bool:
        """Whether an await would return at once."""
        return self._operation.finished

    def exception(self) -> RingdError | None:
        """How the operation failed; None while it runs, and when it did not."""
        error = self._operation.error
        return None if error is None else error.copy()


class AsyncCommunicator(Caller):
    """A rank's place in a group, for one event loop.

    Arguments, results and errors are those of :class:`ringd_client.Communicator`. A collective
    begins when its method is called, not when the handle is awaited, so the order of calls is
    the order in which they stand in the program. The names that end in ``_async`` are the same
    methods. Copies above 1 MiB out of the arena run in the loop's executor; copies into it
    block the loop, since the input has been read when the method returns.
    """

    def __init__(self, transport: Transport, membership: Membership, limit_bytes: int) -> None:
        """Use :func:`connect_async`."""
        state = ClientState(membership.rank, membership.max_in_flight)
        self._connection = AsyncConnection(transport, state, asyncio.get_running_loop())
        arena = Arena(limit_bytes, self._connection.announce, self._connection.retract)
        super().__init__(state, arena, membership)
        _process.opened(self)

    def all_reduce(
        self,
        tensor: T,
        op: str = "sum",
        *,
        timeout_s: float | None = None,
        recv_timeout_ms: float | None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
        preserve_input: bool = False,
    ) -> AsyncHandle[T]:
        """Combine the tensors of all ranks element by element, in place."""
        arguments = (tensor, op, algorithm, deterministic, preserve_input)
        plan = self._planner.all_reduce
        return self._start("all_reduce", plan, arguments, timeout_s, recv_timeout_ms, tensor)

    def reduce_scatter(
        self,
        output: T,
        input: Any,
        op: str = "sum",
        *,
        timeout_s: float | None = None,
        recv_timeout_ms: float | None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
    ) -> AsyncHandle[T]:
        """Combine the inputs of all ranks, and give each rank its part of the result."""
        arguments = (output, input, op, algorithm, deterministic)
        plan = self._planner.reduce_scatter
        return self._start("reduce_scatter", plan, arguments, timeout_s, recv_timeout_ms, output)

    def all_gather(
        self,
        output: T,
        input: Any,
        *,
        timeout_s: float | None = None,
        recv_timeout_ms: float | None = None,
        algorithm: str = "auto",
        preserve_input: bool = False,
    ) -> AsyncHandle[T]:
        """Give every rank the inputs of all, in rank order."""
        arguments = (output, input, algorithm, preserve_input)
        plan = self._planner.all_gather
        return self._start("all_gather", plan, arguments, timeout_s, recv_timeout_ms, output)

    def broadcast(
        self,
        tensor: T,
        root: int,
        *,
        timeout_s: float | None = None,
        recv_timeout_ms: float | None = None,
        algorithm: str = "auto",
        preserve_input: bool = False,
    ) -> AsyncHandle[T]:
        """Give every rank the tensor of rank ``root``, bit for bit."""
        arguments = (tensor, root, algorithm, preserve_input)
        plan = self._planner.broadcast
        return self._start("broadcast", plan, arguments, timeout_s, recv_timeout_ms, tensor)

    def barrier(
        self,
        *,
        timeout_s: float | None = None,
        recv_timeout_ms: float | None = None,
        algorithm: str = "auto",
    ) -> AsyncHandle[None]:
        """Done when every rank has called it."""
        plan = self._planner.barrier
        return self._start("barrier", plan, (algorithm,), timeout_s, recv_timeout_ms, None)

    all_reduce_async = all_reduce
    reduce_scatter_async = reduce_scatter
    all_gather_async = all_gather
    broadcast_async = broadcast
    barrier_async = barrier

    async def status(
        self, scope: Literal["daemon", "group"] = "daemon", *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """What the daemon, or the whole group, is doing now; not a collective."""
        operation = self._status_request(scope, timeout_s)
        self._connection.post_status(operation, scope)
        await self._connection.over(operation)
        if operation.error is not None:
            raise operation.error
        return dict(operation.reply)

    async def close(self) -> None:
        """Wait for operations in flight, up to their deadlines, say goodbye, and disconnect."""
        await self._close("closed", "", wait=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close. After an exception nothing is waited for, and the peers are told of it."""
        how, detail = _process.how_left(exc)
        await self._close(how, detail, wait=exc is None)

    def leave_at_exit(self, how: str, detail: str) -> None:
        """For the exit of the process, when no loop runs any more."""
        self._connection.leave_now(how, detail)
        self._arena.close()

    def after_fork_in_child(self) -> None:
        """For :func:`os.fork`: what the child may do with this communicator is nothing."""
        self._connection.after_fork_in_child()
        self._arena.after_fork_in_child()

    async def _close(self, how: str, detail: str, *, wait: bool) -> None:
        try:
            await self._connection.close(how=how, detail=detail, wait=wait)
        finally:
            self._arena.close()
            _process.closed(self)

    def _start(
        self,
        collective: str,
        plan: Callable[..., Operation],
        arguments: tuple[Any, ...],
        timeout_s: float | None,
        recv_timeout_ms: float | None,
        output: T,
    ) -> AsyncHandle[T]:
        operation = self._begin(collective, plan, arguments, timeout_s, recv_timeout_ms)
        return AsyncHandle(self._connection, operation, output)

    def _post(self, operation: Operation) -> None:
        self._connection.post(operation)

    def _end(self, unsent: UnsentError) -> RingdError:
        return self._connection.end(unsent)

    def _post_poison(self, packed: bytes, refusal: RingdError) -> None:
        self._connection.post_poison(packed, refusal)
