"""torch.distributed's gloo among the same ranks: what ringd's results are held against."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ringd.bench.ops import SENDRECV, gloo_has
from ringd.bench.subjects import gather_whole, neighbours, parts, pass_on, reduce_parts
from ringd.demo.cases import MESSAGES, Case
from ringd_client import Communicator

LIMIT = timedelta(seconds=30)
_OPS: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
    "avg": dist.ReduceOp.SUM,  # not every gloo has an average
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


def can(case: Case) -> bool:
    """Whether gloo can do this call: not every dtype and op, and here only plain ones."""
    op = SENDRECV if case.collective == MESSAGES else case.collective
    return not case.form and gloo_has(op, case.dtype, case.reduce_op)


def run(case: Case, source: torch.Tensor, rank: int, n: int) -> torch.Tensor:
    """What gloo makes of ``source``, which stays as it is; nothing where a rank gets nothing."""
    if case.reduce_op:
        return _reduced(case, source.clone(), rank, n)
    is_root = rank == case.root
    output: Any = source.new_empty(len(source))
    match case.collective:
        case "broadcast":
            output.copy_(source)
            dist.broadcast(output, case.root)
        case "all_gather":
            output = source.new_empty(case.count * n)
            gather_whole(output, source)
        case "gather":
            output = source.new_empty(case.count * n if is_root else 0)
            dist.gather(source, parts(output, n) if is_root else None, case.root)
        case "scatter":
            output = source.new_empty(case.count)
            dist.scatter(output, parts(source, n) if is_root else None, case.root)
        case "all_to_all":
            dist.all_to_all_single(output, source)
        case _:
            pass_on(output, source, *neighbours(rank, n))
    assert isinstance(output, torch.Tensor)
    return output


def _reduced(case: Case, tensor: torch.Tensor, rank: int, n: int) -> torch.Tensor:
    op, kept = _OPS[case.reduce_op], tensor
    if case.collective == "reduce_scatter":
        tensor = tensor.new_empty(case.count)
        reduce_parts(tensor, kept, op=op)
    elif case.collective == "reduce":
        kept = tensor.clone()  # gloo uses the tensors of all ranks as scratch memory
        dist.reduce(tensor, case.root, op=op)
        if rank != case.root:
            return kept
    else:
        dist.all_reduce(tensor, op=op)
    return tensor / n if case.reduce_op == "avg" else tensor
