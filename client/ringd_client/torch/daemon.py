"""A daemon of our own, where nobody has started one.

Each rank starts its daemon; that of rank 0 is the rendezvous too. They watch this process and end
after it, however it ends; until then they stand, for the next ``init_process_group``.

The process is started ahead (:func:`start_ahead`): it imports what it needs while the ranks still
look for each other, and is told its place when they have met.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from ringd.config import environment
from ringd.errors import ConfigError, RendezvousError, RingdError
from ringd_client._launch import Launch, launch_of
from ringd_client.torch import store as stores

LOG_LEVEL: Final = "warning"
"""Of the processes that we start: they write to the script's standard error."""


@dataclass(slots=True)
class OwnDaemon:
    """This process's daemon.

    Attributes:
        place: its job, rank and world size; what a standing one must have to serve again.
        socket: where it listens for us.
        owner: the process that started it.
    """

    place: tuple[str, int, int]
    socket: Path
    process: subprocess.Popen[bytes]
    owner: int

    @classmethod
    def for_rank(cls, meeting: Store, rank: int, size: int, until: float) -> OwnDaemon:
        """The daemon for a world: the one that stands, if all ranks have theirs; else a new one.

        Args:
            meeting: a part of torch's store that nobody has written to.
            until: on the monotonic clock.

        Raises:
            RendezvousError: rank 0 did not come in time.
        """
        global _own
        standing = _own if _own is not None and _own.serves(rank, size) else None
        meeting.set(f"stands/{rank}", "" if standing is None else standing.place[0])
        if rank == 0:
            plan = _plan(meeting, standing, size, until)
        else:
            plan = json.loads(stores.gather(meeting, {0: "plan"}, until)[0])
        if standing is None or plan["job"] != standing.place[0]:
            if _own is not None:
                _own.end()
            _own = standing = _told(plan, rank, size, until)
        if rank == 0:  # only now: the others look for what our daemon is to be
            meeting.set("plan", json.dumps(plan))
        standing.listens(until)
        return standing

    def serves(self, rank: int, size: int) -> bool:
        """Whether it lives, and is ours and in this place."""
        alive = self.owner == os.getpid() and self.process.poll() is None
        return alive and self.place[1:] == (rank, size)

    def listens(self, until: float) -> None:
        """Wait until it has made its socket, or has ended; at most until then."""
        while not self.socket.exists() and self.process.poll() is None and time.monotonic() < until:
            time.sleep(0.002)

    def explain(self, error: RingdError) -> None:
        """Add to an error of connecting what became of the daemon.

        Raises:
            RendezvousError: it has ended.
        """
        code = self.process.poll()
        if code is not None:
            raise RendezvousError(
                f"the daemon that this rank started has ended with exit code {code}; what it "
                f"wrote to standard error says why ({error})",
                exit_code=code,
            ) from error

    def end(self) -> None:
        """Tell it to end, if it is ours."""
        if self.owner == os.getpid() and self.process.poll() is None:
            self.process.terminate()


_own: OwnDaemon | None = None


def _plan(store: Store, standing: OwnDaemon | None, size: int, until: float) -> dict[str, Any]:
    """For rank 0: where all meet; a new place, unless all daemons stand."""
    if standing is not None:
        jobs = stores.gather(store, {rank: f"stands/{rank}" for rank in range(size)}, until)
        if set(jobs.values()) == {standing.place[0]}:
            return {"job": standing.place[0]}
    job = f"torch-{secrets.token_hex(4)}"
    plan = {"job": job, "rendezvous": _free_address(store)}
    given = environment.snapshot()
    if not any(given.get(environment.variable(name)) for name in ("secret", "secret_file")):
        plan["secret"] = secrets.token_hex(32)
    return plan


def _free_address(store: Store) -> str:
    """Where the rendezvous can listen, and the others reach it.

    The port may be taken by somebody else before it does; then the daemons say so.

    Raises:
        ConfigError: rank 0 is not where the others look for it.
    """
    host = _host(launch_of(environment.snapshot()), store)
    try:
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((host, 0))
            except OSError:  # a service's address, say: then ours on the way there
                probe.bind((_local_address(family, host), 0))
            host, port = probe.getsockname()[:2]
    except OSError as exc:
        raise ConfigError(
            f"rank 0 has no address at which its daemon could be reached: {host}, where the ranks "
            f"meet, is none of this host's ({exc}). Set MASTER_ADDR to an address of rank 0's host"
        ) from exc
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _host(launch: Launch | None, store: Store) -> str:
    """Where rank 0 is, as the launcher says, else as torch's store is reached."""
    if launch is not None and (launch.on_one_host or launch.host):
        return "127.0.0.1" if launch.on_one_host else launch.host
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store.host if isinstance(store, TCPStore) else "127.0.0.1"


def _local_address(family: int, host: str) -> str:
    """Our own address on the way to a host; nothing is sent."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])


# ---------------------------------------------------------------- processes


@dataclass(slots=True)
class _Ahead:
    """A process that waits to be told which daemon it is.

    Attributes:
        owner: the process that started it.
    """

    process: subprocess.Popen[bytes]
    owner: int

    @classmethod
    def start(cls) -> Self:
        env = environment.for_child(environment.snapshot(), parent_pid=os.getpid())
        env.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's: threads that nobody here needs
        process = subprocess.Popen(
            [sys.executable, "-m", "ringd.cli.child_daemon", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=env,
            start_new_session=True,  # Ctrl-C is for the script, which says goodbye
        )
        return cls(process, os.getpid())

    def tell(self, settings: Mapping[str, object]) -> None:
        """Have it be the daemon of these settings; None: without this one."""
        assert self.process.stdin is not None
        texts = {name: None if v is None else str(v) for name, v in settings.items()}
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
            pipe.write(json.dumps(texts).encode() + b"\n")

    def drop(self) -> None:
        """Have it end; it is nobody yet."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


_ahead: _Ahead | None = None


def start_ahead() -> None:
    """Start the process that is to be this rank's daemon, unless one stands already.

    Raises:
        OSError: it can't be started.
    """
    global _ahead
    stands = _own is not None and _own.owner == os.getpid() and _own.process.poll() is None
    if not stands and (_ahead is None or _ahead.owner != os.getpid()):
        _ahead = _Ahead.start()


def drop_ahead() -> None:
    """End the process that was started ahead, if it is ours and was not needed."""
    global _ahead
    if _ahead is not None and _ahead.owner == os.getpid():
        _ahead.drop()
    _ahead = None


def _told(plan: dict[str, Any], rank: int, size: int, until: float) -> OwnDaemon:
    """The daemon of a place; it need not listen yet."""
    global _ahead
    ahead, _ahead = _ahead, None
    if ahead is None or ahead.owner != os.getpid() or ahead.process.poll() is not None:
        ahead = _Ahead.start()
    folder = environment.runtime_dir(environment.snapshot()) / plan["job"]
    path = folder / f"{rank}.sock"
    given = environment.snapshot()
    settings: dict[str, object] = {
        "job_id": plan["job"],
        "rendezvous": plan["rendezvous"],
        "world_size": size,
        "rank": rank,
        "embed_rendezvous": rank == 0,
        "socket": path,
        "join_timeout_s": min(max(until - time.monotonic(), 1.0), 86400.0),
        "log_level": given.get(environment.variable("log_level")) or LOG_LEVEL,
    }
    if "secret" in plan:
        settings |= {"secret": plan["secret"], "secret_file": None}
    ahead.tell(settings)
    return OwnDaemon((plan["job"], rank, size), path, ahead.process, os.getpid())
