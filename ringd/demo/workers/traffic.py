"""Part 2 on a rank: calls whose bytes are counted. numpy only, so that the rank is up at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from ringd_client import Communicator

LIMIT_S = 20.0


def answer(comm: Communicator, order: dict[str, Any]) -> dict[str, Any]:
    """Make the calls of an order."""
    for call in order["calls"]:
        make(comm, call["collective"], call["algorithm"], call["dtype"], call["count"])
    return {}


def make(comm: Communicator, collective: str, algorithm: str, dtype: str, count: int) -> None:
    """One call on a region of ``count`` elements: the tensor, or all N parts together."""
    whole = np.ones(count, dtype)
    part = np.ones(count // comm.world_size, dtype)
    how: dict[str, Any] = {"algorithm": algorithm, "timeout_s": LIMIT_S}
    if collective == "all_reduce":
        comm.all_reduce(whole, **how)
    elif collective == "reduce_scatter":
        comm.reduce_scatter(part, whole, **how)
    elif collective == "all_gather":
        comm.all_gather(whole, part, **how)
    elif collective == "broadcast":
        comm.broadcast(whole, 0, **how)
    else:
        raise ValueError(f"no bytes are counted for {collective!r}")
