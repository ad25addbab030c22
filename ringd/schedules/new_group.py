"""new_group: the members agree on a number, by an all_reduce (max) of one element."""

from __future__ import annotations

from dataclasses import replace

from ringd.schedules import exchange as _exchange
from ringd.schedules import tree as _tree
from ringd.schedules.model import Schedule


def exchange(rank: int, world_size: int) -> Schedule:
    """Everybody tells everybody: 1 step, N-1 small messages per rank."""
    return replace(_exchange.all_reduce(rank, world_size), collective="new_group")


def tree(rank: int, world_size: int) -> Schedule:
    """Up to rank 0 and down again: 2 ceil(log2 N) steps, at most ceil(log2 N) messages per rank."""
    schedule = _tree.all_reduce(rank, world_size, widened=False)
    return replace(schedule, collective="new_group")
