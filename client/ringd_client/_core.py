"""The client's side of the conversation with its daemon: no I/O, no clock, no threads of its own.

Requests become datagrams, datagrams become answered operations. Who sends, who waits and who
copies results out is the business of :mod:`ringd_client._connection` and
:mod:`ringd_client.aio`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, Protocol, TypeVar

from ringd.errors import (
    BY_CODE,
    CommunicatorClosedError,
    DaemonLostError,
    RingdError,
    TooManyOperationsError,
    from_wire,
)
from ringd.wire import ipc

T = TypeVar("T")

MAX_IN_FLIGHT: Final = 1024
MAX_REFUSAL_CHARS: Final = 2000
GRACE_S: Final = 0.25
"""How long after a deadline the client goes on trusting its daemon to end the operation."""


class UnsentError(Exception):
    """A message could not be sent; the text says why, the cause is the socket's error if any.

    It never leaves the package: whoever catches it outside of all locks ends the conversation.
    """


class Settlement(Protocol):
    """What is left to do when the daemon has released an operation's region."""

    @property
    def result_bytes(self) -> int:
        """How much :meth:`settle` may have to write."""

    def settle(self, write: bool) -> None:
        """Write the result to the caller's tensor if ``write``; give the memory back."""


class Operation(Generic[T]):
    """One request to the daemon, from its submission until its memory is free again.

    Three things end one after another, and the first two may come in either order:

    - *answered*: the daemon has released the region, and said how the operation ended;
    - *finished*: the caller may see the outcome (``error`` or a written result);
    - *released*: the region's memory is the arena's again.

    An operation whose deadline passed without an answer is finished but not released.

    Attributes:
        spec: what was asked, for messages.
        packed: the same as the daemon wants it.
        segment, offset: where the working region is.
        local: what the daemon is told beside the spec, and other ranks need not say alike.
        output: what a wait returns: the caller's tensor; of a receive, the sender's rank.
        began, expires: when the call began, and when the client itself gives up (monotonic).
        timeout_s, recv_timeout_s: the call's bounds; the second is 0 when it is off.
        reply: the answer to a status request.
        error: how it failed, once finished; None: it did not.
        detached: nobody is bound to wait for it; a progress thread may have to end it.
    """

    __slots__ = (
        "answer",
        "answered",
        "began",
        "detached",
        "error",
        "expires",
        "finished",
        "local",
        "lock",
        "offset",
        "output",
        "packed",
        "recv_timeout_s",
        "released",
        "reply",
        "request",
        "segment",
        "settlement",
        "spec",
        "timeout_s",
        "watcher",
    )

    def __init__(
        self,
        spec: object,
        packed: bytes,
        segment: int = 0,
        offset: int = 0,
        settlement: Settlement | None = None,
    ) -> None:
        self.spec = spec
        self.packed = packed
        self.segment = segment
        self.offset = offset
        self.settlement = settlement
        self.local: Any = None
        self.output: T
        self.request = 0
        self.began = 0.0
        self.timeout_s = 0.0
        self.recv_timeout_s = 0.0
        self.expires = 0.0
        self.answer: RingdError | None = None
        self.reply: Any = None
        self.error: RingdError | None = None
        self.answered = False
        self.finished = False
        self.released = False
        self.detached = False
        self.lock = threading.Lock()
        self.watcher: Callable[[], object] | None = None

    def begin(self, began: float, timeout_s: float, recv_timeout_s: float = 0.0) -> None:
        """Fix the bounds of the call, once."""
        self.began = began
        self.timeout_s = timeout_s
        self.recv_timeout_s = recv_timeout_s
        self.expires = began + timeout_s + GRACE_S

    @property
    def group(self) -> int:
        """The number of the group it is for; 0: the world, or none."""
        return getattr(self.spec, "group", 0)

    @property
    def over(self) -> bool:
        """There is nothing to wait for any more; :meth:`settle` comes next."""
        return self.answered or self.finished

    def when_finished(self, watcher: Callable[[], object]) -> None:
        """Have ``watcher`` called once it is finished, or now; by any thread, so it is to be short.

        One watcher at most.
        """
        with self.lock:
            if not self.finished:
                self.watcher = watcher
                return
        watcher()

    def settle(self) -> None:
        """After the answer: write the result, free the memory, show the outcome. Once."""
        with self.lock:
            if self.released:
                return
            self.released = True
            error = self.answer
            if self.settlement is not None:
                try:
                    self.settlement.settle(error is None and not self.finished)
                except RingdError as exc:
                    error = exc
                except Exception as exc:
                    error = RingdError(f"{self.spec}: the result could not be written: {exc!r}")
                except BaseException:
                    self._finish(
                        RingdError(f"{self.spec}: interrupted while the result was written")
                    )
                    raise
            self._finish(error)

    def withdraw(self, error: RingdError) -> None:
        """End an operation that was not posted: the daemon never had its region."""
        self.answer = error
        self.answered = True
        self.settle()

    def give_up(self, error: RingdError) -> bool:
        """Finish without an answer: the result will not be written. False: it was too late."""
        with self.lock:
            if self.finished:
                return False
            self._finish(error)
        if self.answered:
            self.settle()
        return True

    def _finish(self, error: RingdError | None) -> None:
        if not self.finished:
            self.error = error
            self.finished = True
            if self.watcher is not None:
                self.watcher()


