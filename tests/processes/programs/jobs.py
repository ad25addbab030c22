"""Whole trainers, as a user would start them by ``ringd run``."""

from __future__ import annotations

from typing import Any

import numpy as np

import ringd_client
from tests.processes.trainer import Stage


def one_sum(stage: Stage, count: int) -> dict[str, Any]:
    """Sum rank + 1 over all; what came, and where we are."""
    with ringd_client.connect() as comm:
        mine = np.full(count, comm.rank + 1, np.int64)
        comm.all_reduce(mine, algorithm="ring")
        return {
            "rank": comm.rank,
            "world_size": comm.world_size,
            "epoch": comm.epoch,
            "sums": sorted(set(mine.tolist())),
        }


def address(stage: Stage) -> str:
    """Where our daemon listens."""
    with ringd_client.connect() as comm:
        comm.barrier()
        return str(comm.status()["address"])


def sum_for_ever(stage: Stage) -> None:
    """Say that work has begun, and go on until something ends it."""
    with ringd_client.connect() as comm:
        comm.barrier()
        print("at work", flush=True)
        while True:
            comm.all_reduce(np.ones(1000))
