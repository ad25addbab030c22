"""Pairwise exchange: all_to_all in N-1 rounds, in each of which a rank sends to one peer only.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH" (2005), for long messages.
"""

from __future__ import annotations

from ringd.schedules.model import Recv, Round, Schedule, Send


def all_to_all(rank: int, world_size: int) -> Schedule:
    """In round k send to rank+k and receive from rank-k (mod N): N-1 steps.

    T(N-1)/N bytes per rank for T bytes of input. Each round waits for what the round before
    received, so at any time a rank has about one sender: no rank is flooded.
    """
    rounds = []
    came = -1
    for step in range(1, world_size):
        target, source = (rank + step) % world_size, (rank - step) % world_size
        send = Send(target, rank * world_size + target, after=came)
        came = source * world_size + rank
        rounds.append(Round(sends=(send,), recvs=(Recv(source, came, "copy"),)))
    return Schedule(
        collective="all_to_all",
        algorithm="pairwise",
        rank=rank,
        world_size=world_size,
        n_chunks=world_size * world_size,
        rounds=tuple(rounds),
    )
