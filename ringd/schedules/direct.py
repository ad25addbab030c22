"""Direct: rank r owns chunk r; every rank speaks to every owner, and every owner to all.

Two rounds whatever N is, and the order of the fold is ours to choose: rank order. Contributions
travel raw, so 16-bit types cost no more than others.
"""

from __future__ import annotations

from ringd.schedules.model import Recv, Round, Schedule, Send


def all_reduce(rank: int, world_size: int) -> Schedule:
    """Owners fold their chunk, then send it to all: 2 steps, 2T(N-1)/N bytes per rank."""
    rounds = (_scatter(rank, world_size), _gather(rank, world_size)) if world_size > 1 else ()
    return _schedule("all_reduce", rank, world_size, rounds, (rank,))


def reduce_scatter(rank: int, world_size: int) -> Schedule:
    """Only the first half of all_reduce: 1 step, T(N-1)/N bytes per rank."""
    rounds = (_scatter(rank, world_size),) if world_size > 1 else ()
    return _schedule("reduce_scatter", rank, world_size, rounds, (rank,))


def all_gather(rank: int, world_size: int) -> Schedule:
    """Only the second half of all_reduce: 1 step, T(N-1)/N bytes per rank."""
    rounds = (_gather(rank, world_size),) if world_size > 1 else ()
    return _schedule("all_gather", rank, world_size, rounds, ())


def to_peers(rank: int, world_size: int) -> list[int]:
    """The other ranks, right neighbour first: no rank is everybody's first target."""
    return [(rank + step) % world_size for step in range(1, world_size)]


def from_peers(rank: int, world_size: int) -> list[int]:
    """The other ranks, left neighbour first: the order in which ``to_peers`` makes them send."""
    return [(rank - step) % world_size for step in range(1, world_size)]


def _scatter(rank: int, world_size: int) -> Round:
    return Round(
        sends=tuple(Send(peer, peer) for peer in to_peers(rank, world_size)),
        recvs=tuple(Recv(peer, rank, "reduce") for peer in from_peers(rank, world_size)),
    )


def _gather(rank: int, world_size: int) -> Round:
    return Round(
        sends=tuple(Send(peer, rank) for peer in to_peers(rank, world_size)),
        recvs=tuple(Recv(peer, peer, "copy") for peer in from_peers(rank, world_size)),
    )


def _schedule(
    collective: str, rank: int, world_size: int, rounds: tuple[Round, ...], owned: tuple[int, ...]
) -> Schedule:
    return Schedule(
        collective=collective,
        algorithm="direct",
        rank=rank,
        world_size=world_size,
        n_chunks=world_size,
        rounds=rounds,
        owned=owned,
    )
