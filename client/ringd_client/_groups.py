"""New groups: a call on the parent, by which its members agree on a number."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Final

from ringd.errors import InvalidArgumentError
from ringd.vocabulary import Collective, OpSpec
from ringd_client import _collectives as collectives
from ringd_client._calls import Caller, Place, checked_default
from ringd_client._operation import Operation
from ringd_client._plan import Planner
from ringd_client._regions import Number
from ringd_client._steps import Budget, Steps

_WORD_LIMIT: Final = 1 << 63


def new_group(
    caller: Caller,
    ranks: Sequence[int],
    timeout_s: float | None,
    default_timeout_s: float | None,
) -> Steps[Place | None]:
    """Agree on a group of the caller's ranks; our place in it, or None."""
    budget = Budget(caller, timeout_s)
    with caller._refusing(Collective.NEW_GROUP.value):
        checked_default(default_timeout_s)
    agreement = _agreement(caller, ranks, timeout_s, in_order=False)
    return (yield from _entered(caller, budget.bounds(agreement)))


def split(
    caller: Caller,
    color: int | None,
    key: int,
    timeout_s: float | None,
    default_timeout_s: float | None,
) -> Steps[Place | None]:
    """Agree on a group of those with our color, in the order of (key, rank)."""
    budget = Budget(caller, timeout_s)
    with caller._refusing(Collective.ALL_GATHER.value, "split"):
        checked_default(default_timeout_s)
        ours = (color is not None, 0 if color is None else _word("color", color), _word("key", key))
        everybody, mine = _tables(caller.world_size, ours)
    yield budget.bounds(collectives.all_gather(caller, everybody, mine, timeout_s=timeout_s))
    table = [tuple(row) for row in everybody.tolist()]
    alike = [rank for rank, row in enumerate(table) if row[0] and row[:2] == ours[:2]]
    alike.sort(key=lambda rank: (table[rank][2], rank))
    with budget.committed(Collective.NEW_GROUP.value, "split"):
        agreement = _agreement(caller, alike, None, in_order=True)
    return (yield from _entered(caller, budget.bounds(agreement)))


def _agreement(
    caller: Caller, ranks: Sequence[int], timeout_s: float | None, *, in_order: bool
) -> Operation[None]:
    """By which these ranks of the caller make a group."""
    arguments = (ranks, in_order)
    return caller._prepare(
        Collective.NEW_GROUP.value, Planner.new_group, arguments, timeout_s, None, None
    )


def _entered(caller: Caller, operation: Operation[None]) -> Steps[Place | None]:
    """Our place in the group that an agreement has made."""
    number, spec = operation.settlement, operation.spec
    assert isinstance(number, Number)
    assert isinstance(spec, OpSpec)
    members = spec.counts
    yield operation
    if caller.rank not in members:
        return None
    caller._state.open_group(number.value, operation.epoch)
    ranks_of_world = tuple(caller.ranks[member] for member in members)
    return Place(number.value, members.index(caller.rank), ranks_of_world)


def _tables(world_size: int, ours: tuple[int, ...]) -> tuple[Any, Any]:
    """Room for a row of each rank, and our row."""
    import numpy as np

    return np.empty((world_size, len(ours)), np.int64), np.array(ours, np.int64)


def _word(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgumentError(f"{name} is a whole number, not {value!r}") from None
    if not -_WORD_LIMIT <= number < _WORD_LIMIT:
        raise InvalidArgumentError(f"{name} {number} does not fit 64 bits: pass a smaller one")
    return number
