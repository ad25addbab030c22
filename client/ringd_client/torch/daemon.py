"""A daemon of our own, where nobody has started one.

Each rank starts its daemon; that of rank 0 is the rendezvous too. They watch this process and end
after it, however it ends; until then they stand, for the next ``init_process_group``.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from ringd.config import environment
from ringd.config.folders import make_folders
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
    def for_rank(cls, meeting: Store, rank: int, size: int, until: float) -> Self:
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
            meeting.set("plan", json.dumps(plan))
        else:
            plan = json.loads(stores.gather(meeting, {0: "plan"}, until)[0])
        if standing is None or plan["job"] != standing.place[0]:
            if _own is not None:
                _own.end()
            _own = standing = _started(plan, rank, size, until)
        return standing  # type: ignore[return-value]

    def serves(self, rank: int, size: int) -> bool:
        """Whether it lives, and is ours and in this place."""
        alive = self.owner == os.getpid() and self.process.poll() is None
        return alive and self.place[1:] == (rank, size)

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


def _started(plan: dict[str, Any], rank: int, size: int, until: float) -> OwnDaemon:
    folder = environment.runtime_dir(environment.snapshot()) / plan["job"]
    path = folder / f"{rank}.sock"
    left_s = max(until - time.monotonic(), 1.0)
    process = _start(
        plan,
        world_size=size,
        rank=rank,
        embed_rendezvous=rank == 0,
        socket=path,
        join_timeout_s=min(left_s, 86400.0),
        dump_dir=_dumps(),
    )
    own = OwnDaemon((plan["job"], rank, size), path, process, os.getpid())
    while not path.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    return own


def _dumps() -> Path | None:
    """Where flight recorders go; None: where the settings say."""
    given = environment.snapshot()
    if given.get(environment.variable("dump_dir")):
        return Path(given[environment.variable("dump_dir")])
    folder = environment.runtime_dir(given) / "last-failure"
    with contextlib.suppress(OSError, ConfigError):
        make_folders(folder)
    return folder


def _start(plan: dict[str, Any], **settings: Any) -> subprocess.Popen[bytes]:
    """A daemon that ends after this process."""
    given = environment.snapshot()
    settings["log_level"] = given.get(environment.variable("log_level")) or LOG_LEVEL
    if "secret" in plan:
        settings |= {"secret": plan["secret"], "secret_file": None}
    env = environment.for_child(
        given,
        job_id=plan["job"],
        rendezvous=plan["rendezvous"],
        parent_pid=os.getpid(),
        **settings,
    )
    env["PYDANTIC_DISABLE_PLUGINS"] = "__all__"  # it would look for some in every package
    return subprocess.Popen(
        [sys.executable, "-m", "ringd.cli.child_daemon"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=env,
        start_new_session=True,  # Ctrl-C is for the script, which says goodbye
    )
