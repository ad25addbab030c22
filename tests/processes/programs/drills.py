"""What a rank does while a fault strikes somewhere: it sums, checks, and says how it ended."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

import ringd_client
from tests.processes.programs.basics import outcome
from tests.processes.trainer import Stage


def work(stage: Stage, count: int, timeout_s: float, stop: str) -> dict[str, Any]:
    """Sum until a call fails, or all have seen that the file ``stop`` is there; how it ended.

    Element 0 counts the ranks that have seen it, so all end after the same call. The other
    elements are rank + 1 + position % 61, their sum is checked after each call.
    """
    comm = stage.comm
    n = comm.world_size
    position = (np.arange(count) % 61).astype(np.float32)
    wanted = position[1:] * n + n * (n + 1) / 2
    wrong = completed = 0
    while True:
        mine = position + (comm.rank + 1)
        mine[0] = seen = float(os.path.exists(stop))
        told = outcome(lambda mine=mine: float(comm.all_reduce(mine, timeout_s=timeout_s)[0]))
        if told["error"] is not None:
            kept = bool(mine[0] == seen and (mine[1:] == position[1:] + (comm.rank + 1)).all())
            return told | {"completed": completed, "wrong": wrong, "untouched": kept}
        completed += 1
        wrong += not np.array_equal(mine[1:], wanted)
        if told["value"]:
            return told | {"completed": completed, "wrong": wrong, "untouched": True}


def connect_anew(stage: Stage) -> int:
    """Close what there is, whatever has become of it, and attach to the next epoch."""
    if stage.comm is not None:
        stage.comm.close()
    stage.comm = ringd_client.connect(timeout_s=60.0)
    epoch: int = stage.comm.epoch
    return epoch


# Whole programs, each of which ends its process


def send_and_exit(stage: Stage, count: int) -> None:
    """Rank 0 posts a message to rank 1 and ends at once; rank 1 receives it."""
    comm = ringd_client.connect()
    if comm.rank == 0:
        comm.isend(np.arange(count, dtype=np.float64), 1)
    elif comm.rank == 1:
        data = np.full(count, -1.0)
        comm.recv(data, 0)
        print(f"received {int((data == np.arange(count)).sum())}")


def barrier_and_exit(stage: Stage) -> None:
    """A barrier, and the end of the program, without a close."""
    ringd_client.connect().barrier()


def one_is_gone_at_once(stage: Stage) -> None:
    """Rank 0 connects and ends; the others call, and report what they get."""
    comm = ringd_client.connect()
    if comm.rank:
        told = outcome(lambda: comm.all_reduce(np.ones(1000), timeout_s=30.0))
        print(f"{told['error']} {told.get('fields', {}).get('rank')} {told['took_s']:.3f}")


def late(stage: Stage, delay_s: float) -> None:
    """D4: rank 0 connects and ends; rank 1 comes ``delay_s`` later. Both say the epoch."""
    if os.environ["RINGD_RANK"] == "1":
        time.sleep(delay_s)  # the delay is the case
    with ringd_client.connect(timeout_s=30.0) as comm:
        print(comm.epoch)


def fail_after(stage: Stage, calls: int, victim: int) -> None:
    """So many sums; then the victim raises, and nobody catches it."""
    comm = ringd_client.connect()
    while True:
        comm.all_reduce(np.ones(1000))
        calls -= 1
        if comm.rank == victim and not calls:
            raise ZeroDivisionError("the loss is not a number")
