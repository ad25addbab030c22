"""Finding the daemons that run on this machine, and asking them over their Unix sockets."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ringd.config.loader import DEFAULT, Loaded
from ringd.errors import DaemonLostError, InvalidArgumentError, RingdError, from_wire
from ringd.observe.sockets import remove_dead
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
            raise DaemonLostError("the daemon closed the connection; its log says why")
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
        raise DaemonLostError(
            f"no daemon answers at {path}: {exc}. See that it runs, and what its log says",
            socket=str(path),
        ) from None


def find_one(loaded: Loaded) -> Path:
    """The socket that was asked for; else that of the job's first daemon here.

    Raises:
        DaemonLostError: no daemon runs here, or none that was asked for.
        InvalidArgumentError: there are several jobs; names them.
    """
    path = loaded.socket_path
    if loaded.settings.socket is not None or (path.is_socket() and not remove_dead(path)):
        return path
    return find_all(loaded)[0]


def find_all(loaded: Loaded) -> list[Path]:
    """The sockets of all daemons of a job on this machine; of one rank, where it was given.

    Sockets at which nobody listens, left by daemons that were killed, are removed.

    Raises:
        DaemonLostError: no daemon runs here, or none that was asked for.
        InvalidArgumentError: there are several jobs; names them.
    """
    if loaded.settings.socket is not None:
        return [loaded.settings.socket]
    living = _living(loaded)
    found = living
    if loaded.origin["job_id"] != DEFAULT:
        found = [p for p in found if _job_of(p) == loaded.settings.job_id]
    if loaded.settings.rank is not None:
        found = [p for p in found if _rank_of(p) == str(loaded.settings.rank)]
    if not found:
        raise DaemonLostError(_none_found(loaded, living))
    if len({(p.parent, _job_of(p)) for p in found}) > 1:
        raise InvalidArgumentError(
            f"which job? Give --job-id NAME, or --socket PATH; here run: {_listed(found)}"
        )
    return found


def check_rank(loaded: Loaded, path: Path, rank: int) -> None:
    """See that the daemon at ``path``, which says that it is ``rank``'s, is the one asked for.

    Raises:
        InvalidArgumentError: --rank says another one.
    """
    asked = loaded.settings.rank
    if loaded.origin["rank"] == "flag" and asked != rank:
        raise InvalidArgumentError(
            f"--rank is {asked}, but the daemon at {path} is that of rank {rank}; give one of "
            "--rank and --socket"
        )


def _living(loaded: Loaded) -> list[Path]:
    """``ringd run`` has a folder per job; daemons that were started singly share one."""
    found = [*loaded.runtime_dir.glob("*/*.sock"), *loaded.runtime_dir.glob("*.sock")]
    living = [path for path in found if not remove_dead(path)]
    return sorted(living, key=lambda path: (len(str(path)), path))


def _job_of(path: Path) -> str:
    """JOB-RANK.sock, or JOB/RANK.sock."""
    return path.stem.rpartition("-")[0] or path.parent.name


def _rank_of(path: Path) -> str:
    return path.stem.rpartition("-")[2]


def _none_found(loaded: Loaded, living: list[Path]) -> str:
    if not living:
        return (
            f"no job is running here: no daemon listens in {loaded.runtime_dir}. A daemon with a "
            "--socket of its own is asked by that, for each rank its own: this command with "
            "--socket PATH"
        )
    asked = loaded.settings
    job = f" of job {asked.job_id}" if loaded.origin["job_id"] != DEFAULT else ""
    whose = "" if asked.rank is None else f" of rank {asked.rank}"
    return f"no daemon{whose}{job} runs here; here run: {_listed(living)}"


def _listed(paths: list[Path]) -> str:
    """The jobs, each with its ranks and a socket."""
    jobs: dict[tuple[Path, str], list[Path]] = {}
    for path in paths:
        jobs.setdefault((path.parent, _job_of(path)), []).append(path)
    return "; ".join(
        f"{name} (ranks {', '.join(map(_rank_of, of_job))}: {of_job[0]})"
        if len(of_job) > 1
        else f"{name} (rank {_rank_of(of_job[0])}: {of_job[0]})"
        for (_, name), of_job in jobs.items()
    )
