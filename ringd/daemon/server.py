"""The daemon's Unix socket: SEQPACKET, in a place that only its user can reach."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from ringd.daemon.node import Node
from ringd.daemon.session import Session
from ringd.errors import AddressInUseError, ConfigError
from ringd.observe.sockets import folder_lock

MAX_SESSIONS = 64


class ClientServer:
    """Accepts clients of one node."""

    def __init__(self, loop: asyncio.AbstractEventLoop, node: Node, path: Path) -> None:
        self._loop = loop
        self._node = node
        self.path = path
        self._sessions: set[Session] = set()
        self._sock = _listen(path)
        loop.add_reader(self._sock.fileno(), self._acceptable)

    def _acceptable(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except OSError:
            return
        sock.setblocking(False)
        if len(self._sessions) >= MAX_SESSIONS:
            sock.close()
            return
        self._sessions.add(Session(self._loop, sock, self._node, self))

    def session_ended(self, session: Session) -> None:
        """Called by a session."""
        self._sessions.discard(session)

    def close(self) -> None:
        """Say goodbye to all clients and remove the socket."""
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        for session in list(self._sessions):
            session.shut_down()
        with contextlib.suppress(OSError):
            self.path.unlink()


def _listen(path: Path) -> socket.socket:
    """Bind, taking the place of a dead daemon's leftover but never of a living one's socket.

    Raises:
        AddressInUseError: a living daemon has this socket.
        ConfigError: the path can't be used.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as exc:
        raise ConfigError(
            f"the folder of the socket {path} can't be made: {exc}; choose another socket"
        ) from None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        with _lock(path.parent):
            _bind(sock, path)
        return sock
    except OSError as exc:
        sock.close()
        if exc.errno == errno.EADDRINUSE:
            raise AddressInUseError(
                f"the socket {path} is taken by another process; choose another"
            ) from None
        raise ConfigError(f"the socket {path} can't be made: {exc}; choose another") from None
    except BaseException:
        sock.close()
        raise


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """The folder's lock, so that nobody takes a socket that does not listen yet for a dead one;
    none where the file system has no locks, as nobody removes anything there."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            held.enter_context(folder_lock(folder))
        yield


def _bind(sock: socket.socket, path: Path) -> None:
    """Bind and listen, in the place of a dead daemon's socket if there is one."""
    if path.is_socket():
        _remove_dead(path)
    old_mask = os.umask(0o177)
    try:
        sock.bind(str(path))
    finally:
        os.umask(old_mask)
    sock.listen(MAX_SESSIONS)


def _remove_dead(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise AddressInUseError(f"the socket {path} is served by a living daemon; choose another")