def withdraw(operations: Iterable[Operation[Any]], error: RingdError) -> None:
    """End operations that were not posted."""
    for operation in operations:
        operation.withdraw(error)


class ClientState:
    """Requests that wait for their answers, and whether new ones may be made.

    ``submit``, ``poison``, ``ask_status`` and the sending of their datagrams belong under one
    lock, so that requests travel in the order of their numbers. ``receive`` is for one thread
    at a time. Nothing here blocks.

    An operation's error ends that operation alone, whatever it says of the epoch: the daemon
    answers later calls of a group that is lost, and other groups may well go on.

    Attributes:
        pending: what the daemon has not answered yet, by request.
        ended: why nothing more can be asked, if so.
        groups: the numbers of the groups beside the world that stand open.
        highest_group: the highest number that a group of ours has had.
    """

    def __init__(self, rank: int, max_in_flight: int = MAX_IN_FLIGHT) -> None:
        self.rank = rank
        self.max_in_flight = max_in_flight
        self.pending: dict[int, Operation[Any]] = {}
        self.groups: set[int] = set()
        self.highest_group = 0
        self.ended: RingdError | None = None
        self._last_request = 0
        self._detached_in = 0
        self._detached_out = 0

    @property
    def attended(self) -> bool:
        """Every pending operation has a caller that waits for it."""
        return self._detached_in == self._detached_out

    def admit(self, group: int = 0, count: int = 1) -> None:
        """Whether ``count`` more operations may be posted on a group.

        Raises:
            RingdError: what ended the conversation.
            CommunicatorClosedError: the group's communicator is closed.
            TooManyOperationsError: there would be more than ``max_in_flight`` on their way.
        """
        if self.ended is not None:
            raise self.ended.copy()
        if group and group not in self.groups:
            raise CommunicatorClosedError(
                f"rank {self.rank}: the communicator of group {group} is closed", group=group
            )
        if len(self.pending) + count > self.max_in_flight:
            raise TooManyOperationsError(
                f"{self.max_in_flight:,} operations are in flight; wait for some of their handles, "
                "then make this call again (it was not posted)",
                limit=self.max_in_flight,
            )

    def open_group(self, group: int) -> None:
        """A group was agreed on, and this rank is in it."""
        self.groups.add(group)
        self.highest_group = max(self.highest_group, group)

    def close_group(self, group: int) -> bool:
        """No call on it may follow; whether it was open."""
        was_open = group in self.groups
        self.groups.discard(group)
        return was_open

    def submit(self, operation: Operation[Any], remaining_s: float) -> bytes:
        """The datagram that posts an operation.

        Raises:
            RingdError: as :meth:`admit`; nothing was posted.
        """
        return ipc.pack(
            ipc.SUBMIT,
            self._enter(operation),
            operation.packed,
            remaining_s,
            operation.recv_timeout_s,
            operation.segment,
            operation.offset,
            operation.local,
        )

    def poison(self, packed: bytes, error: RingdError) -> bytes:
        """The datagram that takes the place of a call which was refused here; it has no answer.

        Raises:
            RingdError: as :meth:`admit`.
        """
        self.admit()
        self._last_request += 1
        # Only what the peers are told: the fields may hold whatever the caller gave us.
        message = error.message[:MAX_REFUSAL_CHARS].encode(errors="replace").decode()
        told = {"code": error.code, "message": message, "fields": {}}
        return ipc.pack(ipc.POISON, self._last_request, packed, told)

    def ask_status(self, operation: Operation[Any], scope: str) -> bytes:
        """The datagram that asks for the daemon's or the group's state.

        Raises:
            RingdError: as :meth:`admit`.
        """
        return ipc.pack(ipc.STATUS, self._enter(operation), scope)

    def ask_to_open(self, operation: Operation[Any], group: int, ranks: tuple[int, ...]) -> bytes:
        """The datagram that opens a group whose members have agreed on its number elsewhere.

        Raises:
            RingdError: as :meth:`admit`.
        """
        return ipc.pack(ipc.OPEN_GROUP, self._enter(operation), group, ranks)

    def receive(self, datagram: bytes | memoryview) -> tuple[Operation[Any], ...]:
        """Take in one datagram; the operations that it answered.

        An empty datagram is the end of the connection.
        """
        if not len(datagram):
            return self.fail(self.lost("its end of the connection is closed"))
        try:
            message = ipc.unpack(datagram)
            kind = message[0]
            if kind == ipc.DONE:
                return self._answered(message[1], message[2], message[3])
            if kind == ipc.STATUS_REPLY:
                return self._replied(message[1], message[2])
        except (ValueError, IndexError, TypeError) as exc:
            return self.fail(self.lost(f"it sent what is no message of this protocol ({exc})"))
        if kind == ipc.REFUSED:
            return self.fail(from_wire(message[1] if len(message) > 1 else None))
        if kind == ipc.BYE:
            return self.fail(self.lost("it said that it ends"))
        return ()

    def fail(self, error: RingdError) -> tuple[Operation[Any], ...]:
        """The conversation is over: every pending operation is answered with ``error``."""
        if self.ended is None:
            self.ended = error
        elif isinstance(self.ended, CommunicatorClosedError):
            error = self.ended  # the rest is what a goodbye looks like
        operations = tuple(self.pending.copy().values())
        for operation in operations:
            self._take_out(operation)
            operation.answer = error.copy()
            operation.answered = True
        return operations

    def why_ended(self) -> RingdError:
        """The error for calls that come too late."""
        return self.ended.copy() if self.ended is not None else self.closed()

    def lost(self, why: str) -> DaemonLostError:
        """The error of a daemon that is gone."""
        return DaemonLostError(
            f"rank {self.rank}: lost the daemon: {why}. Its log has more. "
            "Close this communicator, and connect again when the daemon is back.",
            rank=self.rank,
        )

    def silent(self, operation: Operation[Any], now: float) -> DaemonLostError:
        """The error of an operation that the daemon should have ended long ago."""
        elapsed_s = now - operation.began
        return DaemonLostError(
            f"rank {self.rank}: {operation.spec}: no answer from the daemon after "
            f"{elapsed_s:.3f} s (timeout_s {operation.timeout_s:g}, and {GRACE_S:g} s for it to "
            "say so). "
            "It is stopped, or far too busy: look at its log and at its process.",
            rank=self.rank,
            op=str(operation.spec),
            elapsed_s=round(elapsed_s, 3),
            timeout_s=operation.timeout_s,
        )

    def closed(self) -> CommunicatorClosedError:
        """The error of a communicator that was closed."""
        return CommunicatorClosedError(f"rank {self.rank}: the communicator is closed")

    def expired(self, now: float) -> list[Operation[Any]]:
        """Unfinished operations that the client must give up by its own clock."""
        pending = self.pending.copy().values()
        return [op for op in pending if op.expires <= now and not op.over]

    def after_fork_in_child(self) -> None:
        """A child has no daemon: nothing of its parent's operations will ever be answered."""
        self.ended = CommunicatorClosedError(
            f"rank {self.rank}: the communicator belongs to the parent of this process; "
            "a forked child can't use it"
        )
        for operation in self.pending.values():
            operation.lock = threading.Lock()
            operation.give_up(self.ended.copy())

    def _enter(self, operation: Operation[Any]) -> int:
        self.admit()
        request = self._last_request = self._last_request + 1
        operation.request = request
        self.pending[request] = operation
        if operation.detached:
            self._detached_in += 1
        if self.ended is not None:  # by another thread, which may not have seen the entry
            self._take_out(operation)
            raise self.ended.copy()
        return request

    def _take_out(self, operation: Operation[Any]) -> bool:
        found = self.pending.pop(operation.request, None) is not None
        if found and operation.detached:
            self._detached_out += 1
        return found

    def _answered(
        self, request: int, error: Any, result: int | None = None
    ) -> tuple[Operation[Any], ...]:
        operation = self.pending.get(request)
        if operation is None:
            return ()
        if error is not None:
            operation.answer = from_wire(error)
        elif result is not None:
            operation.output = result
        self._take_out(operation)
        operation.answered = True
        return (operation,)

    def _replied(self, request: int, status: Any) -> tuple[Operation[Any], ...]:
        failed = isinstance(status, dict) and status.get("code") in BY_CODE and "fields" in status
        if operation := self.pending.get(request):
            operation.reply = status
        return self._answered(request, status if failed else None)
