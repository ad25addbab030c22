"""Binomial trees over one chunk: ceil(log2 N) rounds up to a root, and as many down from it.

Ranks are counted from the root, so that any rank can be one. A rank's parent is itself without
its lowest set bit; its children are itself with one lower bit set.
"""

from __future__ import annotations

from ringd.schedules.model import Recv, Round, Schedule, Send


def all_reduce(rank: int, world_size: int, *, widened: bool) -> Schedule:
    """Reduce to rank 0, then broadcast: 2 ceil(log2 N) steps.

    The busiest rank sends T ceil(log2 N) bytes.

    Args:
        widened: what goes up travels as float32 (2T for 16-bit types); what comes down does not.
    """
    return Schedule(
        collective="all_reduce",
        algorithm="tree",
        rank=rank,
        world_size=world_size,
        n_chunks=1,
        rounds=_up(rank, world_size, widened) + _down(rank, world_size, root=0),
        fold="round",
        owned=(0,) if rank == 0 else (),
    )


def broadcast(rank: int, world_size: int, *, root: int) -> Schedule:
    """The root's data to everybody: ceil(log2 N) steps, T ceil(log2 N) bytes at the root."""
    return Schedule(
        collective="broadcast",
        algorithm="tree",
        rank=rank,
        world_size=world_size,
        n_chunks=1,
        rounds=_down(rank, world_size, root),
    )


def _bits(world_size: int) -> list[int]:
    """1, 2, 4, ... below N: the distances that a binomial tree spans, the nearest first."""
    return [1 << level for level in range((world_size - 1).bit_length())]


def _up(rank: int, world_size: int, wide: bool) -> tuple[Round, ...]:
    """Children are reduced nearest first; rounds after one's own send to the parent are empty."""
    rounds = []
    for bit in _bits(world_size):
        if rank % bit:
            rounds.append(Round())
        elif rank & bit:
            rounds.append(Round(sends=(Send(rank - bit, 0, wide),)))
        elif rank + bit < world_size:
            rounds.append(Round(recvs=(Recv(rank + bit, 0, "reduce", wide),)))
        else:
            rounds.append(Round())
    return tuple(rounds)


def _down(rank: int, world_size: int, root: int) -> tuple[Round, ...]:
    """The same tree backwards: the farthest child first, as it has the most ranks below it."""
    place = (rank - root) % world_size
    rounds = []
    for bit in reversed(_bits(world_size)):
        if place % bit:
            rounds.append(Round())
        elif place & bit:
            rounds.append(Round(recvs=(Recv((rank - bit) % world_size, 0, "copy"),)))
        elif place + bit < world_size:
            rounds.append(Round(sends=(Send((rank + bit) % world_size, 0),)))
        else:
            rounds.append(Round())
    return tuple(rounds)
