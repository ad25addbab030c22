"""How the blocking client gives its daemon a message: whole, in order, and not for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from socket import MSG_DONTWAIT
from typing import Any, Final

from ringd_client._core import Patience
from ringd_client._locks import OwnedLock, is_mine, let_go, reentrant
from ringd_client._operation import UnsentError
from ringd_client._transport import Transport

PATIENCE_S: Final = 10.0
"""How long the daemon may take to accept a message that belongs to no operation."""
STUCK: Final = "it does not read what we send: it is stopped, or too busy"


class Sender:
    """Sends the messages of all threads, one after another.

    Args:
        patience: when the thread's current call gives up.
        turn: a lock that is held for some steps only; who was interrupted in them can't send.

    Attributes:
        lock: held from the making of a message until it is sent, so that messages travel in the
            order in which they were made.
    """

    def __init__(self, transport: Transport, patience: Patience, turn: OwnedLock) -> None:
        self.lock = OwnedLock()
        self._transport = transport
        self._patience = patience
        self._turn = turn

    def transmit(
        self,
        make: Callable[..., bytes],
        arguments: tuple[Any, ...],
        until: float = 0.0,
        fd: int | None = None,
    ) -> None:
        """Make a message and send it, in one step as others see it.

        Args:
            make, arguments: of the message.
            until: the daemon must have room by then; default: PATIENCE_S from now, or what is
                left of the call for which it is sent.
            fd: a descriptor that goes with it.

        Raises:
            UnsentError: the daemon is gone, or has no room.
            ReentrantCallError: this thread was interrupted while it sent something else.
        """
        lock = self.lock
        if is_mine(lock) or is_mine(self._turn):
            raise reentrant()
        if not until:
            now = time.monotonic()
            until, call_until = now + PATIENCE_S, self._patience.until
            if now < call_until < until:  # else it is an earlier call's
                until = call_until
        try:
            if not lock.acquire(False):
                left_s = max(0.0, until - time.monotonic())
                if not lock.acquire(timeout=left_s):
                    raise UnsentError(STUCK)
            message = make(*arguments)
            if fd is not None:
                self._insist(message, until, fd)
            else:
                try:
                    self._transport.send_now(message, MSG_DONTWAIT)
                except BlockingIOError:
                    self._insist(message, until, fd)
        except OSError as exc:
            if exc.errno is None:
                raise  # a signal handler's own: TimeoutError is an OSError
            raise UnsentError(f"sending failed ({exc.strerror})") from exc
        finally:
            try:
                if is_mine(lock):
                    lock.release()
            except BaseException:  # a signal handler's, who came just then
                let_go(lock)
                raise

    def _insist(self, message: bytes, until: float, fd: int | None) -> None:
        """Send it as soon as the daemon has room.

        Raises:
            UnsentError: that was not to be by ``until``.
        """
        transport = self._transport
        while not (transport.send(message) if fd is None else transport.send_with_fd(message, fd)):
            if not transport.wait_writable(until) and time.monotonic() >= until:
                raise UnsentError(STUCK)
