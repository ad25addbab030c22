"""How a group comes to be: the world by a daemon, the others by agreement over torch's store."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from ringd.errors import ConfigError, RingdError
from ringd.wire import ipc
from ringd.wire.bounds import Bound
from ringd_client._calls import Place
from ringd_client._environment import daemon_socket_or_none
from ringd_client._operation import Question
from ringd_client.communicator import Communicator, connect_to
from ringd_client.torch import store as stores
from ringd_client.torch.daemon import OwnDaemon
from ringd_client.torch.errors import for_torch
from ringd_client.torch.options import Options
from ringd_client.torch.process_group import RingdProcessGroup


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
        options = Options.of(pg_options)
        timeout_s = opts.timeout.total_seconds()
        until = time.monotonic() + timeout_s
        ranks = tuple(opts.global_ranks_in_group)
        world = _world() if ranks else None
        if world is None:
            meeting: Store = stores.fresh(opts.store, opts.group_size)
            place = (opts.group_rank, opts.group_size)
            comm = _open_world(meeting, *place, timeout_s, until, options)
        else:
            meeting = world.meeting
            comm = _open_group(world, ranks, timeout_s, until)
    except RingdError as exc:
        raise for_torch(exc) from exc.__cause__
    return _group_class()(comm, opts.store, meeting, options)


def _group_class() -> type[RingdProcessGroup]:
    """Where torch has no support for GPUs nobody pays for looking whether a tensor is on one."""
    is_built: Any = torch.backends.cuda.is_built
    if not is_built():
        return RingdProcessGroup
    from ringd_client.torch.staging import StagedProcessGroup

    return StagedProcessGroup


# ---------------------------------------------------------------- the world


def _world() -> RingdProcessGroup | None:
    """torch's default group, if it is one of ours."""
    default: Any = dist.distributed_c10d._get_default_group()
    return default if isinstance(default, RingdProcessGroup) else None


def _open_world(
    meeting: Store, rank: int, size: int, timeout_s: float, until: float, options: Options
) -> Communicator:
    """Connect to the daemon that there is, or to one of our own."""
    socket = daemon_socket_or_none()
    own = None
    if socket is None:
        own = OwnDaemon.for_rank(meeting, rank, size, until)
        socket = str(own.socket)
    try:
        comm = connect_to(
            socket,
            timeout_s=max(until - time.monotonic(), 0.001),
            default_timeout_s=timeout_s,
            arena_limit_bytes=options.arena_limit_bytes,
            has_ended=None if own is None else own.has_ended,
        )
    except RingdError as exc:
        if own is not None:
            own.explain(exc)
        raise
    if own is not None:
        own.answered()
    if (comm.rank, comm.world_size) != (rank, size):
        place = f"rank {comm.rank} of {comm.world_size}"
        comm.close()
        raise ConfigError(
            f"the daemon at RINGD_SOCKET is that of {place}, and torch says that this is rank "
            f"{rank} of {size}. Start the script by `ringd run`, or by one launcher for both; or "
            "unset RINGD_SOCKET, then each rank starts its own daemon"
        )
    return comm


# ---------------------------------------------------------------- sub-groups


def _open_group(
    world: RingdProcessGroup, ranks: tuple[int, ...], timeout_s: float, until: float
) -> Communicator:
    """Agree on a number with the other members, and have our daemon open the group.

    Raises:
        RendezvousError: a member did not come in time, or has other members in mind.
    """
    comm = world.comm
    epoch = comm.epoch
    comm._state.admit_call(0, epoch)
    number = _agreed_number(comm, world.meeting, ranks, until)
    members = tuple(comm.ranks[rank] for rank in ranks)
    question = Question("open a group", ipc.OPEN_GROUP, number, members)
    question.begin(time.monotonic(), Bound(max(until - time.monotonic(), 1.0)))
    comm._connection.post(question)
    comm._connection.finish(question)
    comm._state.open_group(number, epoch)
    place = Place(number, ranks.index(comm.rank), members)
    return type(comm)(comm._connection, comm._arena, comm._membership, place, timeout_s)


def _agreed_number(comm: Communicator, meeting: Store, ranks: tuple[int, ...], until: float) -> int:
    """The highest of the lowest numbers that the members have free.

    They meet by their ranks: torch's names of groups can differ between ranks.
    """
    of_members = PrefixStore("-".join(map(str, ranks)), meeting)
    fresh = stores.fresh(of_members, len(ranks))
    fresh.set(f"free/{comm.rank}", str(comm._state.highest_group + 1))
    told = stores.gather(fresh, {rank: f"free/{rank}" for rank in ranks}, until)
    return max(int(number) for number in told.values())
