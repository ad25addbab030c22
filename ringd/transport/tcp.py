"""TCP: non-blocking sockets driven by the loop's readiness, nothing between us and the kernel.

asyncio's own transports report no completion of a write, so a caller could not know when its
memory is free; here ``backlog_bytes`` says exactly what the kernel has not taken yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from ringd.config.resources import exhausted
from ringd.errors import AddressInUseError
from ringd.transport.base import Address, Buffer, Channel, Receiver

READ_BUDGET_BYTES = 4 * 1024 * 1024
"""How much one readiness may read before other sockets get their turn."""
MAX_IOVECS = 64
LINGER_S = 5.0
"""How long a closed channel waits for the peer's end of stream."""
KEEPALIVE_IDLE_S = 15
KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_COUNT = 3
USER_TIMEOUT_S = 30
KNOWN_CONGESTIONS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
NEAR_RTT_US = 1000
"""Who answers the first packets within this many microseconds is on our local network."""
_RTT = struct.Struct("=I")
_RTT_AT = 68
"""Of ``tcpi_rtt`` in Linux's ``struct tcp_info``: microseconds, smoothed."""
_TCP_INFO_BYTES = _RTT_AT + _RTT.size
_SHRUG = (BlockingIOError, InterruptedError)
_log = logging.getLogger("ringd.transport")


