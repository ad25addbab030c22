"""``init_method="ringd://"``: rank, size and address as whatever launcher tells them.

torch's own ``env://`` reads four variables that only torchrun sets. This reads those of Slurm, Open
MPI, MPICH, Kubernetes and ``ringd run`` as well; see :mod:`ringd_client._launch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlparse

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.distributed_c10d import default_pg_timeout

from ringd.config import environment
from ringd.errors import ConfigError
from ringd_client._launch import LAUNCHERS, launch_of
from ringd_client.torch.errors import for_torch


def rendezvous(url: str, timeout: timedelta | None) -> Iterator[tuple[Store, int, int]]:
    """For torch: a store on rank 0's host, our rank and the number of ranks.

    Args:
        url: "ringd://", or "ringd://host:port" where the launcher does not say where rank 0 is.

    Raises:
        ConfigError: no launcher that we know, or it did not say where ranks meet.
    """
    place = urlparse(url)
    environ = environment.snapshot()
    launch = launch_of(environ)
    if launch is None:
        known = "; ".join(", ".join(needed) for needed, _ in LAUNCHERS)
        raise for_torch(
            ConfigError(
                f"no launcher told rank and world size. One of these sets is wanted: {known}"
            )
        )
    host, port = place.hostname or launch.host, place.port or launch.port
    if not host or not port:
        raise for_torch(
            ConfigError(
                f"{launch.launcher} does not say where rank 0 is: set MASTER_ADDR and MASTER_PORT, "
                'or use init_method="ringd://HOST:PORT"'
            )
        )
    agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store: Any = TCPStore(
        host,
        port,
        launch.world_size,
        is_master=launch.rank == 0 and not agent,
        timeout=timeout or default_pg_timeout,
        multi_tenant=True,
    )
    if agent:
        attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"/worker/attempt_{attempt}", store)
    yield store, launch.rank, launch.world_size
    raise for_torch(ConfigError("ringd:// can't meet a second time; call init_process_group again"))
