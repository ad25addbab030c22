"""The TCP connection between two daemons, taken hold of from outside: watched, and cut."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Iterator

import pytest

from tests.processes.harness import Daemons

_PIDFD_GETFD = 438
"""The number of the system call, on every architecture."""
_BYTES_RECEIVED = struct.Struct("=128xQ")
"""tcpi_bytes_received in struct tcp_info of linux/tcp.h."""


class Link:
    """A daemon's end of a connection: a descriptor of our own for its very socket."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    @property
    def received_bytes(self) -> int:
        """What this end has received so far, overhead included."""
        info = self._end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        (received,) = _BYTES_RECEIVED.unpack_from(info)
        return int(received)

    def cut(self) -> None:
        """End the connection in the middle of whatever it carries."""
        self._end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def link_of(group: Daemons, rank: int, peer: int) -> Iterator[Link]:
    """The link to ``peer``, at ``rank``; skips the test where the system does not let us."""
    theirs = {end.getsockname() for end in _connections(group.daemon_pid(peer))}
    ends = _connections(group.daemon_pid(rank))
    found = [end for end in ends if end.getpeername() in theirs]
    assert len(found) == 1, f"{len(found)} connections between ranks {rank} and {peer}"
    try:
        yield Link(found[0])
    finally:
        for end in ends:
            end.close()


def _connections(pid: int) -> list[socket.socket]:
    """Every connected TCP socket of a process."""
    connections = []
    pidfd = os.pidfd_open(pid)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if not os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                    continue
                end = socket.socket(fileno=_shared(pidfd, int(name)))
                if end.family in (socket.AF_INET, socket.AF_INET6) and _is_connected(end):
                    connections.append(end)
                else:
                    end.close()
    finally:
        os.close(pidfd)
    return connections


def _shared(pidfd: int, number: int) -> int:
    """A descriptor of ours for another process's open file."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.syscall(_PIDFD_GETFD, pidfd, number, 0))
    if fd < 0:
        code = ctypes.get_errno()
        pytest.skip(f"the system does not let us take a process's socket: {os.strerror(code)}")
    return fd


def _is_connected(end: socket.socket) -> bool:
    try:
        end.getpeername()
    except OSError:
        return False
    return True
