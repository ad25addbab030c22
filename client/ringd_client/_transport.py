"""The SEQPACKET socket to the daemon: one datagram per message, descriptors beside them.

Sends never block; what can't be sent at once is the caller's to wait for. Nothing here knows
what the messages mean.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Final

from ringd.wire.ipc import MAX_MESSAGE_BYTES
from ringd_client._peer import Peer, look_at

RECV_SLICE_MS: Final = 50
"""A wait for a datagram ends after this, so that its caller can look at the clock."""
SEND_BUFFER_BYTES: Final = 1 << 20
FAREWELL_S: Final = 0.25
"""How long a goodbye waits for the daemon to close its end."""
NOTHING: Final = 0xC1
"""No datagram begins with it: the buffer holds none that is still to be taken in."""
_RECV_TIMEOUT = struct.pack("ll", 0, RECV_SLICE_MS * 1000)
_recv = ctypes.CDLL(None).recv
_recv.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_recv.restype = ctypes.c_ssize_t


def dial(path: str) -> socket.socket:
    """One attempt to connect; the socket is non-blocking.

    Raises:
        OSError: nobody listens there (yet), or its queue is full.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        sock.setblocking(False)
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


class Transport:
    """A connected socket.

    One thread at a time may receive, several may send; ``close`` belongs to whoever knows that
    nobody else is inside.

    Attributes:
        buffer: begins with NOTHING, or with what :meth:`receive` has read and its caller has not
            taken in yet; who has, says so by ``buffer[0] = NOTHING``.
        view: of the buffer.
        send_now: of the socket, for those to whom a function more is one too many: it raises
            BlockingIOError where :meth:`send` does not.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _RECV_TIMEOUT)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._sock = sock
        self.buffer = bytearray(MAX_MESSAGE_BYTES)
        self.buffer[0] = NOTHING
        self.view = memoryview(self.buffer)
        self._fd = sock.fileno()
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))
        self.send_now: Final = sock.send
        self._read_poll = select.poll()
        self._read_poll.register(sock, select.POLLIN)
        self._watch_poll = select.poll()
        self._watch_poll.register(sock, select.POLLIN)

    def fileno(self) -> int:
        """The descriptor, for an event loop."""
        return self._sock.fileno()

    def send(self, message: bytes) -> bool:
        """Send now, or not at all (False: the daemon does not keep up).

        Raises:
            OSError: the connection is gone.
        """
        try:
            self._sock.send(message, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return True

    def send_with_fd(self, message: bytes, fd: int) -> bool:
        """As :meth:`send`, with a descriptor, which the daemon gets a copy of."""
        try:
            socket.send_fds(self._sock, [message], [fd], socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return True

    def receive(self, *, wait: bool) -> memoryview | None:
        """The next datagram, valid until the next call; empty at the end of the connection.

        Args:
            wait: for up to RECV_SLICE_MS.

        Returns:
            None when there is none (yet).

        Raises:
            OSError: the connection is gone.
        """
        try:
            if wait and not self._read_poll.poll(RECV_SLICE_MS):
                return None
            size = self._sock.recv_into(self.buffer, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        return self.view[:size]

    def receive_soon(self) -> int:
        """The size of the next datagram, which is in ``buffer``; 0: the end of the connection.

        Negative: none came within RECV_SLICE_MS, a signal did, or the connection is gone. (The
        socket's own ``recv`` would begin anew after each signal, with the whole of its time.)
        """
        size: int = _recv(self._fd, self._address, MAX_MESSAGE_BYTES, 0)
        return size

    def left_over(self) -> memoryview | None:
        """What a receiver had read and could not take in: a signal handler came between.

        How long it was is not known, so something may follow the message.
        """
        return None if self.buffer[0] == NOTHING else self.view

    def receive_aside(self, until: float) -> bytes | None:
        """As :meth:`receive`, beside a receiver on the same thread that a handler has interrupted.

        None: nothing came until then.
        """
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        if not poll.poll(_milliseconds(until)):
            return None
        try:
            return self._sock.recv(MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    def wait_readable(self, until: float) -> bool:
        """Wait for a datagram until the monotonic clock shows ``until``. For the receiver."""
        return bool(self._read_poll.poll(_milliseconds(until)))

    def watch(self, until: float) -> bool:
        """As :meth:`wait_readable`, for the progress thread, beside a receiver."""
        return bool(self._watch_poll.poll(_milliseconds(until)))

    def wait_writable(self, until: float) -> bool:
        """Wait until the daemon has taken something."""
        poll = select.poll()
        poll.register(self._sock, select.POLLOUT)
        return bool(poll.poll(_milliseconds(until)))

    def peer(self) -> Peer:
        """What is seen of the daemon, whatever it does."""
        return look_at(self._sock)

    def say_goodbye(self, goodbye: bytes) -> None:
        """Send the last message, with room for it in FAREWELL_S; see :meth:`end_sending`."""
        until = time.monotonic() + FAREWELL_S
        with contextlib.suppress(OSError):
            while not self.send(goodbye) and self.wait_writable(until):
                pass
        self.end_sending()

    def end_sending(self) -> None:
        """Send nothing more; the other direction stays open."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def hear_out(self) -> None:
        """After the goodbye, read and drop what comes until the daemon closes its end.

        Closing a socket that has unread data would tell the daemon of a reset, which it might
        see before the goodbye.
        """
        until = time.monotonic() + FAREWELL_S
        with contextlib.suppress(OSError, MemoryError):
            while self.receive_aside(until):
                pass

    def part(self, words: Callable[[], bytes]) -> None:
        """Send a last message, if there is room and memory for it, and hang up."""
        with contextlib.suppress(OSError, MemoryError):
            self.send(words())
        self.hang_up()

    def hang_up(self) -> None:
        """End the connection for both sides and wake up whoever waits on it."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this process's descriptor."""
        self._sock.close()


def _milliseconds(until: float) -> int:
    """What is left, rounded up so that no wait ends early; at most an hour at a time."""
    left_s = min(until - time.monotonic(), 3600.0)
    return max(0, math.ceil(left_s * 1000))
