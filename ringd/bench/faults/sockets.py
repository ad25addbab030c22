"""A TCP connection of another process, taken hold of from outside: watched, cut, or reset."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator

_PIDFD_GETFD = 438
"""The number of the system call, on every architecture."""
_BYTES_RECEIVED = struct.Struct("=128xQ")
"""tcpi_bytes_received in struct tcp_info of linux/tcp.h."""
_AF_UNSPEC = struct.pack("=H14x", socket.AF_UNSPEC)


class End:
    """One process's end of a connection: a descriptor of our own for its very socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @property
    def received_bytes(self) -> int:
        """What this end has received so far, overhead included."""
        info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        (received,) = _BYTES_RECEIVED.unpack_from(info)
        return int(received)

    def cut(self) -> None:
        """End the stream, in order, in the middle of whatever it carries (FIN)."""
        self._sock.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Reset the connection, as a middlebox does: RST to the peer, ECONNRESET here.

        Raises:
            OSError: there is no connection any more.
        """
        # Dissolving the association of a connected socket is what makes the kernel send RST;
        # Python has no connect() for it.
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.connect(self._sock.fileno(), _AF_UNSPEC, len(_AF_UNSPEC)):
            code = ctypes.get_errno()
            raise OSError(code, f"the connection can't be reset: {os.strerror(code)}")


@contextlib.contextmanager
def between(pid: int, peer_pid: int) -> Iterator[list[End]]:
    """The ends, in process ``pid``, of its connections with ``peer_pid``.

    Raises:
        OSError: the system does not let us (Yama's ptrace_scope, a container's seccomp), or a
            process is gone.
    """
    theirs = connections(peer_pid)
    ours = connections(pid)
    names = {end.getsockname() for end in theirs}
    try:
        yield [End(end) for end in ours if end.getpeername() in names]
    finally:
        for end in (*ours, *theirs):
            end.close()


def connections(pid: int) -> list[socket.socket]:
    """Every connected TCP socket of a process, as descriptors of our own: the caller closes them.

    Raises:
        OSError: see :func:`between`.
    """
    found = []
    pidfd = os.pidfd_open(pid)
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                is_socket = os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
            except FileNotFoundError:  # closed meanwhile
                continue
            fd = _taken(pidfd, int(name)) if is_socket else None
            if fd is not None:
                end = socket.socket(fileno=fd)
                if end.family in (socket.AF_INET, socket.AF_INET6) and _is_connected(end):
                    found.append(end)
                else:
                    end.close()
    except BaseException:
        for end in found:
            end.close()
        raise
    finally:
        os.close(pidfd)
    return found


def _taken(pidfd: int, number: int) -> int | None:
    """A descriptor of ours for another process's open file; None: it was closed meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.syscall(_PIDFD_GETFD, pidfd, number, 0))
    if fd >= 0:
        return fd
    code = ctypes.get_errno()
    if code == errno.EBADF:
        return None
    raise OSError(code, f"the system does not let us take a process's socket: {os.strerror(code)}")


def _is_connected(end: socket.socket) -> bool:
    try:
        end.getpeername()
    except OSError:
        return False
    return True
