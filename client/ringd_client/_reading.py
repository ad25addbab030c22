"""Who reads from the socket, of all the threads that wait for something to come.

Leader and followers: of all threads that wait, one (the leader) reads, and tells the others
what came for them; when its own operation is over it makes a follower the next leader. So a
synchronous call costs one send and one receive on the caller's own thread, and no hop. What
nobody waits for is the business of the progress thread.

A signal handler may interrupt any of this, and make calls, or raise. What it raises leaves all
as it was, or as it would have become. A call that it makes while its own thread leads reads for
itself, aside.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import Any, Final

from ringd_client._core import ClientState
from ringd_client._followers import SLICE_S, Follower
from ringd_client._locks import OwnedLock
from ringd_client._operation import Operation
from ringd_client._progress import Progress
from ringd_client._transport import NOTHING, RECV_SLICE_MS, Transport

_SLICE_S: Final = RECV_SLICE_MS / 1000


class Reading:
    """Waits for operations that were posted; any thread may call, at any time."""

    def __init__(self, transport: Transport, state: ClientState) -> None:
        self.state = state
        self._transport = transport
        self._turn = OwnedLock()
        self._leading = 0
        self._dead = False
        self._followers: deque[Follower] = deque()
        self._progress = Progress(self)

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
        patient = until - time.monotonic() > _SLICE_S
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
                if not datagram or self.state.lost_thread:
                    self._hear_no_more()
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
        return datagram is not None and self._take_in(datagram, own)

    def _take_in(self, datagram: memoryview, own: Operation[Any] | None) -> bool:
        """Tell whom a datagram concerns that was read; whether there may be another."""
        state = self.state
        answered = state.receive(datagram)
        if self._followers or len(answered) != 1 or answered[0] is not own:
            self._tell(answered, own)
        if not len(datagram) or state.lost_thread:
            self._hear_no_more()
            return False
        self._transport.buffer[0] = NOTHING
        state.last_answered = None
        return not self._dead

    def _take_in_left_over(self, *, leads: bool) -> None:
        """What was read, when a signal handler came between; if that is us, it is seen again."""
        if (datagram := self._transport.left_over()) is not None:
            self._tell(self.state.receive(datagram, again=True))
            if self.state.lost_thread:
                self._hear_no_more()
            if leads:
                self._transport.buffer[0] = NOTHING
                self.state.last_answered = None

    def _hear_no_more(self) -> None:
        self._dead = True
        if self.state.lost_thread:
            self._transport.part(self.state.parting_words)

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
                # its caller is gone, or in the middle of leaving; only its memory is left
                if not operation.settle_unless_busy(wait=False):
                    self._progress.hand_over(operation)
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

    # ------------------------------------------------------------ where nothing comes between

    def hear(self, operation: Operation[Any]) -> bool:
        """As :meth:`wait`, in one step: lead, and take in the next datagram.

        Returns:
            Whether the operation was answered; False: something came between.
        """
        me, turn, transport = threading.get_ident(), self._turn, self._transport
        leads = False
        if operation.expires - time.monotonic() <= _SLICE_S:
            return False
        try:
            with turn:
                if not self._leading:
                    leads = True
                    self._leading = me
            if operation.answered or not leads or transport.buffer[0] != NOTHING or self._dead:
                return operation.answered
            self._hear_next(operation)
        finally:
            try:
                with turn:
                    if leads and self._leading == me:
                        self._leading = 0
                if self._followers:
                    self._step_down(False)
            except BaseException:  # a signal handler's, who came just then
                self._step_down(leads)
                raise
        return operation.answered

    def _hear_next(self, operation: Operation[Any]) -> None:
        """Take in one datagram, most likely the answer to ``operation``, and that it went well."""
        transport, state = self._transport, self.state
        buffer, success = transport.buffer, state.success_of(operation)
        size = transport.receive_soon()
        if size < 0:
            return
        if size == len(success) and buffer.startswith(success) and not operation.detached:
            operation.answered = True
            state.pending.pop(operation.request, None)
            buffer[0] = NOTHING
        else:
            self._take_in(transport.view[:size], operation)