class TcpChannel:
    """One connected TCP socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self.local = _address(sock.getsockname())
        self.peer = _address(sock.getpeername())
        self.backlog_bytes = 0
        self._queue: deque[memoryview] = deque()
        self._receiver: Receiver | None = None
        self._writing = False
        self._open = True
        self._ending = False
        self._send_error: OSError | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._untold: list[BaseException | None] = []

    def attach(self, receiver: Receiver) -> None:
        """Start to feed ``receiver``, or hand the channel over to it."""
        first = self._receiver is None
        self._receiver = receiver
        if first and self._open:
            self._loop.add_reader(self._fd, self._readable)
        elif self._untold:
            self._loop.call_soon(self._tell)

    def send(self, buffers: Sequence[Buffer], size_bytes: int) -> None:
        """Write what the kernel takes now; queue the rest without copying it."""
        if not self._open or self._ending:
            return
        taken = 0
        if not self.backlog_bytes:
            try:
                if len(buffers) == 1:
                    taken = self._sock.send(buffers[0])
                else:
                    taken = self._sock.sendmsg(buffers)
            except _SHRUG:
                pass
            except OSError as exc:
                self._send_error = exc  # the kernel tells it once: later reads see a plain end
                self._loop.call_soon(self._fail, exc)
                return
            if taken == size_bytes:
                return
        self._enqueue(buffers, taken)
        self.backlog_bytes += size_bytes - taken
        if not self._writing:
            self._writing = True
            self._loop.add_writer(self._fd, self._writable)

    def _enqueue(self, buffers: Sequence[Buffer], skip: int) -> None:
        for buffer in buffers:
            view = memoryview(buffer)
            if skip >= len(view):
                skip -= len(view)
                continue
            self._queue.append(view[skip:] if skip else view)
            skip = 0

    def own_backlog(self) -> None:
        """Copy what is queued, so that the caller may reuse its memory."""
        if self._queue:
            self._queue = deque([memoryview(b"".join(self._queue))])

    def _writable(self) -> None:
        queue = self._queue
        try:
            if len(queue) == 1:
                taken = self._sock.send(queue[0])
            else:
                taken = self._sock.sendmsg([queue[i] for i in range(min(len(queue), MAX_IOVECS))])
        except _SHRUG:
            return
        except OSError as exc:
            self._fail(exc)
            return
        self.backlog_bytes -= taken
        while taken:
            size = len(queue[0])
            if taken < size:
                queue[0] = queue[0][taken:]
                break
            queue.popleft()
            taken -= size
        if not queue:
            self._all_taken()

    def _all_taken(self) -> None:
        self._loop.remove_writer(self._fd)
        self._writing = False
        if self._ending:
            self._shut()
        elif self._receiver is not None:
            self._receiver.drained()

    def _readable(self) -> None:
        budget = READ_BUDGET_BYTES
        if self._ending:
            self._discard()
            return
        while budget > 0 and self._open and not self._ending:
            receiver = self._receiver
            assert receiver is not None
            buffers = receiver.next_buffers()
            try:
                if len(buffers) == 1:
                    wanted = len(buffers[0])
                    count = self._sock.recv_into(buffers[0])
                else:
                    wanted = sum(map(len, buffers))
                    count = self._sock.recvmsg_into(buffers)[0]
            except _SHRUG:
                return
            except OSError as exc:
                self._fail(exc)
                return
            if not count:
                self._fail(None)
                return
            receiver.received(count)
            if count < wanted:
                return
            budget -= count

    def _fail(self, error: BaseException | None) -> None:
        if not self._open:
            return
        self._release()
        if not self._ending:
            self._untold.append(self._send_error or error)
            self._tell()

    def _tell(self) -> None:
        if self._receiver is not None and self._untold:
            receiver, self._receiver = self._receiver, None  # no circle keeps either alive
            receiver.ended(self._untold.pop())

    def _release(self) -> None:
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._fd)
        if self._writing:
            self._loop.remove_writer(self._fd)
            self._writing = False
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self._queue.clear()
        self.backlog_bytes = 0
        self._sock.close()
        if self._ending:
            self._receiver = None

    def close(self) -> None:
        """Flush, then end; a peer that never reads is cut off by TCP's user timeout."""
        if not self._open or self._ending:
            return
        self._ending = True
        if self._receiver is None:
            self._loop.add_reader(self._fd, self._readable)
        self._receiver = None
        if not self.backlog_bytes:
            self._shut()

    def _shut(self) -> None:
        """Say that no more comes, and let the kernel send: a full close with bytes coming in
        would reset the connection and lose what the peer has not read yet."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
        self._linger = self._loop.call_later(LINGER_S, self._release)

    def _discard(self) -> None:
        try:
            while self._sock.recv(65536):
                pass
        except _SHRUG:
            return
        except OSError:
            self._release()
            return
        if self.backlog_bytes:
            self._loop.remove_reader(self._fd)
        else:
            self._release()

    def abort(self) -> None:
        """Reset the connection and drop the backlog."""
        if not self._open:
            return
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # on, zero seconds: RST instead of FIN
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._ending = True
        self._release()


class TcpListener:
    """A listening socket."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        on_channel: Callable[[Channel], None],
        congestion: str,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._on_channel = on_channel
        self._congestion = congestion
        self._starved = False
        self.address = _address(sock.getsockname())
        loop.add_reader(sock.fileno(), self._acceptable)

    def _acceptable(self) -> None:
        while True:
            try:
                sock, _ = self._sock.accept()
            except _SHRUG:
                return
            except OSError as exc:
                if exc.errno in (errno.EMFILE, errno.ENFILE):
                    # Out of descriptors: stop for a moment instead of spinning on readiness.
                    if not self._starved:
                        _log.error(
                            "no connection can be accepted: %s", exhausted(exc, "this process")
                        )
                    self._starved = True
                    self._loop.remove_reader(self._sock.fileno())
                    self._loop.call_later(0.2, self._resume)
                return
            self._starved = False
            try:
                tune(sock, self._congestion)
                channel = TcpChannel(self._loop, sock)
            except OSError:  # the peer was gone before we looked
                sock.close()
                continue
            self._on_channel(channel)

    def _resume(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.add_reader(self._sock.fileno(), self._acceptable)

    def close(self) -> None:
        """Stop accepting."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()


class TcpTransport:
    """Dials and listens over TCP, IPv4 or IPv6.

    Args:
        congestion: "auto" takes cubic between two ends on one host or one local network (the
            handshake took less than 1 ms), where the pacing of the system's default (BBR, for
            one) only costs time, and the system's choice elsewhere;
            "system" never chooses; any other value names an algorithm of the kernel's.
        source: local IP address that dialled connections leave from, "" for the route's.
        family: socket.AF_UNSPEC, AF_INET or AF_INET6.
    """

    name = "tcp"

    def __init__(
        self, *, congestion: str = "auto", source: str = "", family: int = socket.AF_UNSPEC
    ) -> None:
        self._congestion = congestion
        self._source = source
        self._family = family

    async def dial(self, address: Address, *, deadline: float) -> Channel:
        """Connect to ``address`` by the loop-time ``deadline``, trying each resolved address."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout_at(deadline):
            found = await loop.getaddrinfo(
                address.host, address.port, family=self._family, type=socket.SOCK_STREAM
            )
            last: OSError | None = None
            for family, _, _, _, target in found:
                try:
                    return await self._connect(loop, family, target)
                except OSError as exc:
                    last = exc
        raise last or OSError(f"{address} has no address")

    async def _connect(
        self, loop: asyncio.AbstractEventLoop, family: int, target: tuple[object, ...]
    ) -> TcpChannel:
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            if self._source:
                sock.bind((self._source, 0))
            await loop.sock_connect(sock, target)
            tune(sock, self._congestion)
            return TcpChannel(loop, sock)
        except BaseException:
            sock.close()
            raise

    async def listen(self, address: Address, on_channel: Callable[[Channel], None]) -> TcpListener:
        """Accept at ``address`` (an IP literal or a name of this host; port 0: any)."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            address.host, address.port, family=self._family, type=socket.SOCK_STREAM
        )
        family, _, _, _, target = found[0]
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(target)
            sock.listen(1024)
        except OSError as exc:
            sock.close()
            if exc.errno == errno.EADDRINUSE:
                raise AddressInUseError(
                    f"{address} is in use by another process; choose another port or port range",
                    address=str(address),
                ) from None
            raise OSError(exc.errno, f"can't listen on {address}: {exc.strerror}") from None
        return TcpListener(loop, sock, on_channel, self._congestion)


def tune(sock: socket.socket, congestion: str) -> None:
    """Options of every connected socket, on both sides.

    No Nagle delay; keepalive and user timeout, so that a path which dies without a word shows
    long before a NAT or load balancer forgets an idle flow (15 minutes and less are common).
    """
    sock.setblocking(False)
    tcp = socket.IPPROTO_TCP
    sock.setsockopt(tcp, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(tcp, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(tcp, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(tcp, socket.TCP_KEEPCNT, KEEPALIVE_COUNT)
    sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_S * 1000)
    if congestion == "auto":
        congestion = "cubic" if _is_near(sock) else "system"
    if congestion != "system":
        with contextlib.suppress(OSError):  # not loaded in this kernel: its default serves
            sock.setsockopt(tcp, socket.TCP_CONGESTION, congestion.encode())


def _is_near(sock: socket.socket) -> bool:
    """Whether the other end is on this host or on its local network."""
    if sock.getsockname()[0] == sock.getpeername()[0]:
        return True
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:  # a sandbox that does not tell
        return False
    if len(info) < _TCP_INFO_BYTES:
        return False
    rtt_us: int = _RTT.unpack_from(info, _RTT_AT)[0]
    return 0 < rtt_us < NEAR_RTT_US


def refused_congestion(congestion: str) -> str:
    """Why connections can't have this congestion control; "": they can.

    A socket is asked, as the kernel's list neither has the modules that it would load, nor says
    what only root may set.
    """
    if congestion in ("auto", "system"):
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        except OSError as exc:
            return "it has none of that name" if exc.errno == errno.ENOENT else str(exc.strerror)
    return ""


def known_congestions() -> str:
    """Those that the kernel has loaded, in one line."""
    try:
        return " ".join(KNOWN_CONGESTIONS.read_text().split())
    except OSError:  # a container may hide it
        return f"not readable in {KNOWN_CONGESTIONS}"


def _address(name: tuple[object, ...]) -> Address:
    return Address(str(name[0]), int(str(name[1])))
