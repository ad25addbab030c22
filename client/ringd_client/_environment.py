"""What the client takes from the environment."""

from __future__ import annotations

from ringd.config import environment
from ringd.errors import ConfigError


def daemon_socket_or_none() -> str | None:
    """The path of the daemon's socket, if RINGD_SOCKET is set."""
    return environment.snapshot().get(environment.variable("socket")) or None


def daemon_socket() -> str:
    """The path of the daemon's socket, from RINGD_SOCKET.

    Raises:
        ConfigError: it is not set.
    """
    name, path = environment.variable("socket"), daemon_socket_or_none()
    if path is None:
        raise ConfigError(
            f"no daemon to connect to: {name} is not set. Start the program with "
            "`ringd run -n 4 -- python train.py`, or pass connect(socket=...) the path "
            "that `ringd daemon` prints"
        )
    return path
