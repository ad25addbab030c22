"""Groups of some of the ranks: how they come about, what they do side by side, how they end."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.processes.programs.basics import belongings, outcome
from tests.processes.trainer import Stage


def enter(stage: Stage, ranks: list[int], name: str = "group") -> dict[str, Any]:
    """new_group; the group is kept under ``name``."""

    def form() -> Any:
        group = stage.kept[name] = stage.comm.new_group(ranks)
        return group and {"rank": group.rank, "ranks": group.ranks, "number": group.group}

    return outcome(form)


def sum_of(stage: Stage, name: str = "group", count: int = 3, **options: Any) -> dict[str, Any]:
    """Sum the world's rank + 1 over a group that was kept, or over the world."""
    comm = stage.comm if name == "world" else stage.kept[name]
    mine = np.full(count, stage.comm.rank + 1.0)
    return outcome(lambda: comm.all_reduce(mine, **options)[-1].item())


def begin_sum(stage: Stage, name: str, count: int) -> bool:
    """Begin the same and keep its handle; whether it is done already."""
    comm = stage.comm if name == "world" else stage.kept[name]
    mine = np.full(count, stage.comm.rank + 1.0)
    handle = stage.kept[f"handle of {name}"] = comm.all_reduce_async(mine)
    return bool(handle.done())


def end_sum(stage: Stage, name: str) -> dict[str, Any]:
    """Wait for what :func:`begin_sum` began; whether it was done before."""
    handle = stage.kept.pop(f"handle of {name}")
    was_done = handle.done()
    return outcome(lambda: handle.wait()[-1].item()) | {"was_done": was_done}


def close(stage: Stage, name: str = "group") -> None:
    """Free a group."""
    stage.kept.pop(name).close()


def close_and_call(stage: Stage, name: str = "group") -> list[dict[str, Any]]:
    """Free a group, and use it all the same: how each call ends."""
    group = stage.kept[name]
    group.close()
    group.close()
    return [
        outcome(lambda: group.all_reduce(np.ones(3))),
        outcome(group.barrier),
        outcome(lambda: group.send(np.ones(3), 1 - group.rank)),
        outcome(lambda: group.new_group([0])),
        outcome(lambda: group.empty(3)),
    ]


def members_of_two(stage: Stage) -> dict[str, Any]:
    """G1: what the members of a group of two do with rooted calls, right and wrong ones."""
    group, world_rank = stage.kept["group"], stage.comm.rank
    root = group.ranks.index(3)
    given = np.arange(4.0) + 10 * world_rank
    cast = group.broadcast(given.copy(), root)
    again = group.broadcast(given.copy(), 1)
    objs = [{"for": member} for member in group.ranks] if group.rank == root else None
    scattered = group.scatter_object(objs, root)
    to_one = np.zeros((2, 4)) if world_rank == 1 else None
    gathered = group.gather(to_one, given, group.ranks.index(1))
    wrong = [
        outcome(lambda: group.broadcast(given.copy(), 3)),
        outcome(lambda: group.reduce(given.copy(), -1)),
        outcome(lambda: group.gather_object(1, 2)),
    ]
    return {
        "cast": cast.tolist(),
        "again": again.tolist(),
        "scattered": scattered,
        "gathered": None if gathered is None else gathered.tolist(),
        "wrong": wrong,
        "next": outcome(lambda: group.all_reduce(given.copy()).tolist()),
    }


def split(stage: Stage, colors: list[int | None], keys: list[int]) -> Any:
    """By color and key; who is in our group, the sum over it, and the world's after it."""
    comm = stage.comm
    group = comm.split(colors[comm.rank], keys[comm.rank])
    told: dict[str, Any] = {"ranks": None}
    if group is not None:
        with group:
            mine = np.array([float(comm.rank)])
            everybody = group.all_gather(np.zeros((group.world_size, 1)), mine)
            told = {"ranks": group.ranks, "rank": group.rank, "gathered": everybody[:, 0].tolist()}
    told["world"] = comm.all_reduce(np.ones(1)).tolist()
    return told


def nested(stage: Stage) -> dict[str, Any]:
    """A group of a group; roots and messages are numbered in the innermost."""
    comm = stage.comm
    outer = comm.new_group([0, 2, 3])
    if outer is None:
        return {}
    inner = outer.new_group([2, 1])  # ranks 2 and 3 of the world
    told: dict[str, Any] = {}
    if inner is not None:
        taken = np.zeros(1)
        message = inner.isend(np.array([10.0 * comm.rank]), 1 - inner.rank)
        source = inner.recv(taken, 1 - inner.rank)
        message.wait()
        cast = inner.broadcast(np.array([float(comm.rank)]), 1)
        told = {"ranks": inner.ranks, "cast": cast.tolist(), "from": [source, taken.tolist()]}
        inner.close()
    told["outer"] = outer.all_reduce(np.array([comm.rank])).tolist()
    outer.close()
    return told


def come_and_go(stage: Stage, rounds: int, count: int) -> dict[str, Any]:
    """F1: new_group, use, close, in two shapes; what the process holds before and after."""
    comm = stage.comm
    _one_round(comm, 0, count)
    before = belongings(stage)
    wrong = [number for number in range(rounds) if not _one_round(comm, number, count)]
    comm.barrier()
    return {"wrong": wrong, "before": before, "after": belongings(stage)}


def _one_round(comm: Any, number: int, count: int) -> bool:
    """Each group has links that the ring of all has not, and everything a group can do."""
    n = comm.world_size
    members = [number % n, (number + 2) % n] if number % 2 else [0, 1, n - 1]
    group = comm.new_group(members)
    if group is None:
        return True
    with group:
        mine = np.full(count, float(comm.rank))
        right = bool(group.all_reduce(mine)[-1] == sum(members))
        to, source = (group.rank + 1) % group.world_size, (group.rank - 1) % group.world_size
        message = group.isend(np.full(count, group.rank), to)
        taken = np.zeros(count, np.int64)
        group.recv(taken, source)
        message.wait()
        return right and bool(taken[-1] == source)


def cast_then_close(stage: Stage, count: int) -> float:
    """Broadcast from this group's rank 0, and free the group as soon as our part is done."""
    group = stage.kept["group"]
    mine = np.full(count, 7.0 if group.rank == 0 else 0.0)
    group.broadcast(mine, 0)
    group.close()
    return float(mine[-1])


def busy(stage: Stage, name: str, rounds: int) -> list[int]:
    """Sums over a group while others are freed; the rounds that were wrong."""
    group = stage.kept[name]
    total = sum(member + 1.0 for member in group.ranks)
    wrong = []
    for number in range(rounds):
        mine = np.full(1 + number % 5000, stage.comm.rank + 1.0)
        if not (group.all_reduce(mine) == total).all():
            wrong.append(number)
    return wrong


def needs_who_freed(stage: Stage, timeout_s: float) -> list[dict[str, Any]]:
    """Calls on a group that another member has freed."""
    group = stage.kept["group"]
    peer = 1 - group.rank
    return [
        outcome(lambda: group.send(np.ones(100_000), peer, timeout_s=60)),
        outcome(lambda: group.all_reduce(np.ones(3), timeout_s=timeout_s)),
        outcome(lambda: group.recv(np.ones(3), peer, timeout_s=timeout_s)),
    ]
