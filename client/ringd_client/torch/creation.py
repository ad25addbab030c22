"""How a group comes to be: the world by a daemon, the others by agreement over torch's store."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import torch
import torch.distributed as dist

from ringd.errors import (
    CollectiveMismatchError,
    ConfigError,
    InvalidArgumentError,
    RingdError,
)
from ringd_client._calls import Place
from ringd_client._core import Operation
from ringd_client._environment import daemon_socket_or_none
from ringd_client.communicator import Communicator, connect
from ringd_client.torch import store as stores
from ringd_client.torch.daemon import OwnDaemon
from ringd_client.torch.errors import for_torch
from ringd_client.torch.options import Options
from ringd_client.torch.process_group import RingdProcessGroup

OLDEST: Final = (2, 9)
NEWEST: Final = (2, 13)
"""The versions of torch that were tried."""

_worlds: Final[list[Communicator]] = []
"""The connection to our daemon that stands, if any; there may be an own one for a group."""


def create(opts: Any, pg_options: Any) -> RingdProcessGroup:
    """For torch: the process group of this rank.

    Args:
        opts: torch's _DistributedBackendOptions.
        pg_options: what the script passed.

    Raises:
        RendezvousError: somebody did not come in time; it says who.
        RingdError: a twin of it, as all errors here.
    """
    try:
        _check_version()
        options = Options.of(pg_options)
        timeout_s = opts.timeout.total_seconds()
        world = _world_of(tuple(opts.global_ranks_in_group))
        if world is None:
            comm = _open_world(opts.store, opts.group_rank, opts.group_size, timeout_s, options)
        else:
            comm = _open_group(world, opts.store, tuple(opts.global_ranks_in_group), timeout_s)
    except RingdError as exc:
        raise for_torch(exc) from exc.__cause__
    comm._membership = replace(comm._membership, timeout_s=timeout_s)
    return RingdProcessGroup(comm, opts.store, options)


def _check_version() -> None:
    """Refuse what is too old to have the interfaces, and say once what is newer than we know."""
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    version = tuple(map(int, found.groups())) if found else OLDEST
    if version < OLDEST:
        raise ConfigError(
            f"the backend ringd needs torch {'.'.join(map(str, OLDEST))} or newer; this is "
            f"{torch.__version__}"
        )
    if version > NEWEST:
        warnings.warn(
            f"the backend ringd was tried with torch up to {'.'.join(map(str, NEWEST))}; this is "
            f"{torch.__version__}. If a call fails in an odd way, say so to its maintainers",
            stacklevel=2,
        )


# ---------------------------------------------------------------- the world


def _world_of(ranks: Sequence[int]) -> Communicator | None:
    """The communicator whose ranks are those of torch's default group; None: there is none."""
    _worlds[:] = [comm for comm in _worlds if not comm.closed]
    if not ranks or not _worlds:
        return None
    default = dist.distributed_c10d._get_default_group()
    return default.comm if isinstance(default, RingdProcessGroup) else None


def _open_world(
    store: dist.Store, rank: int, size: int, timeout_s: float, options: Options
) -> Communicator:
    until = time.monotonic() + timeout_s
    socket = daemon_socket_or_none()
    own = None
    if socket is None:
        own = OwnDaemon.for_rank(store, rank, size, until)
        socket = str(own.socket)
    try:
        comm = connect(
            socket=socket,
            timeout_s=max(until - time.monotonic(), 0.001),
            arena_limit_bytes=options.arena_limit_bytes,
        )
    except RingdError as exc:
        if own is not None:
            own.explain(exc)
        raise
    if (comm.rank, comm.world_size) != (rank, size):
        place = f"rank {comm.rank} of {comm.world_size}"
        comm.close()
        raise ConfigError(
            f"the daemon at RINGD_SOCKET is that of {place}, and torch says that this is rank "
            f"{rank} of {size}. Start the script by `ringd run`, or by one launcher for both; or "
            "unset RINGD_SOCKET, then each rank starts its own daemon"
        )
    _worlds.append(comm)
    return comm


# ---------------------------------------------------------------- sub-groups


def _open_group(
    world: Communicator, store: dist.Store, ranks: tuple[int, ...], timeout_s: float
) -> Communicator:
    """Agree on a number with the other members, and have our daemon open the group.

    Raises:
        RendezvousError: a member did not come in time.
        CollectiveMismatchError: members do not agree who they are.
    """
    until = time.monotonic() + timeout_s
    world._state.admit()
    number = _agreed_number(world, store, ranks, until)
    operation: Operation[Any] = Operation("open a group", b"")
    operation.begin(time.monotonic(), max(until - time.monotonic(), 1.0))
    world._connection.post_open_group(operation, number, ranks)
    world._connection.finish(operation)
    world._state.open_group(number)
    place = Place(number, ranks.index(world.rank), ranks)
    return type(world)(world._connection, world._arena, world._membership, place)


def _agreed_number(
    world: Communicator, store: dist.Store, ranks: tuple[int, ...], until: float
) -> int:
    """The highest of the lowest numbers that the members have free."""
    if world.rank not in ranks:
        raise InvalidArgumentError(f"rank {world.rank} is none of {list(ranks)}")
    fresh = stores.fresh(store, len(ranks))
    members = ",".join(map(str, ranks))
    fresh.set(f"free/{world.rank}", f"{world._state.highest_group + 1} {members}")
    told = stores.gather(fresh, {rank: f"free/{rank}" for rank in ranks}, until)
    numbers = []
    for rank, text in told.items():
        free, _, theirs = text.partition(" ")
        if theirs != members:
            raise CollectiveMismatchError(
                f"members of a new group do not agree: rank {rank} has {theirs}, rank "
                f"{world.rank} has {members}",
                rank=rank,
            )
        numbers.append(int(free))
    return max(numbers)


