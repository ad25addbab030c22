"""The blocking face of the conversation: whoever waits reads the socket itself.

A signal handler may interrupt any of this, and make calls, or raise. What it raises leaves all
as it was, or as it would have become. A call that it makes is refused where it would need what the
interrupted call holds.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Final

from ringd.errors import ReentrantCallError, RingdError
from ringd.wire import ipc
from ringd_client._core import ClientState
from ringd_client._locks import OwnedLock, is_mine, reentrant
from ringd_client._operation import GRACE_S, Operation, UnsentError, cut_short
from ringd_client._process import Departure
from ringd_client._progress import Progress
from ringd_client._reading import Reading
from ringd_client._sending import Sender
from ringd_client._transport import Transport

GONE_S: Final = 1.0
"""How long a thread that reads may take to notice that the connection is closed."""
_FOR_GOOD: Final = -1


class Connection(Reading):
    """Posts operations and waits for them; any thread may call, at any time.

    Attributes:
        memory: the lock of the arena.
    """

    def __init__(self, transport: Transport, state: ClientState) -> None:
        super().__init__(transport, state)
        self.memory = OwnedLock()
        self._sender = Sender(transport, state.patience, self._turn)
        self._closed = self._left = self._gone = False

    # ------------------------------------------------------------ sending

    def post(self, operation: Operation[Any]) -> None:
        """Give an operation its place in the order.

        Raises:
            RingdError: it was not posted; its memory is free again.
            ReentrantCallError: likewise, in a signal handler.
        """
        try:
            if is_mine(self.memory):
                raise reentrant()
            self._sender.transmit(self.state.submit, (operation,), operation.expires)
        except BaseException as exc:
            self._take_back(operation, exc)
            raise
        if operation.detached:
            self._progress.attend()

    def post_poison(self, packed: bytes, error: RingdError) -> None:
        """Give a refused call its place in the order.

        Raises:
            RingdError: it was not posted.
        """
        try:
            self._sender.transmit(self.state.poison, (packed, error))
        except UnsentError as exc:
            raise self.end(exc) from exc.__cause__

    def post_status(self, operation: Operation[Any], scope: str) -> None:
        """Ask for a status.

        Raises:
            RingdError: it was not posted.
        """
        try:
            if is_mine(self.memory):
                raise reentrant()
            self._sender.transmit(self.state.ask_status, (operation, scope), operation.expires)
        except BaseException as exc:
            self._take_back(operation, exc)
            raise

    def _take_back(self, operation: Operation[Any], cause: BaseException) -> None:
        """End an operation that was not posted, for all that we know.

        Raises:
            RingdError: in place of an UnsentError.
        """
        if isinstance(cause, RingdError):
            operation.withdraw(cause)
        elif isinstance(cause, UnsentError):
            operation.withdraw(error := self.end(cause))
            raise error from cause.__cause__
        else:
            error = cut_short(cause)
            if operation.sent:  # as far as we know
                operation.give_up(error)
            else:
                self.state.forget(operation)
                operation.withdraw(error)
            if isinstance(cause, MemoryError):
                raise error from cause

    def hasten(self) -> None:
        """What nobody waits for is not to wait for the progress thread's next look."""
        self._progress.hasten()

    def free_group(self, group: int, *, wait: bool) -> None:
        """Give a group back, which no call can enter any more.

        Args:
            wait: for its operations in flight, up to their deadlines; else they end with
                GroupFreedError.
        """
        if wait and not self.interrupts():
            self._await_pending(group)
        if self.state.ended is None:
            try:
                self._sender.transmit(ipc.pack, (ipc.FREE_GROUP, group))
            except UnsentError as exc:
                self.end(exc)

    def announce(self, number: int, size_bytes: int, fd: int) -> None:
        """Hand a segment to the daemon.

        Raises:
            UnsentError: the daemon is gone or does not listen; for :meth:`end`, once the
                arena's lock is free.
        """
        self._sender.transmit(ipc.pack, (ipc.SEGMENT, number, size_bytes), fd=fd)

    def retract(self, number: int) -> None:
        """Tell the daemon that a segment is gone; one that is gone itself maps nothing."""
        if not self._closed:
            with contextlib.suppress(UnsentError, ReentrantCallError):
                self._sender.transmit(ipc.pack, (ipc.DROP_SEGMENT, number))

    def end(self, unsent: UnsentError) -> RingdError:
        """End the conversation, and say why: the daemon's own last words count most.

        Pending operations are settled, so this thread may hold no lock.
        """
        if unsent.__cause__ is not None:
            self.advance()
        self._tell(self.state.fail(self.state.lost(str(unsent))))
        self._transport.hang_up()
        return self.state.why_ended()

    # ------------------------------------------------------------ waiting

    def perform(self, operation: Operation[Any]) -> None:
        """Post an operation, wait for it, and end it.

        Raises:
            RingdError: it was not posted, or how it failed.
        """
        try:
            self.post(operation)
            self.finish(operation)
        except BaseException as exc:
            operation.give_up(cut_short(exc))  # if it has not ended
            raise

    def finish(self, operation: Operation[Any]) -> None:
        """Wait for an operation that only this thread knows, and end it.

        Raises:
            RingdError: how it failed.
        """
        try:
            if self.hear(operation) or self.wait(operation, _patience(operation)):
                operation.settle()
            else:
                self.give_up(operation)
        except BaseException as exc:
            operation.give_up(error := cut_short(exc))
            if isinstance(exc, MemoryError) and not isinstance(exc, RingdError):
                raise error from exc
            raise
        if operation.error is not None:
            raise operation.error

    # ------------------------------------------------------------ the end

    def close(self, leaving: Departure, *, wait: bool = True) -> bool:
        """Say goodbye and close; a second call does nothing, or what was left to do.

        In a signal handler that has interrupted another call nothing is waited for: that call
        ends with CommunicatorClosedError when the handler returns.

        Args:
            leaving: why.
            wait: for operations in flight, up to their deadlines.

        Returns:
            Whether nothing is left to do, or another thread does it.
        """
        with self._turn:
            is_first, self._closed = not self._closed, True
        interrupts = self.interrupts()
        try:
            if is_first:
                self.state.ended = self.state.closed()
                try:
                    if wait and not interrupts:
                        self._await_pending()
                finally:
                    self._leave(ipc.pack(ipc.GOODBYE, leaving.words()))
            if self._left and not (interrupts or self._gone):
                self._disconnect()
        except BaseException:
            self._transport.hang_up()
            self._left = True
            if not interrupts:
                self._disconnect()
            raise
        return self._gone or not self._left

    def interrupts(self) -> bool:
        """Whether this thread is in a signal handler that came while another call of it waits."""
        me = threading.get_ident()
        return (
            self._leading == me
            or any(is_mine(lock) for lock in (self.memory, self._sender.lock, self._turn))
            or any(follower.thread == me for follower in tuple(self._followers))
        )

    def _await_pending(self, group: int | None = None) -> None:
        for operation in tuple(self.state.pending.copy().values()):
            if operation.finished or group not in (None, operation.group):
                continue
            if self.wait(operation, operation.expires):
                if operation.detached:
                    operation.settle()
            else:
                self.give_up(operation)

    def _leave(self, goodbye: bytes) -> None:
        transport = self._transport
        if not self._dead:
            transport.say_goodbye(goodbye)
        if self._leading != threading.get_ident() and not self._lead_for_good(0.0):
            self._tell(self.state.fail(self.state.closed()))
            transport.hang_up()
            self._lead_for_good(GONE_S)
        transport.hear_out()
        self._dead = True
        self._tell(self.state.fail(self.state.closed()))
        transport.hang_up()
        self._progress.dismiss()
        self._left = True

    def _disconnect(self) -> None:
        """After the goodbye: nobody reads any more, or will notice soon. May be repeated."""
        self._lead_for_good(GONE_S)
        self._dead = True
        self._tell(self.state.fail(self.state.closed()))
        self._progress.stop()
        self._transport.close()
        self._gone = True

    def _lead_for_good(self, patience_s: float) -> bool:
        """Become the leader and never step down, so that nobody reads from a closed socket."""
        until = time.monotonic() + patience_s
        while True:
            with self._turn:
                if self._leading in (0, _FOR_GOOD):
                    self._leading = _FOR_GOOD
                    return True
            if time.monotonic() >= until:
                return False
            time.sleep(0.001)

    def after_fork_in_child(self) -> None:
        """The conversation is the parent's; this process only lets go of its copy."""
        self._transport.close()
        self.memory = OwnedLock()
        self._turn = OwnedLock()
        self._sender = Sender(self._transport, self.state.patience, self._turn)
        self._progress = Progress(self)
        self._closed = self._dead = True
        self.state.after_fork_in_child()


def _patience(operation: Operation[Any]) -> float:
    """Until when its daemon may answer: also to a call that came to be posted only then, as its
    process stood still."""
    now = time.monotonic()
    return operation.expires if now < operation.expires else now + GRACE_S
