"""The asyncio face of the conversation: the event loop reads, and nobody blocks.

Everything belongs to the loop's thread, except for messages about segments, which any thread
may cause to be sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from typing import Any, Final

from ringd.errors import ReentrantCallError, RingdError
from ringd.wire import ipc
from ringd_client._core import ClientState
from ringd_client._locks import OwnedLock, is_mine, reentrant
from ringd_client._operation import Operation, UnsentError
from ringd_client._process import Departure
from ringd_client._transport import FAREWELL_S, Transport

LONG_COPY_BYTES: Final = 1 << 20
"""Results above this are written by a thread of the loop's executor."""


class AsyncConnection:
    """Posts operations and resolves those who await them, on one event loop."""

    def __init__(
        self, transport: Transport, state: ClientState, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.state = state
        self._transport = transport
        self._loop = loop
        self._sending = OwnedLock()
        self._outbox: deque[tuple[bytes, int | None]] = deque()
        self._flushed = asyncio.Event()
        self._flushed.set()
        self._waiters: dict[int, list[asyncio.Future[None]]] = {}
        self._settling: set[asyncio.Future[None]] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = float("inf")
        self._ended = loop.create_future()
        self._closing = False
        self._gone = False
        loop.add_reader(transport.fileno(), self._on_readable)

    # ------------------------------------------------------------ sending

    def post(self, operation: Operation[Any]) -> None:
        """Give an operation its place in the order.

        Raises:
            RingdError: it was not posted; its memory is free again.
        """
        try:
            self._send(self.state.submit(operation))
        except RingdError as exc:
            operation.withdraw(exc)
            raise
        self._watch_clock(operation.expires)

    def post_poison(self, packed: bytes, error: RingdError) -> None:
        """Give a refused call its place in the order.

        Raises:
            RingdError: it was not posted.
        """
        self._send(self.state.poison(packed, error))

    def post_status(self, operation: Operation[Any], scope: str) -> None:
        """Ask for a status.

        Raises:
            RingdError: it was not posted.
        """
        self._send(self.state.ask_status(operation, scope))
        self._watch_clock(operation.expires)

    async def free_group(self, group: int, *, wait: bool) -> None:
        """Give a group back; see the blocking twin. Being cancelled frees it at once."""
        try:
            if wait:
                await self._all_over(group)
        finally:
            if self.state.ended is None:
                with contextlib.suppress(RingdError):
                    self._send(ipc.pack(ipc.FREE_GROUP, group))

    def announce(self, number: int, size_bytes: int, fd: int) -> None:
        """Hand a segment to the daemon.

        Raises:
            UnsentError: the daemon is gone; for :meth:`end`, once the arena's lock is free.
        """
        self._transmit(ipc.pack(ipc.SEGMENT, number, size_bytes), fd)

    def retract(self, number: int) -> None:
        """Tell the daemon that a segment is gone; one that is gone itself maps nothing."""
        if not self._gone:
            # a loop may be closed
            with contextlib.suppress(UnsentError, RuntimeError, ReentrantCallError):
                self._transmit(ipc.pack(ipc.DROP_SEGMENT, number))

    def end(self, unsent: UnsentError) -> RingdError:
        """End the conversation, and say why: the daemon's own last words count most."""
        self.catch_up()
        self._lose(self.state.lost(str(unsent)))
        return self.state.why_ended()

    def _send(self, message: bytes) -> None:
        try:
            self._transmit(message)
        except UnsentError as exc:
            raise self.end(exc) from exc.__cause__

    def _transmit(self, message: bytes, fd: int | None = None) -> None:
        if is_mine(self._sending):
            raise reentrant()
        with self._sending:
            if not self._outbox and self._try(message, fd):
                return
            self._outbox.append((message, None if fd is None else os.dup(fd)))
            self._flushed.clear()
            if len(self._outbox) == 1:
                self._loop.call_soon_threadsafe(self._await_room)

    def _try(self, message: bytes, fd: int | None) -> bool:
        try:
            if fd is None:
                return self._transport.send(message)
            return self._transport.send_with_fd(message, fd)
        except OSError as exc:
            raise UnsentError(f"sending failed ({exc.strerror})") from exc

    def _await_room(self) -> None:
        if not self._gone:
            self._loop.add_writer(self._transport.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        try:
            with self._sending:
                while self._outbox and self._try(*self._outbox[0]):
                    _, fd = self._outbox.popleft()
                    if fd is not None:
                        os.close(fd)
                if self._outbox:
                    return
                self._flushed.set()
        except UnsentError as exc:
            self._drop_outbox()
            self.end(exc)
        self._loop.remove_writer(self._transport.fileno())

    def _drop_outbox(self) -> None:
        with self._sending:
            for _, fd in self._outbox:
                if fd is not None:
                    os.close(fd)
            self._outbox.clear()

    # ------------------------------------------------------------ receiving

    async def over(self, operation: Operation[Any]) -> None:
        """Return when an operation is finished. Being cancelled changes nothing for it."""
        if operation.finished:
            return
        waiter = self._loop.create_future()
        waiters = self._waiters.setdefault(operation.request, [])
        waiters.append(waiter)
        try:
            await waiter
        finally:
            waiters.remove(waiter)

    def catch_up(self) -> None:
        """Take in what the daemon has sent, without waiting."""
        while not (self._gone or self._ended.done()) and self._transport.wait_readable(0.0):
            self._on_readable()

    def _on_readable(self) -> None:
        """Take in one datagram; the loop calls again when there are more."""
        try:
            datagram = self._transport.receive(wait=False)
        except OSError as exc:
            self._lose(self.state.lost(f"receiving failed ({exc.strerror})"))
            return
        except MemoryError:
            return  # the datagram, if it was read, is lost: the client's own clock ends its call
        if datagram is not None:
            at_end = not len(datagram)
            self._tell(self.state.receive(datagram))
            self.state.last_answered = None
            if at_end or self.state.lost_thread:
                if self.state.lost_thread:
                    self._transport.part(self.state.parting_words)
                self._stop_listening()

    def _tell(self, operations: tuple[Operation[Any], ...]) -> None:
        for operation in operations:
            settlement = operation.settlement
            writes = operation.answer is None and not operation.finished
            if writes and settlement and settlement.result_bytes > LONG_COPY_BYTES:
                self._settle_elsewhere(operation)
            else:
                operation.settle()
                self._wake(operation)

    def _settle_elsewhere(self, operation: Operation[Any]) -> None:
        def settled(future: asyncio.Future[None]) -> None:
            self._settling.discard(future)
            self._wake(operation)

        try:
            future = self._loop.run_in_executor(None, operation.settle)
        except (RuntimeError, MemoryError):  # there is no room for a thread, nor will be
            operation.settle()
            self._wake(operation)
            return
        self._settling.add(future)
        future.add_done_callback(settled)

    def _wake(self, operation: Operation[Any]) -> None:
        for waiter in self._waiters.pop(operation.request, ()):
            if not waiter.done():
                waiter.set_result(None)

    def _lose(self, error: RingdError) -> None:
        self._stop_listening()
        self._tell(self.state.fail(error))

    def _stop_listening(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
            self._loop.remove_reader(self._transport.fileno())

    # ------------------------------------------------------------ the client's own clock

    def _watch_clock(self, expires: float) -> None:
        if expires < self._alarm_at:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm_at = expires
            delay_s = max(0.0, expires - time.monotonic())
            self._alarm = self._loop.call_later(delay_s, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None
        self._alarm_at = float("inf")
        self.catch_up()  # a loop that was held up itself may find the answers here
        now = time.monotonic()
        if expired := self.state.expired(now):
            seen = self._transport.peer()
        for operation in expired:
            operation.give_up(self.state.silent(operation, now, seen))
            self._wake(operation)
        left = [op.expires for op in self.state.pending.values() if not op.over]
        if left:
            self._watch_clock(min(left))

    # ------------------------------------------------------------ the end

    async def close(self, leaving: Departure, *, wait: bool) -> None:
        """Say goodbye and close; see the blocking twin. Being cancelled shortens it."""
        if self._closing:
            return
        self._closing = True
        self.state.ended = self.state.closed()
        try:
            if wait:
                await self._all_over()
                await self._all_sent()
            await self._say_goodbye(ipc.pack(ipc.GOODBYE, leaving.words()))
            await asyncio.wait([self._ended], timeout=FAREWELL_S)
        finally:
            self._disconnect()

    async def _all_over(self, group: int | None = None) -> None:
        for operation in list(self.state.pending.values()):
            if group in (None, operation.group):
                await self.over(operation)
        if self._settling:
            await asyncio.wait(self._settling)

    async def _say_goodbye(self, goodbye: bytes) -> None:
        self._drop_outbox()  # the daemon has no use for what would come before
        with contextlib.suppress(UnsentError):
            self._transmit(goodbye)
            await self._all_sent()
        self._transport.end_sending()

    async def _all_sent(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await self._flushed.wait()

    def leave_now(self, leaving: Departure) -> None:
        """Say goodbye without an event loop."""
        if self._gone:
            return
        self._closing = self._gone = True
        self.state.ended = self.state.closed()
        self._transport.say_goodbye(ipc.pack(ipc.GOODBYE, leaving.words()))
        self._transport.hear_out()
        self._drop_outbox()
        self._transport.close()

    def _disconnect(self) -> None:
        self._gone = True
        self._drop_outbox()
        if self._alarm is not None:
            self._alarm.cancel()
        self._loop.remove_writer(self._transport.fileno())
        self._lose(self.state.closed())
        self._transport.hang_up()
        self._transport.close()

    def after_fork_in_child(self) -> None:
        """The conversation is the parent's, and so is the loop's selector: touch neither."""
        self._closing = self._gone = True
        self._sending = OwnedLock()
        self._transport.close()
        self._drop_outbox()
        self.state.after_fork_in_child()
