"""Finding the daemons that run on this machine, and asking them over their Unix sockets."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ringd.config.loader import DEFAULT, Loaded
from ringd.errors import DaemonLostError, RingdError, from_wire
from ringd.wire import ipc

ANSWER_LIMIT_S = 5.0


class Conversation:
    """What is said with one daemon; all of it has one deadline, ANSWER_LIMIT_S from the start.

    Methods raise OSError when the deadline has passed, or the connection is no good.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._until = time.monotonic() + ANSWER_LIMIT_S

    def connect(self, path: Path) -> None:
        """Reach the daemon."""
        self._in_time().connect(str(path))

    def say(self, *message: Any) -> None:
        """Send one message."""
        self._in_time().send(ipc.pack(*message))

    def take(self, kind: int) -> list[Any]:
        """The next message, which must be of this kind.

        Raises:
            DaemonLostError: the daemon ended.
            RingdError: it refused us, or sent something else.
        """
        data = self._in_time().recv(ipc.MAX_MESSAGE_BYTES)
        if not data:
            raise DaemonLostError("the daemon closed the connection")
        message = ipc.unpack(data)
        if message[0] == ipc.REFUSED:
            raise from_wire(message[1])
        if message[0] != kind:
            raise RingdError(f"the daemon answered with a message of kind {message[0]}")
        return message

    def _in_time(self) -> socket.socket:
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left_s)
        return self._sock


@contextlib.contextmanager
def asking(path: Path) -> Iterator[Conversation]:
    """A connection to the daemon at ``path``, as one who only asks.

    Raises:
        DaemonLostError: it is not there, or (within the block, too) does not answer within 5 s.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            conversation = Conversation(sock)
            conversation.connect(path)
            conversation.say(ipc.HELLO, {"version": ipc.VERSION, "role": "observer"})
            conversation.take(ipc.WELCOME)
            yield conversation
    except OSError as exc:
        raise DaemonLostError(f"no daemon answers at {path}: {exc}", socket=str(path)) from None


def find_one(loaded: Loaded) -> Path:
    """The socket that was asked for; else one of the only job that runs here.

    Raises:
        DaemonLostError: there is none, or there are several jobs; says which sockets there are.
    """
    path = loaded.socket_path
    if path.is_socket() or loaded.settings.socket is not None:
        return path
    return _of_one_job(_living(loaded))[0]


def find_all(loaded: Loaded) -> list[Path]:
    """The sockets of all daemons of a job on this machine; of one rank, where it was given.

    Raises:
        DaemonLostError: there is none, or there are several jobs; says which sockets there are.
    """
    if loaded.settings.socket is not None:
        return [loaded.settings.socket]
    found = _living(loaded)
    if loaded.origin["job_id"] != DEFAULT:
        job = loaded.settings.job_id
        found = [p for p in found if p.parent.name == job or _job_of(p) == job]
    if loaded.settings.rank is not None:
        rank = str(loaded.settings.rank)
        found = [p for p in found if p.stem.rpartition("-")[2] == rank]
    return _of_one_job(found)


def _living(loaded: Loaded) -> list[Path]:
    """``ringd run`` has a folder per job; daemons that were started singly share one."""
    found = [*loaded.runtime_dir.glob("*/*.sock"), *loaded.runtime_dir.glob("*.sock")]
    return sorted(found, key=lambda path: (len(str(path)), path))


def _job_of(path: Path) -> str:
    job = path.stem.rpartition("-")[0]
    return job or str(path.parent)


def _of_one_job(found: list[Path]) -> list[Path]:
    if not found:
        raise DaemonLostError("no job is running here: no daemon's socket was found")
    if len({_job_of(path) for path in found}) > 1:
        there = ", ".join(map(str, found))
        raise DaemonLostError(f"which daemon? Give --socket PATH; sockets found here: {there}")
    return found
