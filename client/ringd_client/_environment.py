"""What the client takes from the environment."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ringd.config import environment
from ringd.config.resources import exhausted
from ringd.errors import ConfigError, ResourceError
from ringd_client._launch import launch_of

DEFAULT_JOB = "default"
_YES = ("1", "true", "t", "yes", "y", "on")
_NO = ("0", "false", "f", "no", "n", "off")
"""As the daemon reads its own settings."""


def daemon_socket_or_none() -> str | None:
    """The path of this rank's daemon's socket, if the environment tells of one.

    It is RINGD_SOCKET; else, where RINGD_JOB_ID is set and a launcher says our rank, the socket
    that the daemon of this job and rank has made where it makes it unasked.
    """
    environ = environment.snapshot()
    if path := environ.get(environment.variable("socket")):
        return path
    standing = _default_socket()
    is_named = bool(environ.get(environment.variable("job_id")))
    return str(standing) if is_named and standing is not None and standing.is_socket() else None


def daemon_socket() -> str:
    """The path of this rank's daemon's socket.

    As :func:`daemon_socket_or_none`, but the job may be the unnamed one, and the daemon need not
    listen yet.

    Raises:
        ConfigError: neither RINGD_SOCKET nor a launcher says which daemon is ours.
    """
    path = daemon_socket_or_none() or _default_socket()
    if path is None:
        name = environment.variable("socket")
        raise ConfigError(
            f"no daemon to connect to: {name} is not set. Start the program with "
            "`ringd run -n 4 -- python train.py`, or pass connect(socket=...) the path "
            "that `ringd daemon` prints"
        )
    return str(path)


def _default_socket() -> Path | None:
    """Where a daemon of our job and rank listens unless it is told otherwise."""
    environ = environment.snapshot()
    launch = launch_of(environ)
    if launch is None:
        return None
    job = environ.get(environment.variable("job_id")) or DEFAULT_JOB
    return environment.runtime_dir(environ) / f"{job}-{launch.rank}.sock"


def adopts_storages() -> bool:
    """Whether RINGD_ADOPT_STORAGES leaves it on that torch's storages are moved; unset: it does.

    Raises:
        ConfigError: it is neither true nor false.
    """
    name = environment.variable("adopt_storages")
    text = environment.snapshot().get(name, "").strip()
    if text.lower() in _YES or not text:
        return True
    if text.lower() in _NO:
        return False
    raise ConfigError(
        f"{name} = {text!r}: allowed: true or false", key="adopt_storages", value=text
    )


def out_of(error: BaseException, rank: int | None = None) -> ResourceError | None:
    """What this process has run out of, where ``error`` says that it has; ``rank``: its own, else
    what a launcher says."""
    with contextlib.suppress(ConfigError, MemoryError):
        launch = launch_of(environment.snapshot()) if rank is None else None
        rank = rank if launch is None else launch.rank
    whose = "this program" if rank is None else f"rank {rank}'s trainer"
    return exhausted(error, f"{whose} (process {os.getpid()})", rank)
