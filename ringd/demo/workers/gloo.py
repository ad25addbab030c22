"""torch.distributed's gloo among the same ranks: what ringd's results are held against."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ringd.demo.cases import Case
from ringd_client import Communicator

LIMIT = timedelta(seconds=30)
_OPS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "avg": dist.ReduceOp.SUM,  # gloo has no average
}


def start(comm: Communicator, order: dict[str, Any]) -> dict[str, Any]:
    """Form gloo's group of the same ranks, over a file that all can see."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{order['store']}",
        rank=comm.rank,
        world_size=comm.world_size,
        timeout=LIMIT,
    )
    return {}


def stop() -> None:
    """Leave gloo's group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def run(case: Case, source: torch.Tensor, world_size: int) -> torch.Tensor:
    """What gloo makes of ``source``, which stays as it is."""
    if case.collective == "all_gather":
        output = source.new_empty(case.count * world_size)
        dist.all_gather_into_tensor(output, source)
    elif case.collective == "broadcast":
        output = source.clone()
        dist.broadcast(output, case.root)
    elif case.collective == "reduce_scatter":
        output = source.new_empty(case.count)
        dist.reduce_scatter_tensor(output, source.clone(), op=_OPS[case.reduce_op])
    else:
        output = source.clone()
        dist.all_reduce(output, op=_OPS[case.reduce_op])
    return output / world_size if case.reduce_op == "avg" else output
