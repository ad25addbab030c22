"""Python objects between ranks, and calls that travel together."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

import ringd_client
from tests.processes.programs.basics import outcome
from tests.processes.trainer import Stage


def thing(rank: int, size: int) -> dict[Any, Any]:
    """An object that no other rank has, with everything that msgpack carries."""
    return {
        "rank": rank,
        7: [None, True, -(2**63), 2.5, "ü", {"deep": [rank] * 3}],
        "text": chr(97 + rank) * size,
    }


def exchanged(stage: Stage, sizes: list[int]) -> dict[str, Any]:
    """Each variant once, rank r's object with ``sizes[r]`` more bytes, from each root."""
    comm, n = stage.comm, stage.comm.world_size
    mine = thing(comm.rank, sizes[comm.rank])
    everybody = [thing(rank, size) for rank, size in enumerate(sizes)]
    right: dict[str, Any] = {"all_gather": comm.all_gather_object(mine) == everybody}
    for root in range(n):
        right[f"broadcast {root}"] = comm.broadcast_object(mine, root) == everybody[root]
        gathered = comm.gather_object(mine, root)
        right[f"gather {root}"] = gathered == (everybody if comm.rank == root else None)
        objs = everybody if comm.rank == root else None
        right[f"scatter {root}"] = comm.scatter_object(objs, root) == mine
    right["tuple"] = comm.broadcast_object((1, (2, 3)), 0) == [1, [2, 3]]
    right["nothing"] = comm.all_gather_object(None) == [None] * n
    right["bytes"] = comm.broadcast_object(b"\0\xff", 0) == b"\0\xff"
    return right


VARIANTS = ("all_gather_object", "broadcast_object", "gather_object", "scatter_object")


def refused(stage: Stage, variant: str, what: str, odd: int) -> dict[str, Any]:
    """A variant in which rank ``odd`` gives an object that can't travel; then a proper one."""
    comm, n = stage.comm, stage.comm.world_size
    bad: Any = {"unpackable": object(), "too large": "x" * 3000}[what]
    obj = bad if comm.rank == odd else {"rank": comm.rank}
    if variant == "scatter_object":
        obj = [{"for": rank} for rank in range(n - 1)] + [bad] if comm.rank == odd else None
    root = () if variant == "all_gather_object" else (odd,)
    call = getattr(comm, variant)
    first = outcome(lambda: call(obj, *root, max_object_bytes=2000))
    return {
        "first": first,
        "next": outcome(lambda: comm.all_gather_object(comm.rank)),
        "sum": outcome(lambda: comm.all_reduce(np.ones(2)).tolist()),
        "seq": comm.status()["next_seq"],
    }


def other_terms(stage: Stage) -> list[dict[str, Any]]:
    """Ranks that do not pass the same root, or the same cap; then a proper call."""
    comm = stage.comm
    odd = comm.rank == 1
    return [
        outcome(lambda: comm.broadcast_object(comm.rank, 1 if odd else 0)),
        outcome(lambda: comm.all_gather_object(comm.rank, max_object_bytes=9 if odd else 10)),
        outcome(lambda: comm.all_gather_object(comm.rank)),
    ]


# ---------------------------------------------------------------- calls that travel together


def coalesced(stage: Stage, calls: int) -> dict[str, Any]:
    """So many small sums in one block."""
    comm, n = stage.comm, stage.comm.world_size
    tensors = [_numbered(comm, number) for number in range(calls)]
    with comm.coalesce():
        for tensor in tensors:
            comm.all_reduce(tensor)
    return {"wrong": [i for i, t in enumerate(tensors) if not _is_sum(t, i, n)]}


def coalesced_async(stage: Stage, calls: int) -> dict[str, Any]:
    """The same by the asyncio face; handles are awaited after the block."""

    async def run() -> dict[str, Any]:
        async with await ringd_client.connect_async() as comm:
            tensors = [_numbered(comm, number) for number in range(calls)]
            async with comm.coalesce():
                handles = [comm.all_reduce(tensor) for tensor in tensors]
            for handle in handles:
                await handle
            n = comm.world_size
            return {"wrong": [i for i, t in enumerate(tensors) if not _is_sum(t, i, n)]}

    return asyncio.run(run())


