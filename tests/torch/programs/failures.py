"""What a script sees when something goes wrong."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.torch.programs.calls import place

COUNT = 1 << 21
"""Elements of a tensor that is larger than any segment of the arena."""


def caught(call: Callable[[], Any]) -> dict[str, Any]:
    """What a call raised, as plain data, and after how long."""
    began = time.monotonic()
    try:
        call()
    except Exception as exc:
        return {
            "class": type(exc).__name__,
            "is_torchs": isinstance(exc, dist.DistBackendError),
            "kinds": [cls.__name__ for cls in type(exc).__mro__],
            "text": str(exc),
            "fields": dict(getattr(exc, "fields", {})),
            "retry": getattr(exc, "retry", ""),
            "after_s": time.monotonic() - began,
        }
    return {}


def mismatch() -> Any:
    """M5: ranks differ; all raise, by each way of waiting; the group stands."""
    rank, _ = place()
    size = 10 if rank == 1 else 12
    seen = {"sync": caught(lambda: dist.all_reduce(torch.ones(size)))}
    work = dist.all_reduce(torch.ones(size), async_op=True)
    seen["wait"] = caught(work.wait)
    seen["again"] = caught(work.wait)
    seen["state"] = {"over": work.is_completed(), "well": work.is_success()}
    seen["exception"] = {"class": type(work.exception()).__name__}
    work = dist.all_reduce(torch.ones(size), async_op=True)
    future = work.get_future()
    seen["future"] = caught(future.wait)
    seen["chained"] = caught(future.then(lambda done: done.value()).wait)
    kept = torch.full((size,), float(rank))
    caught(lambda: dist.all_reduce(kept))
    after = torch.ones(3)
    dist.all_reduce(after)
    return seen, bool((kept == rank).all()), after


def refused() -> Any:
    """One rank's call is refused by us; its peers are told; the next call works."""
    rank, _ = place()
    tensor = torch.ones(3).expand(2, 3) if rank == 1 else torch.ones(2, 3)
    seen = caught(lambda: dist.all_reduce(tensor))
    after = torch.ones(3)
    dist.all_reduce(after)
    return seen, after


def without_room() -> Any:
    """Asynchronous calls for which one rank has no room, in each way; then all go on."""
    from ringd_client.torch import hooks

    rank, _ = place()
    world: Any = dist.group.WORLD
    arena = world.comm._arena
    many = [torch.ones(COUNT), torch.ones(COUNT, dtype=torch.float64)]
    limit = arena.limit_bytes
    if rank == 1:
        arena.limit_bytes = 0
    works = [
        dist.all_reduce(torch.ones(COUNT), async_op=True),
        world.allreduce_coalesced(many),
        dist.all_gather_into_tensor(torch.ones(2 * COUNT), torch.ones(COUNT), async_op=True),
    ]
    futures = [hooks.bf16(None, _Bucket(torch.ones(COUNT)))]  # type: ignore[arg-type]
    seen = [caught(work.wait) for work in works] + [caught(future.wait) for future in futures]
    arena.limit_bytes = limit
    misuse = caught(lambda: dist.all_reduce(torch.ones(3).expand(2, 3), async_op=True))
    dist.all_reduce(after := torch.ones(COUNT))
    return seen, misuse, after


class _Bucket:
    """As much of DDP's as a hook needs."""

    def __init__(self, gradients: torch.Tensor) -> None:
        self._gradients = gradients

    def buffer(self) -> torch.Tensor:
        return self._gradients


def late(which: int) -> Any:
    """A rank never enters; a barrier of a group's own timeout names it; then all go on."""
    from ringd_client.torch import monitored_barrier

    rank, _ = place()
    group = dist.new_group(timeout=timedelta(seconds=1.5))
    seen = {}
    if rank != which:
        seen["barrier"] = caught(lambda: dist.barrier(group=group))
        limit = timedelta(seconds=1)
        seen["monitored"] = caught(lambda: monitored_barrier(group, timeout=limit))
        dist.send(torch.ones(1), which)
    else:
        for _ in range(dist.get_world_size() - 1):
            dist.recv(torch.ones(1))
        seen["entered late"] = [caught(lambda: dist.barrier(group=group)) for _ in range(2)]
    dist.barrier()
    work = dist.irecv(torch.zeros(1), (rank + 1) % dist.get_world_size(), tag=9)
    seen["wait"] = caught(lambda: work.wait(timedelta(milliseconds=50)))
    dist.barrier()
    dist.isend(torch.ones(1), (rank - 1) % dist.get_world_size(), tag=9)
    work.wait()
    dist.all_reduce(after := torch.ones(1))
    return seen, after


def killed(which: int) -> Any:
    """A rank is killed: all others raise, by sync calls, works, futures, in sub-groups too."""
    rank, n = place()
    group = dist.new_group([which, (which + 1) % n])
    survivors = dist.new_group([r for r in range(n) if r != which])
    dist.barrier()
    if rank == which:
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(torch.ones(4), async_op=True)
    future = dist.all_reduce(torch.ones(4), async_op=True).get_future()
    seen = [caught(work.wait), caught(future.wait), caught(lambda: dist.all_reduce(torch.ones(1)))]
    if rank == (which + 1) % n:
        seen.append(caught(lambda: dist.all_reduce(torch.ones(1), group=group)))
    dist.all_reduce(after := torch.ones(1), group=survivors)
    return seen, after


def fewer(which: int, place_of: str) -> Any:
    """A rank is killed; the others destroy their group, and make one without it."""
    rank, n = place()
    dist.barrier()
    if rank == which:
        os.kill(os.getpid(), signal.SIGKILL)
    seen = caught(lambda: dist.all_reduce(torch.ones(4)))
    dist.destroy_process_group()
    left = [r for r in range(n) if r != which]
    store = dist.FileStore(f"{place_of}/fewer", n - 1)
    dist.init_process_group("ringd", store=store, rank=left.index(rank), world_size=n - 1)
    dist.all_reduce(after := torch.ones(1))
    return seen, after


def unsupported() -> Any:
    """What can't work says so."""
    group: Any = dist.group.WORLD
    seen = {
        "split": caught(lambda: group.split_group([0], timedelta(seconds=1))),
        "monitored": caught(lambda: dist.monitored_barrier()),
        "options": caught(lambda: dist.new_group(pg_options=object())),
    }
    dist.barrier()
    return seen


def exits_early() -> Any:
    """T5b: a member of a sub-group leaves before its first call there."""
    rank, _ = place()
    group = dist.new_group([0, 1], timeout=timedelta(seconds=20))
    if rank == 0:
        return None
    return caught(lambda: dist.all_reduce(torch.ones(1), group=group))
