"""A daemon of our own, where nobody has started one.

Each rank starts its daemon; that of rank 0 is the rendezvous too. They watch this process and end
after it, however it ends; until then they stand, for the next ``init_process_group``.

The process is started ahead (:func:`start_ahead`): it imports what it needs while the ranks still
look for each other, and is told its place when they have met.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from ringd.config import environment
from ringd.config.loader import DEFAULT, load
from ringd.config.values import HostPort, Secret
from ringd.errors import ConfigError, DaemonLostError, RendezvousError, RingdError
from ringd.wire import advice
from ringd_client._environment import out_of
from ringd_client._launch import Launch, launch_of
from ringd_client.torch import store as stores
from ringd_client.torch.child import Child

LOG_LEVEL: Final = "warning"
"""Of the processes that we start: they write to the script's standard error."""
_LAST_MOMENTS_S: Final = 2.0
_log = logging.getLogger("ringd.client")


@dataclass(slots=True)
class OwnDaemon:
    """This process's daemon.

    Attributes:
        place: its job, rank and world size; what a standing one must have to serve again.
        socket: where it listens for us.
    """

    place: tuple[str, int, int]
    socket: Path
    child: Child

    @classmethod
    def for_rank(cls, meeting: Store, rank: int, size: int, until: float) -> OwnDaemon:
        """The daemon for a world: the one that stands, if all ranks have theirs; else a new one.

        Args:
            meeting: a part of torch's store that nobody has written to.
            until: on the monotonic clock.

        Raises:
            RendezvousError: rank 0 did not come in time.
            ConfigError: a RINGD_ variable or the settings file is no good.
            ResourceError: there is no room for it.
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
        return self.child.lives and self.place[1:] == (rank, size)

    def listens(self, until: float) -> None:
        """Wait until it has made its socket, or has ended; at most until then."""
        while not self.socket.exists() and not self.has_ended() and time.monotonic() < until:
            time.sleep(0.002)

    def has_ended(self) -> bool:
        """Whether nobody can come to listen there any more."""
        return not self.child.lives

    def explain(self, error: RingdError) -> None:
        """Add to an error of connecting what became of the daemon.

        Raises:
            RendezvousError: it has ended.
        """
        process = self.child.process
        if isinstance(error, DaemonLostError):
            with contextlib.suppress(subprocess.TimeoutExpired):  # its socket closes before it ends
                process.wait(_LAST_MOMENTS_S)
        code = process.poll()
        if code is not None:
            words = advice.of_own_daemon(self.child.last_words())
            self.child.words.close()
            why = f": {words}" if words else f"; its standard error says why ({error})"
            raise RendezvousError(
                f"the daemon that this rank started has ended with exit code {code}{why}",
                exit_code=code,
            ) from (None if words else error)

    def answered(self) -> None:
        """It serves us: from now on its socket says when it ends."""
        self.child.words.close()

    def end(self) -> None:
        """Tell it to end, if it is ours."""
        self.child.words.close()
        if self.child.lives:
            self.child.process.terminate()


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
        raise out_of(exc) or ConfigError(
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


_ahead: Child | None = None


def start_ahead(*, holds_rendezvous: bool) -> None:
    """Start the process that is to be this rank's daemon, unless one stands already.

    Args:
        holds_rendezvous: it most likely will.

    Raises:
        ResourceError, OSError: it can't be started.
    """
    global _ahead
    stands = _own is not None and _own.child.lives
    if not stands and (_ahead is None or not _ahead.is_ours):
        _ahead = Child.start(holds_rendezvous=holds_rendezvous)


def drop_ahead() -> None:
    """End the process that was started ahead, if it is ours and was not needed."""
    global _ahead
    if _ahead is not None and _ahead.is_ours:
        _ahead.drop()
    _ahead = None


def _told(plan: dict[str, Any], rank: int, size: int, until: float) -> OwnDaemon:
    """The daemon of a place; it need not listen yet."""
    loaded = load({}, environ=environment.snapshot())
    for text in loaded.warnings() if rank == 0 else ():
        _log.warning("%s", text)
    path = loaded.runtime_dir / plan["job"] / f"{rank}.sock"
    place: dict[str, object] = {
        "parent_pid": os.getpid(),
        "job_id": plan["job"],
        "rendezvous": HostPort.parse_with_port(plan["rendezvous"]),
        "world_size": size,
        "rank": rank,
        "embed_rendezvous": rank == 0,
        "socket": path,
        "join_timeout_s": min(max(until - time.monotonic(), 1.0), 86400.0),
    }
    if loaded.origin["log_level"] == DEFAULT:
        place["log_level"] = LOG_LEVEL
    if "secret" in plan:
        place |= {"secret": Secret(plan["secret"]), "secret_file": None}
    placed = loaded.placed(**place)
    child = _child()
    child.tell(placed)
    return OwnDaemon((plan["job"], rank, size), path, child)


def _child() -> Child:
    """The process that was started ahead, if it is there."""
    global _ahead
    ahead, _ahead = _ahead, None
    return ahead if ahead is not None and ahead.lives else Child.start()
