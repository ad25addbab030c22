"""Which ranks are late: the equal of ``dist.monitored_barrier``, which torch ties to gloo."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ringd.errors import InvalidArgumentError, RingdError
from ringd_client.torch.errors import for_torch
from ringd_client.torch.identity import Identity


def monitored_barrier(
    group: dist.ProcessGroup | Identity | None = None,
    timeout: timedelta | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Be done when every rank has come here; else say which have not.

    Args:
        group: of the backend ringd; default: the default group.
        timeout: default: that of the group.
        wait_all_ranks: for torch's signature; all late ranks are always named.

    Raises:
        CollectiveTimeoutError: (a DistBackendError) somebody is late. Its field ``culprits`` has
            the ranks (of the default group), ``stacks`` where they are instead.
        RingdError: as ``dist.barrier``.
    """
    backend: Any = group if group is not None else dist.group.WORLD
    if not isinstance(backend, Identity):
        raise for_torch(
            InvalidArgumentError(
                "monitored_barrier of ringd_client is for a group of the backend ringd; of others, "
                "dist.monitored_barrier"
            )
        )
    limit_s = None if timeout is None else timeout.total_seconds()
    try:
        backend.comm.barrier(timeout_s=limit_s)
    except RingdError as exc:
        raise for_torch(exc) from exc.__cause__
