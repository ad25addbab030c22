"""Part 2 on a rank: calls whose bytes are counted. numpy only, so that the rank is up at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from ringd.demo.traffic import ROOT
from ringd_client import Communicator

LIMIT_S = 20.0


def answer(comm: Communicator, order: dict[str, Any]) -> dict[str, Any]:
    """Make the calls of an order."""
    for call in order["calls"]:
        make(comm, call["collective"], call["algorithm"], call["dtype"], call["count"])
    return {}


def make(comm: Communicator, collective: str, algorithm: str, dtype: str, count: int) -> None:
    """One call where T is ``count`` elements: the tensor, or all N parts together."""
    whole = np.ones(count, dtype)
    part = np.ones(count // comm.world_size, dtype)
    at_root = whole if comm.rank == ROOT else None
    how: dict[str, Any] = {"algorithm": algorithm, "timeout_s": LIMIT_S}
    match collective:
        case "all_reduce":
            comm.all_reduce(whole, **how)
        case "reduce":
            comm.reduce(whole, ROOT, **how)
        case "reduce_scatter":
            comm.reduce_scatter(part, whole, **how)
        case "all_gather":
            comm.all_gather(whole, part, **how)
        case "gather":
            comm.gather(at_root, part, ROOT, **how)
        case "scatter":
            comm.scatter(part, at_root, ROOT, **how)
        case "all_to_all":
            comm.all_to_all(np.empty_like(whole), whole, **how)
        case "broadcast":
            comm.broadcast(whole, ROOT, **how)
        case _:
            raise ValueError(f"no bytes are counted for {collective!r}")
