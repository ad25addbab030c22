"""The client's side of the conversation with its daemon: no I/O, no clock, no threads of its own.

Requests become datagrams, datagrams become answered operations. Who sends, who waits and who
copies results out is the business of :mod:`ringd_client._connection` and
:mod:`ringd_client.aio`.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Final

import msgpack

from ringd.errors import (
    BY_CODE,
    CollectiveTimeoutError,
    CommunicatorClosedError,
    DaemonLostError,
    MembershipChangedError,
    ResourceError,
    RingdError,
    TooManyOperationsError,
    from_wire,
)
from ringd.vocabulary import OpSpec
from ringd.wire import ipc
from ringd.wire.bounds import TIMEOUTS, words
from ringd.wire.ipc import DONE, SUBMIT
from ringd_client._locks import OwnedLock
from ringd_client._operation import GRACE_S, NOT_POSTED, Operation, Question
from ringd_client._peer import STARVED, STOPPED, Peer

MAX_IN_FLIGHT: Final = 1024
MAX_REFUSAL_CHARS: Final = 2000
_LATE: Final = {
    STOPPED: "It is stopped, by a signal or a debugger: send it SIGCONT",
    STARVED: "It is alive, so this machine is overloaded, or the time is too short: raise {}",
}
_UNSEEN: Final = (
    "Its connection is open, but its process can't be seen from here: it is stopped, or starved. "
    "Look at it, or raise {}"
)


class Patience(threading.local):
    """Until when (monotonic) a thread's call may take; what is sent for it waits no longer."""

    until = 0.0


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
        lost_thread: what the daemon sent could not be taken in, though it may not know that: it is
            to be hung up on, so that nobody waits for us.
        epoch: the one that the program takes part in, or took part in last, as it knows.
        open_epoch: the same while calls may be made; None: it is over, the program does not know
            of the next.
        next_epoch: the one to go on in when the program has been told.
        heard: the request of the last agree of the world whose answer the program has got.
        last_answered: by the datagram that :meth:`receive` took in last; whoever has told all whom
            it concerns sets it to None, as the datagram will not come again.
        groups: the numbers of the epoch's groups beside the world that stand open.
        highest_group: the highest number that one of them has had.
        patience: when the thread's current call gives up.
    """

    def __init__(self, rank: int, max_in_flight: int = MAX_IN_FLIGHT, epoch: int = 0) -> None:
        self.rank = rank
        self.max_in_flight = max_in_flight
        self.epoch = epoch
        self.open_epoch: int | None = epoch
        self.next_epoch = epoch
        self.heard = 0
        self.pending: dict[int, Operation[Any]] = {}
        self.unmapped: deque[int] = deque()
        self.groups: set[int] = set()
        self.highest_group = 0
        self.ended: RingdError | None = None
        self.lost_thread = False
        self.patience = Patience()
        self._last_request = 0
        self._pack = msgpack.Packer(autoreset=True).pack
        self.last_answered: Operation[Any] | None = None
        self._reform: Question | None = None
        self._detached_in = 0
        self._detached_out = 0

    @property
    def attended(self) -> bool:
        """Every pending operation has a caller that waits for it."""
        return self._detached_in == self._detached_out

    @property
    def reforms(self) -> bool:
        """Somebody waits for the next epoch."""
        return self._reform is not None and not self._reform.finished

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
                f"rank {self.rank}: the communicator of group {group} is closed; to go on, make "
                "a new one on all its members",
                group=group,
            )
        if len(self.pending) + count > self.max_in_flight:
            raise TooManyOperationsError(
                f"{self.max_in_flight:,} operations are in flight; wait for some of their handles, "
                f"then make this call again {NOT_POSTED}",
                limit=self.max_in_flight,
            )

    def admit_call(self, group: int, epoch: int, count: int = 1) -> None:
        """Whether ``count`` more calls may be made on a group of an epoch.

        Raises:
            RingdError: as :meth:`admit`.
            MembershipChangedError: the epoch is over.
        """
        if self.ended is None:
            if epoch != self.open_epoch:
                raise self.over(group, epoch)
            if not group and len(self.pending) + count <= self.max_in_flight:
                return
        self.admit(group, count)

    def admits(self, group: int, epoch: int) -> bool:
        """Whether a call may be made; :meth:`admit_call` says why not."""
        return (
            epoch == self.open_epoch
            and self.ended is None
            and (not group or group in self.groups)
            and len(self.pending) < self.max_in_flight
        )

    def stands(self, epoch: int) -> bool:
        """Whether calls of the epoch may be made."""
        return epoch == self.open_epoch

    def over(self, group: int, epoch: int) -> RingdError:
        """The error of a call of an epoch that is over here."""
        if group:
            return CommunicatorClosedError(
                f"rank {self.rank}: the communicator of group {group} ended with epoch {epoch}, "
                "which reform() has ended; make the group anew in the next one",
                group=group,
                epoch=epoch,
            )
        if (begun := self._begun()) is not None:
            return MembershipChangedError(
                f"rank {self.rank}: this call was not made: epoch {begun} has begun, but no "
                f"reform() has returned since. Call reform() to learn of epoch {begun}",
                epoch=self.epoch,
                rank=self.rank,
            )
        way_out = (
            "call reform(), and make calls when it has returned"
            if self.open_epoch is None
            else f"make it again in epoch {self.epoch}, if it is still wanted"
        )
        return MembershipChangedError(
            f"rank {self.rank}: this call belongs to epoch {epoch}, which reform() has ended; "
            + way_out,
            epoch=epoch,
            rank=self.rank,
        )

    def _begun(self) -> int | None:
        """The epoch that has begun without the program's knowing, as far as we have read."""
        asked = self._reform
        if self.open_epoch is not None or asked is None or not asked.answered:
            return None
        told = asked.output if asked.answer is None else None
        epoch = told.get("epoch") if isinstance(told, dict) else None
        return epoch if isinstance(epoch, int) and epoch > self.epoch else None

    def prepare_epoch(self, epoch: int, max_in_flight: int) -> None:
        """The next epoch: the groups of the last one are gone. Calls wait for EpochHeard."""
        self.groups.clear()
        self.highest_group = 0
        self.max_in_flight = max_in_flight
        self.next_epoch = epoch

    def open_group(self, group: int, epoch: int) -> None:
        """A group was agreed on, and this rank is in it.

        Raises:
            MembershipChangedError: but the epoch is over by now.
        """
        if not self.stands(epoch):
            raise self.over(0, epoch)
        self.groups.add(group)
        self.highest_group = max(self.highest_group, group)

    def close_group(self, group: int, epoch: int) -> bool:
        """No call on it may follow; whether it was open. The next epoch uses its number anew."""
        was_open = self.stands(epoch) and group in self.groups
        if was_open:
            self.groups.discard(group)
        return was_open

    def submit(self, operation: Operation[Any]) -> bytes:
        """The datagram that posts an operation.

        Raises:
            RingdError: as :meth:`admit_call`; nothing was posted.
        """
        if isinstance(operation, Question):
            return self._ask(operation)
        if operation.epoch != self.open_epoch and self.ended is None:
            raise self.over(operation.group, operation.epoch)
        if self.ended is not None or len(self.pending) >= self.max_in_flight:
            self.admit()
        message: bytes = self._pack(
            (
                SUBMIT,
                self._register(operation),
                operation.packed,
                operation.began + operation.bound.timeout_s,
                operation.recv_timeout_s,
                operation.segment,
                operation.offset,
                operation.local,
                operation.bound,
            )
        )
        operation.sent = True
        return message

    def success_of(self, operation: Operation[Any]) -> bytes:
        """The datagram that says of a posted operation that it went well, and nothing else."""
        # The packer of submit(): it is warm, and no other thread can come between within one call.
        message: bytes = self._pack((DONE, operation.request, None, None))
        return message

    def poison(self, packed: bytes, error: RingdError) -> bytes:
        """The datagram that takes the place of a call which was refused here; it has no answer, and
        so is not in flight.

        Raises:
            RingdError: as :meth:`admit_call`.
        """
        self.admit_call(0, self.epoch, count=0)
        self._last_request += 1
        # Only what the peers are told: the fields may hold whatever the caller gave us.
        message = error.message[:MAX_REFUSAL_CHARS].encode(errors="replace").decode()
        call = error.fields.get("call")
        told = {"code": error.code, "message": message, "fields": {"call": call} if call else {}}
        return ipc.pack(ipc.POISON, self._last_request, packed, told)

    def ask_status(self, operation: Operation[Any], scope: str) -> bytes:
        """The datagram that asks for the daemon's or the group's state.

        Raises:
            RingdError: as :meth:`admit`.
        """
        self.admit()
        message = ipc.pack(ipc.STATUS, self._register(operation), scope)
        operation.sent = True
        return message

    def receive(
        self, datagram: bytes | memoryview, *, again: bool = False
    ) -> tuple[Operation[Any], ...]:
        """Take in one datagram; the operations that it answered.

        An empty datagram is the end of the connection.

        Args:
            again: it is the last one, which may have been taken in or not, and anything may
                follow it.
        """
        if not len(datagram):
            return self.fail(self.lost("its end of the connection is closed"))
        try:
            message = ipc.unpack(datagram, followed=again)
            kind = message[0]
            if kind == DONE:
                return self._answered(message[1], message[2], message[3])
            if kind == ipc.STATUS_REPLY:
                return self._replied(message[1], message[2])
        except (ValueError, IndexError, TypeError, MemoryError) as exc:
            self.lost_thread = True
            if isinstance(exc, MemoryError):
                return self.fail(self._choked())
            return self.fail(self.lost(f"it sent what is no message of this protocol ({exc})"))
        if kind == ipc.REFUSED:
            return self.fail(from_wire(message[1] if len(message) > 1 else None))
        if kind == ipc.BYE:
            return self.fail(self.lost("it said that it ends"))
        return ()

    def forget(self, operation: Operation[Any]) -> None:
        """It was not sent after all; nobody will answer it."""
        self._take_out(operation)
        operation.request = 0

    def fail(self, error: RingdError) -> tuple[Operation[Any], ...]:
        """The conversation is over: every pending operation is answered with ``error``."""
        if self.ended is None:
            self.ended = error
        elif isinstance(self.ended, CommunicatorClosedError):
            error = self.ended  # the rest is what a goodbye looks like
        operations = tuple(self.pending.copy().values())
        for operation in operations:
            operation.answer = error.copy()
            operation.answered = True
            self._take_out(operation)
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

    def _choked(self) -> DaemonLostError:
        return DaemonLostError(
            f"rank {self.rank}: hung up on the daemon: this program has no memory left to take its "
            "answer in. Close this communicator, and connect again when there is more.",
            rank=self.rank,
        )

    def parting_words(self) -> bytes:
        """The last datagram to a daemon whose thread was lost: it is to tell the others why."""
        why = str(self.ended) if self.ended is not None else ""
        return ipc.pack(ipc.GOODBYE, {"how": "raised", "detail": why})

    def silent(self, operation: Operation[Any], now: float, daemon: Peer) -> RingdError:
        """The error of an operation that the daemon should have ended long ago.

        A call keeps its place in the order: the daemon counts it when it reads it. So the group
        stands, and what it answers then is for nobody.

        Args:
            daemon: what is seen of it.
        """
        elapsed_s = now - operation.began
        if daemon.gone:
            return self.lost("its end of the connection is closed")
        if isinstance(operation.spec, OpSpec):
            return self._late(operation, operation.spec, elapsed_s, daemon)
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

    def _late(
        self, operation: Operation[Any], spec: OpSpec, elapsed_s: float, daemon: Peer
    ) -> CollectiveTimeoutError:
        setting = TIMEOUTS[operation.bound.source]
        process = f"process {daemon.pid}" if daemon.pid else "process unknown"
        advice = _LATE.get(daemon.state, _UNSEEN).format(words(setting))
        return CollectiveTimeoutError(
            f"rank {self.rank}: {spec}: this rank's own daemon ({process}) did not answer within "
            f"{elapsed_s:.3f} s ({words(setting)}: {operation.timeout_s:g} s, and {GRACE_S:g} s "
            f"for it to say so). {advice}. Then call again, on all ranks",
            op=spec.collective,
            group=spec.group,
            epoch=operation.epoch,
            rank=self.rank,
            setting=setting,
            elapsed_s=round(elapsed_s, 3),
            timeout_s=operation.timeout_s,
            partial=True,
            daemon_pid=daemon.pid,
            daemon_state=daemon.state,
        )

    def closed(self) -> CommunicatorClosedError:
        """The error of a communicator that was closed."""
        return CommunicatorClosedError(
            f"rank {self.rank}: the communicator is closed; to go on, connect() again"
        )

    def expired(self, now: float) -> list[Operation[Any]]:
        """Unfinished operations that the client must give up by its own clock."""
        pending = self.pending.copy().values()
        return [op for op in pending if op.expires <= now and not op.over]

    def after_fork_in_child(self) -> None:
        """A child has no daemon: nothing of its parent's operations will ever be answered."""
        self.ended = CommunicatorClosedError(
            f"rank {self.rank}: the communicator belongs to the parent of this process; "
            "a forked child can't use it. Fork first, and connect() in the process that calls"
        )
        for operation in self.pending.values():
            operation.lock = OwnedLock()
            operation.give_up(self.ended.copy())

    def _ask(self, question: Question) -> bytes:
        if self.ended is not None:
            raise self.ended.copy()
        message = ipc.pack(question.kind, self._register(question), *question.body)
        question.sent = True
        if question.ends_epoch:
            self.open_epoch = None
            self._reform = question
        return message

    def _register(self, operation: Operation[Any]) -> int:
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

    def _answered(self, request: int, error: Any, result: Any = None) -> tuple[Operation[Any], ...]:
        operation = self.pending.get(request)
        if operation is None:
            last = self.last_answered
            return (last,) if last is not None and last.request == request else ()
        if error is not None:
            operation.answer = from_wire(error)
            if isinstance(operation.answer, ResourceError) and "segment" in operation.answer.fields:
                self.unmapped.append(operation.segment)
        elif result is not None:
            operation.output = result
        self.last_answered = operation
        operation.answered = True
        if self.pending.pop(request, None) is not None and operation.detached:
            self._detached_out += 1
        return (operation,)

    def _replied(self, request: int, status: Any) -> tuple[Operation[Any], ...]:
        failed = isinstance(status, dict) and status.get("code") in BY_CODE and "fields" in status
        if operation := self.pending.get(request):
            operation.reply = status
        return self._answered(request, status if failed else None)
