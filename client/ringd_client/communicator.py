"""The blocking communicator, and how to get one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar

from ringd.errors import RingdError
from ringd_client import _collectives as collectives
from ringd_client import _epochs as epochs
from ringd_client import _groups as groups
from ringd_client import _messages as messages
from ringd_client import _objects as objects
from ringd_client import _process
from ringd_client import _state as states
from ringd_client._arena import Arena, default_limit_bytes
from ringd_client._attach import Deadline, Membership, attach
from ringd_client._calls import Caller, Place, checked_default, checked_limit
from ringd_client._coalesce import Batch, misplaced
from ringd_client._connection import Connection
from ringd_client._core import ClientState
from ringd_client._environment import daemon_socket
from ringd_client._handle import Handle
from ringd_client._handover import EpochHeard
from ringd_client._messages import Message
from ringd_client._methods import blocking, played, started
from ringd_client._operation import Operation, UnsentError, cut_short
from ringd_client._process import Departure
from ringd_client._steps import Steps

T = TypeVar("T")
P = ParamSpec("P")


def connect(
    *,
    socket: str | None = None,
    timeout_s: float = 60.0,
    default_timeout_s: float | None = None,
    arena_limit_bytes: int | None = None,
) -> Communicator:
    """Attach to this rank's daemon and wait until every rank's trainer has done so.

    Args:
        socket: path of the daemon's socket; default: RINGD_SOCKET, which ``ringd run`` sets.
        timeout_s: for everything, from the first attempt to the last trainer's arrival.
        default_timeout_s: of the calls on the communicator that name no ``timeout_s``; default:
            the daemon's setting, which is 300 s unless set.
        arena_limit_bytes: cap of the shared memory; default: the daemon's setting, else 4 GiB,
            or a quarter of the machine's (or container's) memory when that is less.

    Returns:
        A communicator; close it, best by ``with``.

    Raises:
        RendezvousError: somebody is missing (it says who), or the daemon refused.
        DaemonLostError: there is no daemon, or it went away.
        ConfigError: RINGD_SOCKET is not set, or ``timeout_s`` is no good.
        InvalidArgumentError: another argument is no good.
    """
    return connect_to(
        socket,
        timeout_s=timeout_s,
        default_timeout_s=default_timeout_s,
        arena_limit_bytes=arena_limit_bytes,
    )


def connect_to(
    socket: str | None,
    *,
    timeout_s: float,
    default_timeout_s: float | None,
    arena_limit_bytes: int | None,
    has_ended: Callable[[], bool] | None = None,
) -> Communicator:
    """As :func:`connect`, for who can tell that the daemon's process has ended: then nobody is
    waited for that is to begin to listen."""
    deadline = Deadline.after(timeout_s)
    limit, default = checked_limit(arena_limit_bytes), checked_default(default_timeout_s)
    transport, membership = attach(socket or daemon_socket(), deadline, has_ended)
    state = ClientState(membership.seat, membership.max_in_flight, membership.epoch)
    connection = Connection(transport, state)
    arena = Arena(
        limit or membership.arena_limit_bytes or default_limit_bytes(),
        connection.announce,
        connection.retract,
        connection.memory,
        connection.advance,
        connection.state.unmapped,
        membership.seat,
    )
    return Communicator(connection, arena, membership, default_timeout_s=default)


class Communicator(Caller):
    """A rank's place in a group; the calling thread waits for its results.

    Any thread may use it. Which order calls have, what tensors may look like, and what holds
    after an error: docs/semantics.md. Calls take these keywords, as far as they have them:

    - ``timeout_s``: the call's one deadline, from its beginning, on all ranks (default:
      ``default_timeout_s`` of ``connect`` or ``new_group``, else the daemon's setting, which is
      300 s unless set).
    - ``recv_timeout_ms``: end it earlier when a peer whose bytes are waited for is
      silent for so long.
    - ``algorithm``: "auto", or what the daemon shall use; equal on all ranks.
    - ``preserve_input``: an arena tensor (``comm.empty``) keeps its contents if the call
      fails, at the price of a copy. Ordinary tensors always keep them, and so does every tensor
      whose op is ``premul_sum``.

    And all raise alike:

    - UnsupportedTypeError (a TypeError): no tensor, or a dtype ringd has not.
      UnsupportedReductionError (also a ValueError): a reduce op that the dtype has not.
    - InvalidTensorError, InvalidArgumentError (ValueErrors): see the text.
    - CollectiveTimeoutError, CollectiveMismatchError: the group stands. So it does when our own
      daemon has not answered in time, but lives; ``daemon_state`` says so then.
    - PeerLostError, MembershipChangedError: the epoch is over; go on by :meth:`reform`, or close
      and connect again. A group of ``new_group`` whose ranks all live goes on until then.
    - DaemonLostError: our own daemon is gone, and with it all groups; close, and connect again.
    - TooManyOperationsError, ArenaFullError, MemoryInUseError: nothing was posted; or, of a call of
      several operations, the rest of it is void on all ranks.
    - ResourceError: this process, or our daemon, has no descriptor or memory left. The call is void
      on all ranks: the others raise CollectiveMismatchError, and the next call is an ordinary one.
    - CommunicatorClosedError, GroupFreedError: it is closed, or belongs to the parent process.

    Each collective has a twin whose name ends in ``_async`` and that returns a :class:`Handle`;
    those of ``send`` and ``recv`` are ``isend`` and ``irecv``.
    """

    def __init__(
        self,
        connection: Connection,
        arena: Arena,
        membership: Membership,
        place: Place | None = None,
        default_timeout_s: float | None = None,
    ) -> None:
        """Use :func:`connect`, ``new_group`` or ``split``."""
        self._connection = connection
        super().__init__(connection.state, arena, membership, place, default_timeout_s)
        if place is None:
            _process.opened(self)

    # ------------------------------------------------------------ collectives

    all_reduce = blocking(collectives.all_reduce, Caller._all_reduce_again)
    reduce = blocking(collectives.reduce)
    broadcast = blocking(collectives.broadcast)
    all_gather = blocking(collectives.all_gather)
    gather = blocking(collectives.gather)
    scatter = blocking(collectives.scatter)
    reduce_scatter = blocking(collectives.reduce_scatter)
    all_to_all = blocking(collectives.all_to_all)
    barrier = blocking(collectives.barrier)
    agree = blocking(collectives.agree)

    all_reduce_async = started(collectives.all_reduce)
    reduce_async = started(collectives.reduce)
    broadcast_async = started(collectives.broadcast)
    all_gather_async = started(collectives.all_gather)
    gather_async = started(collectives.gather)
    scatter_async = started(collectives.scatter)
    reduce_scatter_async = started(collectives.reduce_scatter)
    all_to_all_async = started(collectives.all_to_all)
    barrier_async = started(collectives.barrier)
    agree_async = started(collectives.agree)

    all_gather_object = played(objects.all_gather_object)
    broadcast_object = played(objects.broadcast_object)
    gather_object = played(objects.gather_object)
    scatter_object = played(objects.scatter_object)
    sync_state = played(states.sync_state)

    @contextlib.contextmanager
    def coalesce(self) -> Iterator[None]:
        """Send the calls of a block together: ``with comm.coalesce(): ...``.

        The block takes all_reduce, reduce, broadcast, all_gather and reduce_scatter, by their
        blocking names. A call is checked at once and its tensors are kept; inputs are read at
        the end of the block, and results are in the tensors after it. Calls of the same
        collective, dtype, op, root, algorithm and ``deterministic`` become one operation (of
        at most 1,024 calls); uneven parts travel alone. The operations have the order in which
        each sort of call came first, so all ranks must make the same calls in the same order.
        The shortest ``timeout_s`` in the block is that of all. Other threads' calls are
        ordinary ones.

        An exception in the block: nothing is posted. If it was a call that was refused, peers
        raise too.

        Raises:
            InvalidArgumentError: another call in the block, or a block in a block.
            RingdError: how the first operation that failed did; the others are over as well.

        Cost: as one call of the joint size for each operation. Data is always copied, in and
        out, and that of all_gather and reduce_scatter once more.
        """
        batch = Batch.prepared(self, threading.get_ident)
        try:
            try:
                self._batch = batch
                yield
            except BaseException:
                batch.abandon()
                raise
            try:
                self._finish_all(batch.operations())
            finally:
                batch.conclude()
        finally:
            if self._batch is batch:  # a signal handler raised before it was abandoned
                self._batch = None

    # ------------------------------------------------------------ messages

    send = blocking(messages.send)
    recv = blocking(messages.recv)
    isend = started(messages.send)
    irecv = started(messages.recv)

    def batch_p2p(
        self,
        ops: Sequence[Message],
        *,
        timeout_s: float | None = None,
        recv_timeout_ms: float | None = None,
    ) -> list[Handle[Any]]:
        """Begin several messages, all or none.

        Args:
            ops: each ``ringd_client.Send(tensor, dest, tag)`` or
                ``ringd_client.Recv(tensor, source, tag)``.
            timeout_s, recv_timeout_ms: for each of them.

        Returns:
            Their handles, in the same order: as from :meth:`isend` and :meth:`irecv`.

        Raises:
            InvalidArgumentError: ``ops`` is no sequence of these.
            RingdError: one of them was refused; none was posted.
        """
        if self._collecting():
            raise misplaced("batch_p2p")
        operations = messages.prepare_all(self, ops, timeout_s, recv_timeout_ms)
        for operation in operations:
            operation.detached = True
        posted, failure = self._post_all(operations)
        if failure is not None:
            raise failure
        return [Handle(self._connection, operation) for operation in posted]

    # ------------------------------------------------------------ groups

    def new_group(
        self,
        ranks: Sequence[int],
        *,
        timeout_s: float | None = None,
        default_timeout_s: float | None = None,
    ) -> Communicator | None:
        """A communicator for some ranks of this one; all ranks of this one make the call.

        It shares the connection and the shared memory, and has its own order of calls. The
        group's ranks are numbered in the order of ``ranks``, sorted.

        Args:
            ranks: of this communicator, in any order, the same on all ranks.
            timeout_s: of this call; see the class.
            default_timeout_s: of the calls on the new communicator that name no ``timeout_s``;
                default: as on this one.

        Returns:
            The communicator, to be closed when it is not needed any more; None on ranks that
            are not members, which do not wait.

        Raises:
            InvalidArgumentError: not different ranks of this communicator.
            CollectiveMismatchError: members do not agree who they are.

        Cost: an all_reduce of 8 bytes among the members.
        """
        steps = groups.new_group(self, ranks, timeout_s, default_timeout_s)
        return self._entered(self._play("new_group", steps), default_timeout_s)

    def split(
        self,
        color: int | None,
        key: int = 0,
        *,
        timeout_s: float | None = None,
        default_timeout_s: float | None = None,
    ) -> Communicator | None:
        """Communicators for all ranks that name the same color; all ranks make the call.

        Args:
            color: any number of 64 bits; None: this rank joins none.
            key: the order within a color; equal keys are in the order of ranks.
            timeout_s: for all of it; see the class.
            default_timeout_s: as for :meth:`new_group`.

        Returns:
            The communicator of this rank's color; None for color None.

        Raises: as :meth:`new_group`.

        Cost: an all_gather of 24 bytes per rank, and what :meth:`new_group` costs.
        """
        steps = groups.split(self, color, key, timeout_s, default_timeout_s)
        return self._entered(self._play("split", steps), default_timeout_s)

    def _entered(self, place: Place | None, default_timeout_s: float | None) -> Communicator | None:
        if place is None:
            return None
        default = self._default_timeout_s if default_timeout_s is None else default_timeout_s
        return type(self)(self._connection, self._arena, self._membership, place, default)

    # ------------------------------------------------------------ epochs

    reform = played(epochs.reform)
    newcomers = played(epochs.newcomers)

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
        """Wait for operations in flight, up to their deadlines; then leave the group.

        In a signal handler that has interrupted a call, which can't go on meanwhile, nothing is
        waited for: the call ends with CommunicatorClosedError.

        That of the world says goodbye and disconnects, which ends all others. A second call
        does nothing. Tensors of ``empty`` keep their memory.
        """
        self._close(_process.IN_ORDER, wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close. After an exception nothing is waited for, and the peers are told of it."""
        self._close(_process.departure(exc), wait=exc is None)

    def _leave_at_exit(self, leaving: Departure) -> None:
        """For the exit of the process: as :meth:`close`, or as after an exception."""
        self._close(leaving, wait=leaving.raised is None)

    def _after_fork_in_child(self) -> None:
        """For :func:`os.fork`: what the child may do with this communicator is nothing."""
        self._connection.after_fork_in_child()
        self._arena.after_fork_in_child()

    def _close(self, leaving: Departure, *, wait: bool) -> None:
        if self.group:
            if self._state.close_group(self.group, self.epoch):
                self._connection.free_group(self.group, wait=wait)
            return
        is_closed = self._connection.close(leaving, wait=wait)
        self._arena.close()
        if is_closed:
            _process.closed(self)

    # ------------------------------------------------------------ posting and waiting

    def _play(self, name: str, steps: Steps[T]) -> T:
        """Make the operations of a call one after another."""
        if self._collecting():
            raise misplaced(name)
        try:
            while True:
                operation = next(steps)
                self._connection.perform(operation)
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

    def _finish_all(self, operations: list[Operation[Any]]) -> None:
        """Post, and wait until all are over.

        Raises:
            RingdError: the first failure.
        """
        try:
            posted, failure = self._post_all(operations)
            for operation in posted:
                try:
                    self._connection.finish(operation)
                except RingdError as exc:
                    failure = failure or exc
        except BaseException:
            for operation in operations:
                operation.give_up(RingdError("its caller was interrupted"))
            raise
        if failure is not None:
            raise failure

    def _post(self, operation: Operation[Any]) -> None:
        self._connection.post(operation)

    def _end(self, unsent: UnsentError) -> RingdError:
        return self._connection.end(unsent)

    def _post_poison(self, packed: bytes, refusal: RingdError) -> None:
        self._connection.post_poison(packed, refusal)
