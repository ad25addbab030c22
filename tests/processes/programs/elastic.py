"""An elastic trainer in small: sums that go on when a rank dies, and when it comes back."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np

import ringd_client
from ringd.errors import CollectiveError
from tests.processes.trainer import Stage

COUNT = 1000
TOGETHER = 3
"""Steps, at least, that all commit once they are together again."""


def sums(
    stage: Stage, victim: int, dies_at: int, ends_at: int, again: bool, dies_once: bool = True
) -> dict[str, Any]:
    """Commit ``ends_at`` steps; with ``again`` some more once all are together again.

    The victim dies at a step; with ``dies_once`` False, whoever takes its place does so at once.

    Returns:
        The steps that this process committed, each with its members.
    """
    committed: list[tuple[int, list[int]]] = []
    with ringd_client.connect() as comm:
        seat, everyone = comm.ranks[comm.rank], 3
        fresh = comm.epoch > 1
        step = _newest(comm, 0) if fresh else 0
        ends_at = max(ends_at, step + TOGETHER) if fresh else ends_at
        print("at work", flush=True)
        while step < ends_at or (again and comm.world_size < everyone):
            if seat == victim and (not dies_once if fresh else step == dies_at):
                os.kill(os.getpid(), signal.SIGKILL)
            members = list(comm.ranks)
            try:
                data = np.arange(COUNT) * (seat + 1)
                comm.all_reduce(data)
                assert np.array_equal(data, np.arange(COUNT) * sum(r + 1 for r in members))
                goes_on = comm.agree(not comm.newcomers())
                committed.append((step, members))
                step += 1
                if not goes_on:
                    comm.reform(timeout_s=30.0)
                    step = _newest(comm, step)
                    ends_at = max(ends_at, step + TOGETHER)
            except CollectiveError:
                change = comm.reform(timeout_s=30.0)
                if change.agreed is not None:
                    committed.append((step, members))
                    step += 1
                if change.joined:
                    step = _newest(comm, step)
                    ends_at = max(ends_at, step + TOGETHER)
        return {"seat": seat, "epoch": comm.epoch, "committed": committed}


def _newest(comm: ringd_client.Communicator, step: int) -> int:
    """Rank 0 is an old member: its step is that of all."""
    word = np.array([step])
    comm.broadcast(word, root=0)
    return int(word[0])
