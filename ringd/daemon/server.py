"""The daemon's Unix socket: SEQPACKET, in a place that only its user can reach."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from ringd.config.folders import make_folders
from ringd.config.resources import exhausted
from ringd.daemon.node import Node
from ringd.daemon.session import Session
from ringd.errors import AddressInUseError, ConfigError, ResourceError
from ringd.observe.sockets import folder_lock
from ringd.wire import ipc

MAX_SESSIONS = 64
BREATH_S = 0.2


class ClientServer:
    """Accepts clients of one node."""

    def __init__(self, loop: asyncio.AbstractEventLoop, node: Node, path: Path) -> None:
        self._loop = loop
        self._node = node
        self.path = path
        self._sessions: set[Session] = set()
        self._sock = _listen(path)
        self._spare = _a_descriptor()
        loop.add_reader(self._sock.fileno(), self._acceptable)

    def _acceptable(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except (OSError, MemoryError) as exc:
            error = exhausted(exc, f"rank {self._node.rank}'s daemon", self._node.rank)
            if error is not None:
                self._turn_away(error)
            return
        sock.setblocking(False)
        if len(self._sessions) >= MAX_SESSIONS:
            sock.close()
            return
        try:
            self._sessions.add(Session(self._loop, sock, self._node, self))
        except MemoryError as exc:
            sock.close()
            self._node.log.error("a client is turned away: no memory (%s)", exc)

    def _turn_away(self, error: ResourceError) -> None:
        """Say that we can't serve a client: on the one descriptor that is kept for this."""
        self._node.log.error("a client is turned away: %s", error)
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        with contextlib.suppress(OSError):
            sock, _ = self._sock.accept()
            with sock:
                sock.setblocking(False)
                sock.send(ipc.pack(ipc.REFUSED, error.to_wire()))
        self._spare = _a_descriptor()
        if self._spare < 0:  # others took it: wait a little instead of spinning on readiness
            self._loop.remove_reader(self._sock.fileno())
            self._loop.call_later(BREATH_S, self._resume)

    def _resume(self) -> None:
        if self._sock.fileno() >= 0:
            if self._spare < 0:
                self._spare = _a_descriptor()
            self._loop.add_reader(self._sock.fileno(), self._acceptable)

    def session_ended(self, session: Session) -> None:
        """Called by a session."""
        self._sessions.discard(session)

    def close(self) -> None:
        """Say goodbye to all clients and remove the socket."""
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        for session in list(self._sessions):
            session.shut_down()
        with contextlib.suppress(OSError):
            self.path.unlink()


def _a_descriptor() -> int:
    """Any; -1: there is none left."""
    try:
        return os.open("/", os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return -1


def _listen(path: Path) -> socket.socket:
    """Bind, taking the place of a dead daemon's leftover but never of a living one's socket.

    Raises:
        AddressInUseError: a living daemon has this socket.
        ConfigError: the path can't be used.
    """
    try:
        make_folders(path.parent)
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
