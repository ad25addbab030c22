"""How scripts use torch.distributed beside its plain collectives."""

from __future__ import annotations

import contextlib
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed import ReduceOp

from tests.torch.programs.sweep import data


def place() -> tuple[int, int]:
    """Rank and world size."""
    return dist.get_rank(), dist.get_world_size()


def asynchronous() -> Any:
    """Works: waited for, polled, by futures, with callbacks that call collectives, dropped."""
    rank, n = place()
    seen: dict[str, Any] = {}
    tensors = [torch.arange(5.0) * i + rank for i in range(4)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    for work in reversed(works):
        work.wait()
    seen["in any order"] = tensors
    polled = torch.arange(7.0) + rank
    work = dist.all_reduce(polled, async_op=True)
    while not work.is_completed():
        pass
    # gloo's can't be asked before torch 2.13: C++ has no such type for Python.
    exception = work.exception() if dist.get_backend() == "ringd" else None
    seen["polled"] = polled, work.is_success(), exception
    future = dist.all_reduce(torch.ones(3) * rank, async_op=True).get_future()

    def another(done: Any) -> Any:
        tensor = done.value()[0].clone()
        dist.all_reduce(tensor)  # a callback may wait for another collective
        return tensor

    seen["callback"] = future.then(another).wait()
    gathered = [torch.zeros(2) for _ in range(n)]
    dist.all_gather(gathered, torch.ones(2) * rank, async_op=True).wait()
    seen["gathered"] = gathered
    dropped = torch.ones(4)
    dist.all_reduce(dropped, async_op=True)
    dist.barrier()
    dist.all_reduce(torch.ones(1))
    work = dist.barrier(async_op=True)
    work.wait()
    work = dist.all_reduce(torch.ones(2) * rank, async_op=True)
    work.wait()
    seen["result"] = work.result()
    return seen


def groups() -> Any:
    """Sub-groups, overlapping, unsorted, of one, made with local synchronization, freed, again."""
    rank, n = place()
    seen: dict[str, Any] = {}
    lists = {"low": [0, 1], "ends": [n - 1, 0], "alone": [1], "all": list(range(n))}
    made = {name: dist.new_group(ranks) for name, ranks in lists.items()}
    for name, ranks in lists.items():
        if rank in ranks:
            tensor = torch.arange(4.0) + rank
            dist.all_reduce(tensor, group=made[name])
            seen[name] = tensor, dist.get_rank(made[name]), dist.get_world_size(made[name])
    half = [0, 1] if rank < 2 else list(range(2, n))
    for _ in range(3 if dist.get_backend() == "ringd" else 0):  # gloo meets its own stale keys
        local = dist.new_group(half, use_local_synchronization=True)
        tensor = torch.ones(2) * rank
        dist.all_reduce(tensor, group=local)
        assert tensor.tolist() == [float(sum(half))] * 2
        dist.destroy_process_group(local)
    if rank in lists["low"]:
        dist.destroy_process_group(made["low"])
    dist.barrier()
    subgroup, _ = dist.new_subgroups(1)
    tensor = torch.ones(1) * rank
    dist.all_reduce(tensor, group=subgroup)
    seen["subgroups"] = tensor
    return seen


def roots_of_groups() -> Any:
    """G1: group [1, 3] and [3, 1]; broadcast by global and group root, scatter, gather."""
    rank, _ = place()
    seen: dict[str, Any] = {}
    for ranks in ([1, 3], [3, 1]):
        group = dist.new_group(ranks)
        name = str(ranks)
        if rank not in ranks:
            with warnings.catch_warnings(record=True):
                warnings.simplefilter("always")
                seen[name + " outsider"] = dist.broadcast(torch.ones(1), src=3, group=group)
            continue
        by_global, by_group = data(torch.float32), data(torch.float32)
        dist.broadcast(by_global, src=3, group=group)
        dist.broadcast(by_group, group_src=dist.get_group_rank(group, 3), group=group)
        seen[name] = by_global, by_group
        got: list[Any] = [None]
        objects = [{"for": r} for r in (1, 3)] if rank == 3 else None
        dist.scatter_object_list(got, objects, src=3, group=group)
        outs = [torch.zeros(6) for _ in ranks] if rank == 1 else None
        dist.gather(data(torch.float32), outs, dst=1, group=group)
        seen[name + " rooted"] = got, outs
        try:
            dist.broadcast(torch.ones(1), src=0, group=group)
        except ValueError:
            seen[name + " wrong root"] = "ValueError"
    return seen


def objects() -> Any:
    """Object collectives, with None, nested and large ones."""
    rank, n = place()
    mine = {"rank": rank, "nested": [(1, 2.5), None, "é" * rank], "tensor": torch.arange(rank)}
    everybody: list[Any] = [None] * n
    dist.all_gather_object(everybody, mine)
    sent = [f"from {n - 1}", {"x": 1}] if rank == n - 1 else [None, None]
    dist.broadcast_object_list(sent, src=n - 1)
    gathered: list[Any] | None = [None] * n if rank == 0 else None
    dist.gather_object("x" * 100_000 * (rank + 1), gathered, dst=0)
    got: list[Any] = [None]
    dist.scatter_object_list(got, [[i] * i for i in range(n)] if rank == 0 else None, src=0)
    if rank == 0:
        dist.send_object_list([{"to": 1}], dst=1)
    received: list[Any] = [None]
    if rank == 1:
        dist.recv_object_list(received, src=0)
    lengths = gathered and [len(text) for text in gathered]
    return everybody, sent, lengths, got, received


def coalesced() -> Any:
    """The coalescing manager, and the calls that take lists of tensors."""
    rank, n = place()
    tensors = [torch.arange(float(k + 1)) + rank for k in range(3)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    later = [torch.ones(3) * (rank + k) for k in range(4)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in later:
            dist.all_reduce(tensor)
    manager.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.all_reduce_coalesced(listed := [torch.ones(2) * rank, torch.ones(5)])
    wholes = [torch.zeros(n * 2), torch.zeros(n * 3)]
    with dist._coalescing_manager():
        for whole in wholes:
            dist.all_gather_into_tensor(whole, torch.ones(len(whole) // n) * rank)
    parts = [torch.zeros(2), torch.zeros(1)]
    with dist._coalescing_manager():
        for part in parts:
            dist.reduce_scatter_tensor(part, torch.arange(float(n * len(part))) + rank)
    return tensors, later, listed, wholes, parts


def functional() -> Any:
    """Functional collectives, also under autograd."""
    rank, n = place()
    group = dist.group.WORLD
    tensor = torch.arange(float(n * 2)) + rank
    seen = [
        funcol.all_reduce(tensor, "sum", group) + 0,
        funcol.all_gather_tensor(tensor, 0, group) + 0,
        funcol.reduce_scatter_tensor(tensor, "sum", 0, group) + 0,
        funcol.all_to_all_single(tensor, None, None, group) + 0,
        funcol.broadcast(tensor, 1, group) + 0,
        *(t + 0 for t in funcol.all_reduce_coalesced([tensor, tensor * 2], "sum", group)),
    ]
    leaf = torch.ones(n, requires_grad=True)
    whole = funcol.all_gather_tensor_autograd(leaf * (rank + 1), 0, group)
    (whole * torch.arange(float(n * n))).sum().backward()
    return [t.detach() for t in seen], whole.detach(), leaf.grad


def premultiplied() -> Any:
    """PREMUL_SUM, which gloo has not."""
    rank, n = place()
    tensor = torch.ones(3) * (rank + 1)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
    part = torch.zeros(1)
    op = dist._make_nccl_premul_sum(torch.tensor(2.0))
    dist.reduce_scatter_tensor(part, torch.arange(float(n)), op)
    return tensor, part


def overloads() -> Any:
    """What groups take as methods, with fewer words than C++ gives."""
    rank, n = place()
    group: Any = dist.group.WORLD
    tensor = torch.arange(3.0) + rank
    group.allreduce([tensor], ReduceOp.SUM).wait()
    group.allreduce(other := torch.ones(2) * rank).wait()
    group.broadcast(sent := torch.ones(2) * rank, 1).wait()
    outs = [torch.zeros(2) for _ in range(n)]
    group.allgather(outs, torch.ones(2) * rank).wait()
    group.barrier(timeout=timedelta(seconds=20)).wait()
    return tensor, other, sent, outs


def layouts() -> Any:
    """S4: channels_last on all ranks, and on one only; strided and transposed tensors."""
    rank, n = place()
    seen = []
    for odd in (False, True):
        for call in ("all_gather", "all_reduce", "broadcast"):
            tensor = torch.arange(16.0).view(2, 2, 2, 2) + 100 * rank
            if not odd or rank == 0:
                tensor = tensor.to(memory_format=torch.channels_last)
            outs = [torch.zeros(2, 2, 2, 2) for _ in range(n)]
            if call == "all_gather":
                dist.all_gather(outs, tensor)
            elif call == "all_reduce":
                dist.all_reduce(tensor)
            else:
                dist.broadcast(tensor, 1)
            seen.append((call, tensor.contiguous(), outs))
    grid = torch.arange(10.0).view(2, 5) + rank
    dist.all_reduce(grid.t())
    column = torch.arange(4.0).view(2, 2) + rank
    dist.broadcast(column[:, 0], 0)
    whole = torch.zeros(2 * n, 2)
    dist.all_to_all_single(whole.t()[0], (torch.arange(4.0 * n) + rank).view(2 * n, 2)[:, 1])
    return seen, grid, column, whole


def parameters() -> Any:
    """S7: leaf parameters, with and without no_grad; inference mode; async or not."""
    rank, n = place()
    seen = []
    for guard in (torch.no_grad, contextlib.nullcontext):
        for async_op in (False, True):
            parameter = torch.nn.Parameter(torch.ones(3) * (rank + 1))
            with guard():
                for call in (dist.all_reduce, lambda t, **how: dist.broadcast(t, 1, **how)):
                    work = call(parameter, async_op=async_op)
                    if work is not None:
                        work.wait()
            leaf = parameter.requires_grad, parameter.is_leaf, parameter.grad
            seen.append((parameter.detach(), leaf))
    with torch.inference_mode():
        outs = [torch.zeros(2) for _ in range(n)]
        dist.all_gather(outs, torch.ones(2) * rank)
        seen.append([t.tolist() for t in outs])
    return seen


def empties() -> Any:
    """Tensors without elements, then ordinary calls."""
    rank, n = place()
    tensor = torch.zeros(1, 0, 2)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0)
    outs = [torch.ones(0, 3, dtype=torch.bool) for _ in range(n)]
    dist.all_gather(outs, torch.ones(0, 3, dtype=torch.bool))
    dist.barrier()
    after = torch.ones(2) * rank
    dist.all_reduce(after)
    return tensor, outs, after


def half() -> Any:
    """N1: bfloat16 sums that must not be rounded on the way, in all orders of the values."""
    values = [256.0, 1.0, 1.0]
    sums = []
    for turn in range(3):
        tensor = torch.full((3073,), values[(dist.get_rank() + turn) % 3], dtype=torch.bfloat16)
        dist.all_reduce(tensor)
        sums.append((tensor == 258.0).all().item())
    return sums


def sparse() -> Any:
    """all_reduce of sparse tensors: overlapping, empty, with dense dimensions."""
    rank, _ = place()
    seen = []
    for indices, width in (([[0, rank + 1]], 0), ([list(range(rank))], 2)):
        count = len(indices[0])
        values = torch.ones(count, width) * (rank + 1) if width else torch.ones(count) * (rank + 1)
        shape = (6, width) if width else (6,)
        tensor = torch.sparse_coo_tensor(torch.tensor(indices).long(), values, shape)
        dist.all_reduce(tensor)
        seen.append(tensor.to_dense())
    return seen


def complex_numbers() -> Any:
    """N7: complex sums and products; what has no order is refused before traffic."""
    rank, n = place()
    mine = torch.tensor([[1 + 2j, 3 + 4j][rank]] * n, dtype=torch.complex64)
    seen: list[Any] = []
    for name in ("SUM", "PRODUCT", "MAX"):
        for call in ("all_reduce", "reduce", "reduce_scatter"):
            tensor, out = mine.clone(), torch.zeros(1, dtype=torch.complex64)
            try:
                if call == "all_reduce":
                    dist.all_reduce(tensor, getattr(ReduceOp, name))
                elif call == "reduce":
                    dist.reduce(tensor, 0, getattr(ReduceOp, name))
                else:
                    dist.reduce_scatter_tensor(out, tensor, getattr(ReduceOp, name))
                value = out[0] if call == "reduce_scatter" else tensor[0]
                seen.append((name, call, value.item(), str(value.dtype)))
            except ValueError:
                seen.append((name, call, "ValueError"))
    dist.barrier()
    return seen
