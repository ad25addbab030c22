"""The blocking communicator, and how to get one."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from ringd.errors import RingdError
from ringd_client import _process
from ringd_client._arena import Arena, default_limit_bytes
from ringd_client._attach import Deadline, Membership, attach
from ringd_client._calls import Caller, checked_limit
from ringd_client._connection import Connection
from ringd_client._core import ClientState, Operation, UnsentError
from ringd_client._environment import daemon_socket
from ringd_client._handle import Handle
from ringd_client._transport import Transport

T = TypeVar("T")


def connect(
    *,
    socket: str | None = None,
    timeout_s: float = 60.0,
    arena_limit_bytes: int | None = None,
) -> Communicator:
    """Attach to this rank's daemon and wait until every rank's trainer has done so.

    Args:
        socket: path of the daemon's socket; default: RINGD_SOCKET, which ``ringd run`` sets.
        timeout_s: for everything, from the first attempt to the last trainer's arrival.
        arena_limit_bytes: cap of the shared memory; default: the daemon's setting, else 4 GiB,
            or a quarter of the machine's memory when that is less.

    Returns:
        A communicator; close it, best by ``with``.

    Raises:
        RendezvousError: somebody is missing (it says who), or the daemon refused.
        DaemonLostError: there is no daemon, or it went away.
        ConfigError: RINGD_SOCKET is not set, or an argument is no good.
    """
    deadline = Deadline.after(timeout_s)
    limit = checked_limit(arena_limit_bytes)
    transport, membership = attach(socket or daemon_socket(), deadline)
    return Communicator(
        transport, membership, limit or membership.arena_limit_bytes or default_limit_bytes()
    )


class Communicator(Caller):
    """A rank's place in a group; the calling thread waits for its results.

    Any thread may use it. Which order calls have, what tensors may look like, and what holds
    after an error: docs/semantics.md. All collectives take these keywords:

    - ``timeout_s``: the call's one deadline, from its beginning, on all ranks (default: the
      daemon's setting, which is 300 s unless set).
    - ``recv_timeout_ms``: end it earlier when a peer that owes bytes is silent for so long.
    - ``algorithm``: "auto", or what the daemon shall use; equal on all ranks.
    - ``preserve_input``: an arena tensor (``comm.empty``) keeps its contents if the call
      fails, at the price of a copy. Ordinary tensors always keep them.

    And all raise alike:

    - UnsupportedTypeError (a TypeError): no tensor, or a dtype or reduction ringd has not.
    - InvalidTensorError, InvalidArgumentError (ValueErrors): see the text.
    - CollectiveTimeoutError, CollectiveMismatchError: the group stands.
    - PeerLostError, DaemonLostError, MembershipChangedError: close, and connect again.
    - TooManyOperationsError, ArenaFullError: nothing was posted.
    - CommunicatorClosedError: it is closed, or belongs to the parent process.
    """

    def __init__(self, transport: Transport, membership: Membership, limit_bytes: int) -> None:
        """Use :func:`connect`."""
        state = ClientState(membership.rank, membership.max_in_flight)
        self._connection = Connection(transport, state)
        arena = Arena(limit_bytes, self._connection.announce, self._connection.retract)
        super().__init__(state, arena, membership)
        _process.opened(self)

    # ------------------------------------------------------------ collectives

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
    ) -> T:
        """Combine the tensors of all ranks element by element, in place.

        Args:
            tensor: this rank's contribution, which becomes the result; of equal shape and
                dtype on all ranks.
            op: sum, prod, min, max, or avg (floating-point types only).
            deterministic: fold from the left in rank order, whatever size and algorithm.
            timeout_s, recv_timeout_ms, algorithm, preserve_input: see the class.

        Returns:
            ``tensor``.

        Cost: for T bytes and N ranks each sends 2T(N-1)/N, in 2(N-1) steps on a ring and 2
        with "direct"; small tensors travel whole, in one step. One copy in and one out, unless
        the tensor is from ``empty``.
        """
        self._run(
            "all_reduce",
            self._planner.all_reduce,
            (tensor, op, algorithm, deterministic, preserve_input),
            timeout_s,
            recv_timeout_ms,
        )
        return tensor

    def all_reduce_async(
        self,
        tensor: T,
        op: str = "sum",
        *,
        timeout_s: float | None = None,
        recv_timeout_ms: float | None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
        preserve_input: bool = False,
    ) -> Handle[T]:
        """As :meth:`all_reduce`, without waiting; do not touch ``tensor`` before ``wait()``."""
        return self._start(
            "all_reduce",
            self._planner.all_reduce,
            (tensor, op, algorithm, deterministic, preserve_input),
            timeout_s,
            recv_timeout_ms,
            tensor,
        )

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
    ) -> T:
        """Combine the inputs of all ranks, and give each rank its part of the result.

        Args:
            output: where this rank's part goes.
            input: N parts in rank order; N times as many elements as ``output``. It is only
                read, and may share memory with ``output``.
            op, deterministic: as for :meth:`all_reduce`.
            timeout_s, recv_timeout_ms, algorithm: see the class.

        Returns:
            ``output``.

        Cost: for an input of T bytes each rank sends T(N-1)/N. The input is always copied.
        """
        self._run(
            "reduce_scatter",
            self._planner.reduce_scatter,
            (output, input, op, algorithm, deterministic),
            timeout_s,
            recv_timeout_ms,
        )
        return output

    def reduce_scatter_async(
        self,
        output: T,
        input: Any,
        op: str = "sum",
        *,
        timeout_s: float | None = None,
        recv_timeout_ms: float | None = None,
        algorithm: str = "auto",
        deterministic: bool = False,
    ) -> Handle[T]:
        """As :meth:`reduce_scatter`, without waiting; ``input`` has been read on return."""
        return self._start(
            "reduce_scatter",
            self._planner.reduce_scatter,
            (output, input, op, algorithm, deterministic),
            timeout_s,
            recv_timeout_ms,
            output,
        )

    def all_gather(
        self,
        output: T,
        input: Any,
        *,
        timeout_s: float | None = None,
        recv_timeout_ms: float | None = None,
        algorithm: str = "auto",
        preserve_input: bool = False,
    ) -> T:
        """Give every rank the inputs of all, in rank order.

        Args:
            output: N times as many elements as ``input``: of shape (N, ...), or any
                other with that many.
            input: this rank's part, of equal shape and dtype on all ranks; only read. It may
                be its own part of ``output``.
            timeout_s, recv_timeout_ms, algorithm, preserve_input: see the class; what is
                preserved is ``output``.

        Returns:
            ``output``.

        Cost: for an output of T bytes each rank sends T(N-1)/N.
        """
        self._run(
            "all_gather",
            self._planner.all_gather,
            (output, input, algorithm, preserve_input),
            timeout_s,
            recv_timeout_ms,
        )
        return output

    def all_gather_async(
        self,
        output: T,
        input: Any,
        *,
        timeout_s: float | None = None,
        recv_timeout_ms: float | None = None,
        algorithm: str = "auto",
        preserve_input: bool = False,
    ) -> Handle[T]:
        """As :meth:`all_gather`, without waiting; ``input`` has been read on return."""
        return self._start(
            "all_gather",
            self._planner.all_gather,
            (output, input, algorithm, preserve_input),
            timeout_s,
            recv_timeout_ms,
            output,
        )

    def broadcast(
        self,
        tensor: T,
        root: int,
        *,
        timeout_s: float | None = None,
        recv_timeout_ms: float | None = None,
        algorithm: str = "auto",
        preserve_input: bool = False,
    ) -> T:
        """Give every rank the tensor of rank ``root``, bit for bit.

        The root may return before the others have the data.

        Args:
            tensor: the data on the root, where it is only read; overwritten on the others.
            root: the same on all ranks.
            timeout_s, recv_timeout_ms, algorithm, preserve_input: see the class.

        Returns:
            ``tensor``.

        Cost: ceil(log2 N) steps; T bytes per link of the tree.
        """
        self._run(
            "broadcast",
            self._planner.broadcast,
            (tensor, root, algorithm, preserve_input),
            timeout_s,
            recv_timeout_ms,
        )
        return tensor

    def broadcast_async(
        self,
        tensor: T,
        root: int,
        *,
        timeout_s: float | None = None,
        recv_timeout_ms: float | None = None,
        algorithm: str = "auto",
        preserve_input: bool = False,
    ) -> Handle[T]:
        """As :meth:`broadcast`, without waiting; do not touch ``tensor`` before ``wait()``."""
        return self._start(
            "broadcast",
            self._planner.broadcast,
            (tensor, root, algorithm, preserve_input),
            timeout_s,
            recv_timeout_ms,
            tensor,
        )

    def barrier(
        self,
        *,
        timeout_s: float | None = None,
        recv_timeout_ms: float | None = None,
        algorithm: str = "auto",
    ) -> None:
        """Return when every rank has come here; ``timeout_s`` and the others: see the class."""
        self._run("barrier", self._planner.barrier, (algorithm,), timeout_s, recv_timeout_ms)

    def barrier_async(
        self,
        *,
        timeout_s: float | None = None,
        recv_timeout_ms: float | None = None,
        algorithm: str = "auto",
    ) -> Handle[None]:
        """As :meth:`barrier`, without waiting."""
        arguments = (algorithm,)
        return self._start(
            "barrier", self._planner.barrier, arguments, timeout_s, recv_timeout_ms, None
        )

    # ------------------------------------------------------------ the rest

    def status(
        self, scope: Literal["daemon", "group"] = "daemon", *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """What the daemon, or the whole group, is doing now; not a collective.

        Args:
            scope: whose state.
            timeout_s: default 5 s.

        Raises:
            DaemonLostError: no answer in time, or no daemon.
            CommunicatorClosedError: it is closed.
        """
        operation = self._status_request(scope, timeout_s)
        self._connection.post_status(operation, scope)
        self._connection.finish(operation)
        return dict(operation.reply)

    def close(self) -> None:
        """Wait for operations in flight, up to their deadlines, say goodbye, and disconnect.

        A second call does nothing. Tensors of ``empty`` keep their memory.
        """
        self._close("closed", "", wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close. After an exception nothing is waited for, and the peers are told of it."""
        how, detail = _process.how_left(exc)
        self._close(how, detail, wait=exc is None)

    def leave_at_exit(self, how: str, detail: str) -> None:
        """For the exit of the process: as :meth:`close`, or as after an exception."""
        self._close(how, detail, wait=how == "closed")

    def after_fork_in_child(self) -> None:
        """For :func:`os.fork`: what the child may do with this communicator is nothing."""
        self._connection.after_fork_in_child()
        self._arena.after_fork_in_child()

    def _close(self, how: str, detail: str, *, wait: bool) -> None:
        self._connection.close(how=how, detail=detail, wait=wait)
        self._arena.close()
        _process.closed(self)

    def _run(
        self,
        collective: str,
        plan: Callable[..., Operation],
        arguments: tuple[Any, ...],
        timeout_s: float | None,
        recv_timeout_ms: float | None,
    ) -> None:
        operation = self._begin(collective, plan, arguments, timeout_s, recv_timeout_ms)
        self._connection.finish(operation)

    def _start(
        self,
        collective: str,
        plan: Callable[..., Operation],
        arguments: tuple[Any, ...],
        timeout_s: float | None,
        recv_timeout_ms: float | None,
        output: T,
    ) -> Handle[T]:
        operation = self._begin(
            collective, plan, arguments, timeout_s, recv_timeout_ms, detached=True
        )
        return Handle(self._connection, operation, output)

    def _post(self, operation: Operation) -> None:
        self._connection.post(operation)

    def _end(self, unsent: UnsentError) -> RingdError:
        return self._connection.end(unsent)

    def _post_poison(self, packed: bytes, refusal: RingdError) -> None:
        self._connection.post_poison(packed, refusal)
