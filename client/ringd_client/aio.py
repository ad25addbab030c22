"""The asyncio twin: the same calls, which return handles to await."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar

from ringd.errors import RingdError
from ringd_client import _collectives as collectives
from ringd_client import _epochs as epochs
from ringd_client import _groups as groups
from ringd_client import _messages as messages
from ringd_client import _objects as objects
from ringd_client import _process
from ringd_client import _state as states
from ringd_client._aio_connection import AsyncConnection
from ringd_client._arena import Arena, default_limit_bytes
from ringd_client._attach import Deadline, Membership, attach_async
from ringd_client._calls import Caller, Place, checked_default, checked_limit
from ringd_client._coalesce import Batch, misplaced
from ringd_client._collectives import Preparer
from ringd_client._core import ClientState
from ringd_client._environment import daemon_socket
from ringd_client._handle import checked_wait, state_of, wait_expired
from ringd_client._handover import AGREE, AgreeHeard, EpochHeard
from ringd_client._messages import Message
from ringd_client._operation import Operation, UnsentError, cut_short
from ringd_client._process import Departure
from ringd_client._signatures import show_as_method
from ringd_client._steps import Steps

T = TypeVar("T")
P = ParamSpec("P")


async def connect_async(
    *,
    socket: str | None = None,
    timeout_s: float = 60.0,
    default_timeout_s: float | None = None,
    arena_limit_bytes: int | None = None,
) -> AsyncCommunicator:
    """As :func:`ringd_client.connect`, for the running event loop, to which the result belongs.

    A cancelled attempt leaves nothing behind.
    """
    deadline = Deadline.after(timeout_s)
    limit, default = checked_limit(arena_limit_bytes), checked_default(default_timeout_s)
    transport, membership = await attach_async(socket or daemon_socket(), deadline)
    state = ClientState(membership.seat, membership.max_in_flight, membership.epoch)
    connection = AsyncConnection(transport, state, asyncio.get_running_loop())
    arena = Arena(
        limit or membership.arena_limit_bytes or default_limit_bytes(),
        connection.announce,
        connection.retract,
        catch_up=connection.catch_up,
        unmapped=connection.state.unmapped,
        seat=membership.seat,
    )
    return AsyncCommunicator(connection, arena, membership, default_timeout_s=default)


class AsyncHandle(Generic[T]):
    """An operation on its way; await it for what the call returns, as often as you like.

    A cancelled await, and a dropped handle, leave the operation running: its result is
    still written to the caller's tensor.
    """

    __slots__ = ("_connection", "_operation")

    def __init__(self, connection: AsyncConnection, operation: Operation[T]) -> None:
        self._connection = connection
        self._operation = operation

    def __await__(self) -> Generator[Any, None, T]:
        return self.wait().__await__()

    async def wait(self, timeout_s: float | None = None) -> T:
        """As :meth:`ringd_client.Handle.wait`."""
        operation = self._operation
        wait_s = checked_wait(timeout_s)
        if not operation.finished:
            if wait_s is None:
                await self._connection.over(operation)
            else:
                try:
                    async with asyncio.timeout(wait_s):
                        await self._connection.over(operation)
                except TimeoutError:
                    raise wait_expired(operation, wait_s) from None
        if operation.error is not None:
            raise operation.error.copy()
        if operation.packed == AGREE:
            with AgreeHeard(self._connection.state, operation):
                return operation.output
        return operation.output

    def done(self) -> bool:
        """Whether an await would return at once."""
        return self._operation.finished

    def exception(self) -> RingdError | None:
        """How the operation failed; None while it runs, and when it did not."""
        error = self._operation.error
        return None if error is None else error.copy()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._operation.spec}: {state_of(self._operation)}>"


def _awaited(
    call: Callable[Concatenate[Preparer, P], Operation[T]],
) -> Callable[Concatenate[AsyncCommunicator, P], AsyncHandle[T]]:
    """The method that makes a call and returns a handle."""

    @wraps(call)
    def method(self: AsyncCommunicator, /, *args: P.args, **kwargs: P.kwargs) -> AsyncHandle[T]:
        if self._batch is not None and (batch := self._collecting()):
            return AsyncHandle(self._connection, call(batch, *args, **kwargs))
        operation = call(self, *args, **kwargs)
        self._connection.post(operation)
        return AsyncHandle(self._connection, operation)

    show_as_method(method, call, "AsyncHandle[{}]")
    return method


def _played(
    call: Callable[Concatenate[Caller, P], Steps[T]],
) -> Callable[Concatenate[AsyncCommunicator, P], Coroutine[Any, Any, T]]:
    """The method that makes a call of several operations."""

    @wraps(call)
    def method(
        self: AsyncCommunicator, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]:
        return self._play(call.__name__, call(self, *args, **kwargs))

    show_as_method(method, call, "Coroutine[Any, Any, {}]")
    return method


class AsyncCommunicator(Caller):
    """A rank's place in a group, for one event loop.

    Arguments, results and errors are those of :class:`ringd_client.Communicator`. A call
    begins when its method is called, not when the handle is awaited, so the order of calls is
    the order in which they stand in the program. Of calls that consist of several operations
    (objects, ``new_group``, ``split``) that holds for the first one, and the await makes the
    others: await such a call before another task makes one.

    The names that end in ``_async``, ``isend`` and ``irecv`` are the same methods as those
    without. Copies above 1 MiB out of the arena run in the loop's executor; copies into it block
    the loop, since the input has been read when the method returns.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        arena: Arena,
        membership: Membership,
        place: Place | None = None,
        default_timeout_s: float | None = None,
    ) -> None:
        """Use :func:`connect_async`, ``new_group`` or ``split``."""
        self._connection = connection
        super().__init__(connection.state, arena, membership, place, default_timeout_s)
        if place is None:
            _process.opened(self)

    # ------------------------------------------------------------ collectives

    all_reduce = all_reduce_async = _awaited(collectives.all_reduce)
    reduce = reduce_async = _awaited(collectives.reduce)
    broadcast = broadcast_async = _awaited(collectives.broadcast)
    all_gather = all_gather_async = _awaited(collectives.all_gather)
    gather = gather_async = _awaited(collectives.gather)
    scatter = scatter_async = _awaited(collectives.scatter)
    reduce_scatter = reduce_scatter_async = _awaited(collectives.reduce_scatter)
    all_to_all = all_to_all_async = _awaited(collectives.all_to_all)
    barrier = barrier_async = _awaited(collectives.barrier)
    agree = agree_async = _awaited(collectives.agree)

    all_gather_object = _played(objects.all_gather_object)
    broadcast_object = _played(objects.broadcast_object)
    gather_object = _played(objects.gather_object)
    scatter_object = _played(objects.scatter_object)
    sync_state = _played(states.sync_state)

    @contextlib.asynccontextmanager
    async def coalesce(self) -> AsyncIterator[None]:
        """As :meth:`ringd_client.Communicator.coalesce`: ``async with comm.coalesce(): ...``.

        It keeps the calls of the task that opened it. Their handles may be awaited after the
        block, whose end waits for all of them. A cancelled end leaves the operations running.
        """
        batch = Batch.open(self, asyncio.current_task)
        try:
            yield
        except BaseException:
            batch.abandon()
            raise
        try:
            posted, failure = self._post_all(batch.operations())
            for operation in posted:
                await self._connection.over(operation)
                failure = failure or operation.error
            if failure is not None:
                raise failure.copy()
        finally:
            batch.conclude()

    # ------------------------------------------------------------ messages

    send = isend = _awaited(messages.send)
    recv = irecv = _awaited(messages.recv)

    def batch_p2p(
        self,
        ops: Sequence[Message],
        *,
        timeout_s: float | None = None,
        recv_timeout_ms: float | None = None,
    ) -> list[AsyncHandle[Any]]:
        """As :meth:`ringd_client.Communicator.batch_p2p`."""
        if self._collecting():
            raise misplaced("batch_p2p")
        operations = messages.prepare_all(self, ops, timeout_s, recv_timeout_ms)
        posted, failure = self._post_all(operations)
        if failure is not None:
            raise failure
        return [AsyncHandle(self._connection, operation) for operation in posted]

    # ------------------------------------------------------------ groups

    def new_group(
        self,
        ranks: Sequence[int],
        *,
        timeout_s: float | None = None,
        default_timeout_s: float | None = None,
    ) -> Coroutine[Any, Any, AsyncCommunicator | None]:
        """As :meth:`ringd_client.Communicator.new_group`."""
        steps = groups.new_group(self, ranks, timeout_s, default_timeout_s)
        return self._entered(self._play("new_group", steps), default_timeout_s)

    def split(
        self,
        color: int | None,
        key: int = 0,
        *,
        timeout_s: float | None = None,
        default_timeout_s: float | None = None,
    ) -> Coroutine[Any, Any, AsyncCommunicator | None]:
        """As :meth:`ringd_client.Communicator.split`."""
        steps = groups.split(self, color, key, timeout_s, default_timeout_s)
        return self._entered(self._play("split", steps), default_timeout_s)

    async def _entered(
        self, agreed: Coroutine[Any, Any, Place | None], default_timeout_s: float | None
    ) -> Self | None:
        place = await agreed
        if place is None:
            return None
        default = self._default_timeout_s if default_timeout_s is None else default_timeout_s
        return type(self)(self._connection, self._arena, self._membership, place, default)

    # ------------------------------------------------------------ epochs

    reform = _played(epochs.reform)
    newcomers = _played(epochs.newcomers)

    # ------------------------------------------------------------ the rest

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
        """Wait for operations in flight, up to their deadlines; then leave the group.

        See :meth:`ringd_client.Communicator.close`.
        """
        await self._close(_process.IN_ORDER, wait=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close. After an exception nothing is waited for, and the peers are told of it."""
        await self._close(_process.departure(exc), wait=exc is None)

    def _leave_at_exit(self, leaving: Departure) -> None:
        """For the exit of the process, when no loop runs any more."""
        self._connection.leave_now(leaving)
        self._arena.close()

    def _after_fork_in_child(self) -> None:
        """For :func:`os.fork`: what the child may do with this communicator is nothing."""
        self._connection.after_fork_in_child()
        self._arena.after_fork_in_child()

    async def _close(self, leaving: Departure, *, wait: bool) -> None:
        if self.group:
            if self._state.close_group(self.group, self.epoch):
                await self._connection.free_group(self.group, wait=wait)
            return
        try:
            await self._connection.close(leaving, wait=wait)
        finally:
            self._arena.close()
            _process.closed(self)

    # ------------------------------------------------------------ posting and waiting

    def _play(self, name: str, steps: Steps[T]) -> Coroutine[Any, Any, T]:
        """Make the first operation of a call now, and the others when it is awaited."""
        if self._collecting():
            raise misplaced(name)
        first = next(steps)
        self._connection.post(first)
        return self._play_on(name, first, steps)

    async def _play_on(self, name: str, operation: Operation[Any], steps: Steps[T]) -> T:
        try:
            while True:
                await self._connection.over(operation)
                if operation.error is not None:
                    raise operation.error.copy()
                operation = next(steps)
                self._connection.post(operation)
        except StopIteration as end:
            result: T = end.value
        except MemoryError as exc:
            if isinstance(exc, RingdError):
                raise
            raise cut_short(exc) from exc
        finally:
            steps.close()
        if name == "reform":
            with EpochHeard(self._state):
                return result
        return result

    def _post(self, operation: Operation[Any]) -> None:
        self._connection.post(operation)

    def _end(self, unsent: UnsentError) -> RingdError:
        return self._connection.end(unsent)

    def _post_poison(self, packed: bytes, refusal: RingdError) -> None:
        self._connection.post_poison(packed, refusal)
