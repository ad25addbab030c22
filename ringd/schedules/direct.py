"""Direct: who has something for a rank sends it there, without anybody between.

In all_reduce and reduce_scatter rank r owns chunk r: every rank speaks to every owner, and every
owner to all. As few rounds as can be whatever N is, and the order of the fold is ours to choose:
rank order. Contributions travel raw, so 16-bit types cost no more than others. Up to N-1 ranks
send to one at once; credit bounds what they may.
"""

from __future__ import annotations

from ringd.schedules.model import Recv, Round, Schedule, Send


def all_reduce(rank: int, world_size: int) -> Schedule:
    """Owners fold their chunk, then send it to all: 2 steps, 2T(N-1)/N bytes per rank."""
    rounds = (_to_owners(rank, world_size), _from_owners(rank, world_size))
    return _schedule("all_reduce", rank, world_size, rounds, owned=(rank,))


def reduce_scatter(rank: int, world_size: int) -> Schedule:
    """Only the first half of all_reduce: 1 step, T(N-1)/N bytes per rank."""
    rounds = (_to_owners(rank, world_size),)
    return _schedule("reduce_scatter", rank, world_size, rounds, owned=(rank,))


def all_gather(rank: int, world_size: int) -> Schedule:
    """Only the second half of all_reduce: 1 step, T(N-1)/N bytes per rank."""
    return _schedule("all_gather", rank, world_size, (_from_owners(rank, world_size),))


def reduce(rank: int, world_size: int, *, root: int) -> Schedule:
    """All send all they have to the root, which folds: 1 step, T bytes per rank."""
    if rank == root:
        recvs = tuple(Recv(peer, 0, "reduce") for peer in from_peers(rank, world_size))
        round_ = Round(recvs=recvs)
    else:
        round_ = Round(sends=(Send(root, 0),))
    owned = (0,) if rank == root else ()
    return _schedule("reduce", rank, world_size, (round_,), owned=owned, n_chunks=1)


def gather(rank: int, world_size: int, *, root: int) -> Schedule:
    """All send their part to the root: 1 step, T/N bytes per rank."""
    if rank == root:
        recvs = tuple(Recv(peer, peer, "copy") for peer in from_peers(rank, world_size))
        round_ = Round(recvs=recvs)
    else:
        round_ = Round(sends=(Send(root, rank),))
    return _schedule("gather", rank, world_size, (round_,))


def scatter(rank: int, world_size: int, *, root: int) -> Schedule:
    """The root sends each rank its part: 1 step, T(N-1)/N bytes at the root."""
    if rank == root:
        round_ = Round(sends=tuple(Send(peer, peer) for peer in to_peers(rank, world_size)))
    else:
        round_ = Round(recvs=(Recv(root, rank, "copy"),))
    return _schedule("scatter", rank, world_size, (round_,))


def all_to_all(rank: int, world_size: int) -> Schedule:
    """All send to all at once: 1 step, T(N-1)/N bytes per rank for T bytes of input."""
    n = world_size
    round_ = Round(
        sends=tuple(Send(peer, rank * n + peer) for peer in to_peers(rank, n)),
        recvs=tuple(Recv(peer, peer * n + rank, "copy") for peer in from_peers(rank, n)),
    )
    return _schedule("all_to_all", rank, n, (round_,), n_chunks=n * n)


def to_peers(rank: int, world_size: int) -> list[int]:
    """The other ranks, right neighbour first: no rank is everybody's first target."""
    return [(rank + step) % world_size for step in range(1, world_size)]


def from_peers(rank: int, world_size: int) -> list[int]:
    """The other ranks, left neighbour first: the order in which ``to_peers`` makes them send."""
    return [(rank - step) % world_size for step in range(1, world_size)]


def _to_owners(rank: int, world_size: int) -> Round:
    return Round(
        sends=tuple(Send(peer, peer) for peer in to_peers(rank, world_size)),
        recvs=tuple(Recv(peer, rank, "reduce") for peer in from_peers(rank, world_size)),
    )


def _from_owners(rank: int, world_size: int) -> Round:
    return Round(
        sends=tuple(Send(peer, rank) for peer in to_peers(rank, world_size)),
        recvs=tuple(Recv(peer, peer, "copy") for peer in from_peers(rank, world_size)),
    )


def _schedule(
    collective: str,
    rank: int,
    world_size: int,
    rounds: tuple[Round, ...],
    *,
    owned: tuple[int, ...] = (),
    n_chunks: int = 0,
) -> Schedule:
    """``n_chunks``: one per rank if it is not given."""
    return Schedule(
        collective=collective,
        algorithm="direct",
        rank=rank,
        world_size=world_size,
        n_chunks=n_chunks or world_size,
        rounds=rounds if world_size > 1 else (),
        owned=owned,
    )
