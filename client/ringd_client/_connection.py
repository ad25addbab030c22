"""The blocking face of the conversation: whoever waits reads the socket itself.

Leader and followers: of all threads that wait, one (the leader) reads, and tells the others
what came for them; when its own operation is over it makes a follower the next leader. So a
synchronous call costs one send and one receive on the caller's own thread, and no hop. What
nobody waits for is the business of the progress thread.

A signal handler may interrupt any of this, and make calls, or raise. What it raises leaves all
as it was, or as it would have become. A call that it makes while its own thread leads reads for
itself, aside; one that would need what the interrupted call holds is refused.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from ringd.errors import ReentrantCallError, RingdError
from ringd.wire import ipc
from ringd_client._core import ClientState
from ringd_client._followers import SLICE_S, Follower
from ringd_client._locks import OwnedLock, is_mine, reentrant
from ringd_client._operation import Operation, UnsentError
from ringd_client._process import Departure
from ringd_client._progress import Progress
from ringd_client._sending import Sender
from ringd_client._transport import NOTHING, RECV_SLICE_S, Transport

GONE_S: Final = 1.0
"""How long a thread that reads may take to notice that the connection is closed."""
_FOR_GOOD: Final = -1


class Connection:
    """Posts operations and waits for them; any thread may call, at any time.

    Attributes:
        memory: the lock of the arena.
    """

    def __init__(self, transport: Transport, state: ClientState) -> None:
        self.state = state
        self._transport = transport
        self.memory = OwnedLock()
        self._turn = OwnedLock()
        self._sender = Sender(transport, state.patience, self._turn)
        self._leading = 0
        self._dead = self._closed = self._left = self._gone = False
        self._followers: deque[Follower] = deque()
        self._progress = Progress(self)

    # ------------------------------------------------------------ sending

    def post(self, operation: Operation[Any]) -> None:
        """Give an operation its place in the order.

        Raises:
            RingdError: it was not posted; its memory is free again.
            ReentrantCallError: likewise, in a signal handler.
        """
        self._send(operation, self.state.submit)
        if operation.detached:
            self._progress.attend()

    def post_poison(self, packed: bytes, error: RingdError) -> None:
        """Give a refused call its place in the order.

        Raises:
            RingdError: it was not posted.
        """
        try:
            self._sender.transmit(self.state.poison, packed, error)
        except UnsentError as exc:
            raise self.end(exc) from exc.__cause__

    def post_status(self, operation: Operation[Any], scope: str) -> None:
        """Ask for a status.

        Raises:
            RingdError: it was not posted.
        """
        self._send(operation, self.state.ask_status, scope)

    def _send(
        self, operation: Operation[Any], request: Callable[..., bytes], *arguments: Any
    ) -> None:
        """Send ``request(operation, *arguments)``, and end the operation if that can't be."""
        try:
            if is_mine(self.memory):
                raise reentrant()
            self._sender.transmit(request, operation, *arguments, until=operation.expires)
        except RingdError as exc:
            operation.withdraw(exc)
            raise
        except UnsentError as exc:
            operation.withdraw(error := self.end(exc))
            raise error from exc.__cause__
        except BaseException:
            interrupted = RingdError("its caller was interrupted")
            if operation.sent:  # as far as we know
                operation.give_up(interrupted)
            else:
                self.state.forget(operation)
                operation.withdraw(interrupted)
            raise

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
                self._sender.transmit(ipc.pack, ipc.FREE_GROUP, group)
            except UnsentError as exc:
                self.end(exc)

    def announce(self, number: int, size_bytes: int, fd: int) -> None:
        """Hand a segment to the daemon.

        Raises:
            UnsentError: the daemon is gone or does not listen; for :meth:`end`, once the
                arena's lock is free.
        """
        self._sender.transmit(ipc.pack, ipc.SEGMENT, number, size_bytes, fd=fd)

    def retract(self, number: int) -> None:
        """Tell the daemon that a segment is gone; one that is gone itself maps nothing."""
        if not self._closed:
            with contextlib.suppress(UnsentError, ReentrantCallError):
                self._sender.transmit(ipc.pack, ipc.DROP_SEGMENT, number)

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
        except BaseException:
            operation.give_up(RingdError("its caller was interrupted"))  # if it has not ended
            raise

    def finish(self, operation: Operation[Any]) -> None:
        """Wait for an operation that only this thread knows, and end it.

        Raises:
            RingdError: how it failed.
        """
        try:
            if self.wait(operation, operation.expires):
                operation.settle()
            else:
                self.give_up(operation)
        except BaseException:
            operation.give_up(RingdError("its caller was interrupted"))
            raise
        if operation.error is not None:
            raise operation.error

    def give_up(self, operation: Operation[Any]) -> None:
        """End an operation whose deadline the daemon has let pass, if nothing has come by now."""
        self.advance()
        if operation.answered:
            operation.settle()
        else:
            now, seen = time.monotonic(), self._transport.peer()
            operation.give_up(self.state.silent(operation, now, seen))

    def wait(self, operation: Operation[Any], until: float) -> bool:
        """Wait for an operation, which the caller settles, until then; whether it is over."""
        me = threading.get_ident()
        while not (operation.answered or operation.finished):
            follower = None
            leads = False
            try:
                with self._turn:
                    if not self._leading:
                        leads = True
                        self._leading = me
                    elif self._leading != me:
                        follower = Follower(operation, me)
                        self._followers.append(follower)
                if leads:
                    self._read(operation, until)
                elif follower is not None:
                    follower.sleep(until)
                else:
                    self._read_aside(operation, until)
            finally:
                try:
                    self._step_down(leads, follower)
                except BaseException:  # a signal handler's, who came just then
                    self._step_down(leads, follower)
                    raise
            if time.monotonic() >= until:
                break
        return operation.answered or operation.finished

    def advance(self) -> bool:
        """Take in what the daemon has sent, without waiting; False: nothing, or somebody reads."""
        found = leads = False
        try:
            with self._turn:
                if self._leading:
                    return False
                leads = True
                self._leading = threading.get_ident()
            self._take_in_left_over(leads=True)
            while self._receive(wait=False):
                found = True
        finally:
            try:
                self._step_down(leads)
            except BaseException:  # as in wait()
                self._step_down(leads)
                raise
        return found

    def await_news(self, until: float) -> bool:
        """For the progress thread: take in what comes until then, while no other thread reads.

        It only watches; any thread may become the leader meanwhile. Returns False when there is
        one: the caller had better keep out of its way.
        """
        if self._leading or self._dead:
            return False
        return not self._transport.watch(until) or self.advance()

    def _read(self, operation: Operation[Any], until: float) -> None:
        """Lead: read until ``operation`` is over, or the clock shows ``until``."""
        if self._transport.buffer[0] != NOTHING:
            self._take_in_left_over(leads=True)
        patient = until - time.monotonic() > RECV_SLICE_S
        while not (operation.answered or operation.finished):
            if self._receive(wait=patient, own=operation):
                continue
            if self._dead:
                return
            patient = False
            # A while at a time: a signal handler may have read the answer meanwhile.
            look = min(until, time.monotonic() + SLICE_S)
            if not self._transport.wait_readable(look) and time.monotonic() >= until:
                return

    def _read_aside(self, operation: Operation[Any], until: float) -> None:
        """As :meth:`_read`, in a signal handler that has interrupted the leader in this thread."""
        self._take_in_left_over(leads=False)
        while not (operation.over or self._dead):
            try:
                datagram = self._transport.receive_aside(until)
            except OSError as exc:
                self._lose(exc)
                return
            if datagram is not None:
                self._tell(self.state.receive(datagram), operation)
                self._dead = not datagram
            elif time.monotonic() >= until:
                return

    def _receive(self, *, wait: bool, own: Operation[Any] | None = None) -> bool:
        """Read one datagram and tell whom it concerns; False: there is none."""
        if self._dead:
            return False
        try:
            datagram = self._transport.receive(wait=wait)
        except OSError as exc:
            self._lose(exc)
            return False
        if datagram is None:
            return False
        state = self.state
        answered = state.receive(datagram)
        if self._followers or len(answered) != 1 or answered[0] is not own:
            self._tell(answered, own)
        if not len(datagram):
            self._dead = True
            return False
        self._transport.buffer[0] = NOTHING
        state.last_answered = None
        return not self._dead

    def _take_in_left_over(self, *, leads: bool) -> None:
        """What was read, when a signal handler came between; if that is us, it is seen again."""
        if (datagram := self._transport.left_over()) is not None:
            self._tell(self.state.receive(datagram, again=True))
            if leads:
                self._transport.buffer[0] = NOTHING
                self.state.last_answered = None

    def _lose(self, cause: OSError) -> None:
        """Receiving has failed.

        Raises:
            OSError: it has not: a signal handler raised this. (TimeoutError is an OSError.)
        """
        if cause.errno is None:
            raise cause
        self._tell(self.state.fail(self.state.lost(f"receiving failed ({cause.strerror})")))
        self._dead = True

    def _tell(
        self, operations: tuple[Operation[Any], ...], own: Operation[Any] | None = None
    ) -> None:
        """Let everybody know whose operation was answered; ``own`` is the reader's."""
        for operation in operations:
            if operation is own:
                continue
            if operation.finished:
                operation.settle()  # its caller is gone, only its memory is left
            elif operation.detached:
                self._progress.hand_over(operation)
        if self._followers:
            with self._turn:
                for follower in [f for f in self._followers if f.operation.over]:
                    self._drop(follower)
                    follower.wake()

    def _step_down(self, leads: bool, follower: Follower | None = None) -> None:
        """Leave the wait; if nobody leads then, the longest waiting follower shall."""
        with self._turn:
            if leads and self._leading == threading.get_ident():
                self._leading = 0
            if follower is not None:
                self._drop(follower)
            if self._followers and not self._leading:
                next_one = self._followers[0]
                next_one.wake()
                self._drop(next_one)

    def _drop(self, follower: Follower) -> None:
        with contextlib.suppress(ValueError):
            self._followers.remove(follower)

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
