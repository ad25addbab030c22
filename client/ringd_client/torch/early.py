"""What ``init_process_group("ringd")`` does before torch has found the other ranks.

Nothing here is needed for a group to come to be, and nothing raises: what goes wrong goes wrong
again where the group is made, and is told there.
"""

from __future__ import annotations

import contextlib
import inspect
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist
from torch.distributed.distributed_c10d import default_pg_timeout

from ringd.config import environment
from ringd.errors import RingdError
from ringd_client._environment import daemon_socket_or_none
from ringd_client.torch import daemon

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_LOOK_EVERY_S: Final = 0.01
_PATIENCE_S: Final = 5.0
_SHARE: Final = 0.1


@contextlib.contextmanager
def head_start(
    init: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[None]:
    """Start the daemon of this rank, if it has none; it ends again if it was not needed.

    Args:
        init: torch's function, which is called inside of this with ``args`` and ``kwargs``.
    """
    try:
        with contextlib.suppress(OSError, RingdError, TypeError, ValueError):
            asked = inspect.signature(init).bind(*args, **kwargs).arguments
            if not dist.is_initialized():
                if daemon_socket_or_none() is None:
                    daemon.start_ahead(holds_rendezvous=_rank(asked, environment.snapshot()) == 0)
                _await_store(asked, environment.snapshot())
        yield
    finally:
        daemon.drop_ahead()


def _await_store(asked: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    """Wait until rank 0 has opened torch's store on this host, looking often.

    A rank that comes before rank 0 would find it closed, and torch tries again only after 0.25 to
    0.75 s, in which all ranks would stand. This takes at most 5 s and a tenth of the timeout, which
    begins only after it.
    """
    place = _store_of_rank_0(asked, environ)
    timeout = asked.get("timeout") or default_pg_timeout
    if place is None or not isinstance(timeout, timedelta):
        return
    until = time.monotonic() + min(_PATIENCE_S, _SHARE * timeout.total_seconds())
    while time.monotonic() < until:
        try:
            socket.create_connection(place, timeout=1.0).close()
        except ConnectionRefusedError:
            time.sleep(_LOOK_EVERY_S)
        else:
            return


def _store_of_rank_0(
    asked: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[str, int] | None:
    """Where rank 0 opens the store, if that is another process of this host."""
    by_environment = (asked.get("init_method") or "env://").startswith("env://")
    if not by_environment or asked.get("store") is not None:
        return None
    rank = _rank(asked, environ)
    host, port = environ.get("MASTER_ADDR", ""), int(environ.get("MASTER_PORT") or 0)
    stands_already = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if rank <= 0 or host not in _LOOPBACK or not port or stands_already:
        return None
    return host, port


def _rank(asked: Mapping[str, Any], environ: Mapping[str, str]) -> int:
    """Ours, as far as the script or its environment says; else 0."""
    rank = asked.get("rank", -1)
    return rank if rank >= 0 else int(environ.get("RANK") or 0)
