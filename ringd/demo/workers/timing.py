"""Part 3 on a rank: one algorithm at one size, checked once, then timed."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

import torch

from ringd.bench.tensors import Tensors, fill, holds
from ringd_client import Communicator

LIMIT_S = 30.0
OP = "all_reduce"


def answer(comm: Communicator, order: dict[str, Any]) -> dict[str, Any]:
    """A first call, checked if that is asked for, then ``calls`` timed ones, back to back."""
    source = torch.zeros(order["count"], dtype=torch.float32)  # zeros stay zeros when summed
    tensors = Tensors(source, source)
    if order["check"]:
        fill(tensors, comm.rank)
    comm.all_reduce(source, algorithm=order["algorithm"], timeout_s=LIMIT_S)
    n = comm.world_size
    ok = not order["check"] or holds(tensors, OP, order["count"], comm.rank, n)
    tensors.clear()
    times_us = []
    for _ in range(order["calls"]):
        begun_ns = perf_counter_ns()
        comm.all_reduce(source, algorithm=order["algorithm"], timeout_s=LIMIT_S)
        times_us.append((perf_counter_ns() - begun_ns) / 1e3)
    return {"times_us": times_us, "ok": ok}
