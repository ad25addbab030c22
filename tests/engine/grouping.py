"""Making groups in a scene, and seeing that they work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ringd.vocabulary import OpSpec
from tests.engine.scene import ALL_REDUCE, Scene

MISMATCH_WITHIN_S = 0.5


def new_group(*members: int, parent: int = 0) -> OpSpec:
    """The call that makes a group of these."""
    return OpSpec("new_group", "int64", "max", (1,), counts=members, group=parent)


async def found(scene: Scene, members: Sequence[int], ranks: Sequence[int] | None = None) -> int:
    """All ranks make a group; its number, which all members must have alike."""
    everyone = range(scene.n) if ranks is None else ranks
    spec = new_group(*members)
    futures = {r: scene.call(r, spec, np.zeros(1, "int64")) for r in everyone}
    numbers = set()
    for rank, future in futures.items():
        ended = await future
        assert ended.error is None, (rank, ended.error)
        if rank in members:
            numbers.add(int(ended.array[0]))
    (number,) = numbers or {-1}
    return number


async def sums(scene: Scene, number: int, members: Sequence[int]) -> None:
    """An all_reduce in the group gives the sum over its members."""
    spec = replace(ALL_REDUCE, group=number)
    ended = await scene.all(scene.call(rank, spec) for rank in members)
    for one in ended:
        assert one.error is None, one.error
        assert (one.array == sum(rank + 1 for rank in members)).all()


def links(scene: Scene) -> list[list[int]]:
    """To which ranks each rank has one."""
    return [sorted(scene.engine(rank).links) for rank in range(scene.n)]


def opened(scene: Scene, number: int, members: Sequence[int], ranks: Sequence[int]) -> None:
    """These ranks' daemons are told of a group that was agreed on elsewhere."""
    for rank in ranks:
        assert scene.engine(rank).groups.open(number, list(members)) is None