def _numbered(comm: Any, number: int) -> Any:
    count = 1 + number * 7 % 40
    return np.arange(count, dtype=np.float32) * (comm.rank + 1) + number


def _is_sum(tensor: Any, number: int, n: int) -> bool:
    wanted = np.arange(tensor.size, dtype=np.float32) * (n * (n + 1) / 2) + number * n
    return bool(np.array_equal(tensor, wanted))


def coalesced_sorts(stage: Stage) -> dict[str, Any]:
    """All that a block takes, mixed: two of each sort, and one with uneven parts."""
    comm, n, rank = stage.comm, stage.comm.world_size, stage.comm.rank
    sums = [np.full(3, rank + 1.0), np.full((2, 2), rank + 2.0)]
    highest = np.full(4, float(rank))
    casts = [np.full(2, rank * 10.0), np.full(5, rank * 10.0 + 1)]
    reduced = [np.full(2, rank + 1.0), np.full(1, rank + 1.0)]
    parts = [np.arange(2.0) + rank, np.arange(3.0) + 10 * rank]
    gathered = [np.zeros((n, 2)), np.zeros((n, 3))]
    pieces = [np.zeros(2), np.zeros(1)]
    uneven = [np.zeros(r) for r in range(n)]
    with comm.coalesce():
        for number in range(2):
            comm.all_reduce(sums[number])
            comm.broadcast(casts[number], 1)
            comm.reduce(reduced[number], 0)
            comm.all_gather(gathered[number], parts[number])
            whole = np.arange(n * pieces[number].size) * (rank + 1.0)
            comm.reduce_scatter(pieces[number], whole)
        comm.all_reduce(highest, "max")
        comm.all_gather(uneven, np.full(rank, rank + 0.5))
    total = n * (n + 1) / 2
    wanted: dict[str, list[Any]] = {
        "sums": [np.full(3, total), np.full((2, 2), total + n)],
        "highest": [np.full(4, n - 1.0)],
        "casts": [np.full(2, 10.0), np.full(5, 11.0)],
        "reduced": [np.full(s, total if rank == 0 else rank + 1.0) for s in (2, 1)],
        "gathered": [
            np.stack([np.arange(2.0) + r for r in range(n)]),
            np.stack([np.arange(3.0) + 10 * r for r in range(n)]),
        ],
        "pieces": [np.arange(rank * s, (rank + 1) * s) * total for s in (2, 1)],
        "uneven": [np.full(r, r + 0.5) for r in range(n)],
    }
    got: dict[str, list[Any]] = {
        "sums": sums, "highest": [highest], "casts": casts, "reduced": reduced,
        "gathered": gathered, "pieces": pieces, "uneven": uneven,
    }  # fmt: skip
    return {
        name: all(np.array_equal(g, w) for g, w in zip(got[name], wanted[name], strict=True))
        for name in wanted
    }


def left_by_an_exception(stage: Stage) -> dict[str, Any]:
    """A block that all ranks leave by an exception posts nothing; one with a bad call, poison."""
    comm = stage.comm

    def interrupted() -> None:
        with comm.coalesce():
            comm.all_reduce(np.ones(3))
            raise ZeroDivisionError("no sum today")

    def with_a_bad_call() -> None:
        mine = np.ones(3) if comm.rank else np.ones(3, np.int32)
        with comm.coalesce():
            comm.all_reduce(np.ones(2), "avg")
            comm.all_reduce(mine, "avg")

    def misplaced() -> None:
        with comm.coalesce():
            comm.barrier()

    before = comm.status()["next_seq"]
    told = {"interrupted": outcome(interrupted), "taken": comm.status()["next_seq"] - before}
    comm.barrier()
    told["bad"] = outcome(with_a_bad_call)
    told["next"] = outcome(lambda: comm.all_reduce(np.ones(2)).tolist())
    told["misplaced"] = outcome(misplaced)
    told["last"] = outcome(lambda: comm.all_reduce(np.ones(2)).tolist())
    return told
