"""barrier, agree, new_group: each is an all_reduce, of nothing, of one byte, of one number.

A barrier's frames carry no elements, only the fact of arrival.
"""

from __future__ import annotations

from dataclasses import replace

from ringd.schedules import exchange as _exchange
from ringd.schedules import tree as _tree
from ringd.schedules.model import Schedule


def exchange(rank: int, world_size: int, *, collective: str) -> Schedule:
    """Everybody tells everybody: 1 step, N-1 small messages per rank."""
    return replace(_exchange.all_reduce(rank, world_size), collective=collective)


def tree(rank: int, world_size: int, *, collective: str) -> Schedule:
    """Up to rank 0 and down again: 2 ceil(log2 N) steps, at most ceil(log2 N) messages per rank."""
    schedule = _tree.all_reduce(rank, world_size, widened=False)
    return replace(schedule, collective=collective)
