"""A job of which the last rank is foreign: how it begins, and the calls that the tests make."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from ringd.vocabulary import OpSpec
from tests.wire.foreign.call import NewGroup, all_reduce
from tests.wire.foreign.rank import ForeignRank, Group
from tests.wire.real_ranks import Real, real_ranks

Array = np.ndarray[Any, Any]
in_thread = asyncio.to_thread


@asynccontextmanager
async def both(
    world: int = 2, *, foreign: int | None = None
) -> AsyncIterator[tuple[Real, ForeignRank]]:
    """One rank is foreign (the last), the others are ringd's; the epoch has begun on all."""
    its_rank = world - 1 if foreign is None else foreign
    async with real_ranks(world, foreign=its_rank) as real:
        peer = ForeignRank(rank=its_rank, world=world)
        try:
            begun = [rank.begun for rank in real.ranks]
            await asyncio.gather(in_thread(peer.join, real.address), *begun)
            yield real, peer
        finally:
            peer.close()


def two_inputs(dtype: str, count: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(count)
    first, second = (rng.standard_normal(count).astype(dtype) for _ in range(2))
    return first, second


def summing(array: Array, algorithm: str = "exchange", group: int = 0) -> OpSpec:
    dtype = str(array.dtype)
    return OpSpec("all_reduce", dtype, "sum", array.shape, algorithm=algorithm, group=group)


def message(way: str, array: Array, peer: int, group: int = 0) -> OpSpec:
    return OpSpec(way, str(array.dtype), "", array.shape, root=peer, group=group)


def new_group(members: tuple[int, ...]) -> OpSpec:
    return OpSpec("new_group", "int64", "max", (1,), counts=members)


async def sum_is_right(real: Real, group: Group, rank: int = 0, count: int = 100) -> None:
    """An ordinary call on a group of this real rank and the foreign one."""
    ours, theirs = two_inputs("float32", count)
    expected = (ours + theirs).tobytes()
    ended = real.ranks[rank].call(summing(ours, group=group.number), ours)
    call = all_reduce(group, "float32", theirs.tobytes(), "exchange")
    assert await in_thread(call.run) == expected
    assert (await ended).code == "ok"
    assert ours.tobytes() == expected


async def a_group(real: Real, peer: ForeignRank, *members: int) -> Group:
    """All ranks of the world call new_group; the foreign one and one other are members."""
    made = [r.call(new_group(members), np.zeros(1, np.int64)) for r in real.ranks]
    group = await in_thread(NewGroup(peer.world, list(members)).run)
    assert {(await one).code for one in made} == {"ok"}
    return group
