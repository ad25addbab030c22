"""What each collective promises: who has which chunk at the start, and who at the end.

The table of :mod:`ringd.schedules.model` as functions; the proof goes by them.
"""

from __future__ import annotations

from ringd.schedules.model import Schedule
from ringd.vocabulary import FOLDING, IN_PARTS

_AT_ROOT_ONLY = frozenset({"reduce", "gather"})
_ONE_EACH = frozenset({"reduce_scatter", "scatter"})


def is_reducing(collective: str) -> bool:
    """Whether every rank contributes to every chunk.

    A barrier counts: nobody may pass before every rank has contributed.
    """
    return collective in FOLDING or collective == "barrier"


def chunks_due(collective: str, world_size: int) -> int | None:
    """How many chunks the collective has by its meaning; None: as many as the algorithm likes."""
    if collective == "all_to_all":
        return world_size * world_size
    return world_size if collective in IN_PARTS else None


def holds_at_start(schedule: Schedule, chunk: int, root: int) -> bool:
    """Whether the rank has the chunk before anything moves."""
    if is_reducing(schedule.collective):
        return True
    if schedule.collective in ("broadcast", "scatter"):
        return schedule.rank == root
    holder = chunk // schedule.world_size if schedule.collective == "all_to_all" else chunk
    return schedule.rank == holder


def result_chunks(schedule: Schedule, root: int) -> tuple[int, ...]:
    """The chunks that the rank has to have at the end."""
    rank, n = schedule.rank, schedule.world_size
    if schedule.collective in _ONE_EACH:
        return (rank,)
    if schedule.collective in _AT_ROOT_ONLY and rank != root:
        return ()
    if schedule.collective == "all_to_all":
        return tuple(peer * n + rank for peer in range(n) if peer != rank)
    return tuple(range(schedule.n_chunks))
