"""Ring: every rank speaks to its right neighbour and listens to its left one, N - 1 steps a pass.

Bandwidth-optimal in the sense of Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations" (2009): what a rank sends does not grow with N.
"""

from __future__ import annotations

from itertools import pairwise

from ringd.schedules.model import Action, Recv, Round, Schedule, Send


def all_reduce(rank: int, world_size: int, *, widened: bool) -> Schedule:
    """A reduce_scatter pass, then an all_gather pass: 2(N-1) steps, 2T(N-1)/N bytes per rank.

    In step s of the first pass rank r sends chunk r-s and reduces chunk r-s-1 (mod N), so it ends
    with chunk r+1 finished and starts the second pass with that one.

    Args:
        widened: partial sums of the first pass travel as float32: 3T(N-1)/N for 16-bit types.
    """
    reduce_pass = _ring_pass(rank, world_size, first=rank, action="reduce", wide=widened)
    gather_pass = _ring_pass(rank, world_size, first=rank + 1, action="copy")
    owned = (rank + 1) % world_size
    return _schedule("all_reduce", rank, world_size, reduce_pass + gather_pass, (owned,))


def reduce_scatter(rank: int, world_size: int, *, widened: bool) -> Schedule:
    """One reducing pass, one chunk behind all_reduce's so that rank r ends with chunk r.

    N-1 steps, T(N-1)/N bytes per rank; twice that where 16-bit types are ``widened``.
    """
    reduce_pass = _ring_pass(rank, world_size, first=rank - 1, action="reduce", wide=widened)
    return _schedule("reduce_scatter", rank, world_size, reduce_pass, (rank,))


def all_gather(rank: int, world_size: int) -> Schedule:
    """One copying pass that starts with one's own chunk: N-1 steps, T(N-1)/N bytes per rank."""
    gather_pass = _ring_pass(rank, world_size, first=rank, action="copy")
    return _schedule("all_gather", rank, world_size, gather_pass, ())


def _ring_pass(
    rank: int, world_size: int, *, first: int, action: Action, wide: bool = False
) -> tuple[Round, ...]:
    """N-1 rounds; each sends what the round before received, the first sends chunk ``first``."""
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    chunks = [(first - step) % world_size for step in range(world_size)]
    return tuple(
        Round(
            sends=(Send(right, outgoing, wide),),
            recvs=(Recv(left, incoming, action, wide),),
        )
        for outgoing, incoming in pairwise(chunks)
    )


def _schedule(
    collective: str, rank: int, world_size: int, rounds: tuple[Round, ...], owned: tuple[int, ...]
) -> Schedule:
    return Schedule(
        collective=collective,
        algorithm="ring",
        rank=rank,
        world_size=world_size,
        n_chunks=world_size,
        rounds=rounds,
        # An application has one contribution, and it is a partial sum: it has no place by rank.
        fold="round",
        owned=owned,
    )
