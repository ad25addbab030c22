"""Exchange: every rank sends all it has to every other; each folds for itself, in rank order.

One round, and (N-1)T bytes per rank: for small T only.
"""

from __future__ import annotations

from ringd.schedules.direct import from_peers, to_peers
from ringd.schedules.model import Recv, Round, Schedule, Send


def all_reduce(rank: int, world_size: int) -> Schedule:
    """1 step, (N-1)T bytes per rank; every rank owns the one chunk and gets the same bits."""
    everybody = Round(
        sends=tuple(Send(peer, 0) for peer in to_peers(rank, world_size)),
        recvs=tuple(Recv(peer, 0, "reduce") for peer in from_peers(rank, world_size)),
    )
    return Schedule(
        collective="all_reduce",
        algorithm="exchange",
        rank=rank,
        world_size=world_size,
        n_chunks=1,
        rounds=(everybody,) if world_size > 1 else (),
        owned=(0,),
        # The fold may be done before a slow peer has taken what it was folded from.
        guarded=True,
    )
