"""Begin and end: again and again, early exits, what a process leaves behind."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.torch.programs.calls import place
from tests.torch.programs.failures import caught


def again(rounds: int, place_of: str) -> Any:
    """D1: destroy and init again; the daemon stays, the store too."""
    rank, n = place()
    dist.destroy_process_group()
    store = dist.FileStore(f"{place_of}/again", n)
    epochs, daemons = [], set()
    for turn in range(rounds):
        dist.init_process_group(
            "cpu:ringd", store=store, rank=rank, world_size=n, timeout=timedelta(seconds=30)
        )
        group: Any = dist.group.WORLD
        tensor = torch.arange(3.0) + rank + turn
        dist.all_reduce(tensor)
        expected = torch.arange(3.0) * n + n * (n - 1) / 2 + n * turn
        assert torch.equal(tensor, expected), (turn, tensor)
        pair = dist.new_group([0, 1])
        if rank < 2:
            dist.all_reduce(torch.ones(1), group=pair)
        dist.barrier()
        epochs.append(group.comm.epoch)
        daemons.add(group.comm.status()["address"])
        dist.destroy_process_group()
    return epochs, len(daemons), len(os.listdir("/proc/self/fd"))


def alone(timeout_s: float, place_of: str) -> Any:
    """T5a: only rank 0 of two comes."""
    rank, n = place()
    dist.destroy_process_group()
    if rank:
        return None
    store = dist.FileStore(f"{place_of}/alone", n)
    limit = timedelta(seconds=timeout_s)
    return caught(
        lambda: dist.init_process_group(
            "ringd", store=store, rank=rank, world_size=n, timeout=limit
        )
    )


def first_leaves(place_of: str) -> Any:
    """D4: rank 0 is through and gone as soon as it may; rank 1 comes later."""
    rank, n = place()
    dist.destroy_process_group()
    mark = Path(place_of, "rank 0 waits")
    if rank == 0:
        mark.touch()
    else:
        while not mark.exists():
            time.sleep(0.01)
        time.sleep(0.5)  # the case: rank 1 begins later
    store = dist.FileStore(f"{place_of}/d4", n)
    dist.init_process_group("ringd", store=store, rank=rank, world_size=n)
    return dist.get_world_size()


def ended(way: str, which: tuple[int, ...]) -> Any:
    """All ranks end, in the midst of a call of the others; nobody cleans up."""
    rank, n = place()
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [n] * 4
    dist.all_reduce(torch.ones(1 << 20), async_op=True)
    if rank not in which:
        return None
    if way == "os._exit":
        os._exit(3)
    os.kill(os.getpid(), getattr(signal, way))
    signal.pause()
    return None


def sent_before_leaving() -> Any:
    """isend, then exit: the data arrives."""
    rank, _ = place()
    if rank == 0:
        dist.isend(torch.arange(1000.0), 1)
        dist.isend(torch.arange(2.0 * (1 << 20)), 1)
        return None
    time.sleep(0.3)  # the receiver is late on purpose
    small, large = torch.zeros(1000), torch.zeros(1 << 21)
    dist.recv(small, 0)
    dist.recv(large, 0)
    return torch.equal(small, torch.arange(1000.0)) and torch.equal(
        large, torch.arange(2.0 * (1 << 20))
    )
