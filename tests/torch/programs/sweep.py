"""Every collective with every dtype and reduce op, as torch's scripts call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
    torch.complex64, torch.complex128, torch.uint16, torch.float8_e4m3fn,
)  # fmt: skip
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
COUNT = 6
"""Elements; 1 to 12 and their products with a few ranks are exact in every dtype."""


def data(dtype: torch.dtype, *, rank: int | None = None, count: int = COUNT) -> torch.Tensor:
    """Values that depend on rank and position."""
    rank = dist.get_rank() if rank is None else rank
    whole = torch.arange(count) % 3 + 1 + rank
    if dtype is torch.bool:
        return (whole % 2).bool()
    if dtype.is_complex:
        return torch.complex(whole.double(), (whole * 2).double()).to(dtype)
    if dtype in (torch.uint16, torch.float8_e4m3fn):
        return whole.to(torch.float32).to(dtype)
    return whole.to(dtype)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """What can be compared with torch.equal."""
    return tensor.view(torch.uint8) if tensor.dtype is torch.float8_e4m3fn else tensor


def tried(call: Callable[[], Any]) -> Any:
    """What a call gives, or in a text why it was refused.

    A group that failed has refused nothing: that is raised, with its verdict.
    """
    try:
        return call()
    except (RuntimeError, TypeError, ValueError) as exc:
        if isinstance(exc, dist.DistBackendError) and not isinstance(exc, (TypeError, ValueError)):
            raise
        return f"refused: {exc}"


def reductions() -> dict[str, Any]:
    """By dtype: all_reduce, reduce, reduce_scatter (list and tensor), of every op."""
    return {_name(dtype): _reductions(dtype) for dtype in DTYPES}


def moves() -> dict[str, Any]:
    """By dtype: all calls that move data."""
    return {_name(dtype): _moves(dtype) for dtype in DTYPES}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _reductions(dtype: torch.dtype) -> dict[str, Any]:
    return {
        f"{call.__name__} {name}": tried(lambda call=call, name=name: call(dtype, _op(name)))
        for name in OPS
        for call in (all_reduce, reduce, reduce_scatter, reduce_scatter_tensor)
    }


def _moves(dtype: torch.dtype) -> dict[str, Any]:
    calls = (
        broadcast, all_gather, all_gather_into_tensor, gather, scatter, all_to_all_single,
        all_to_all_single_uneven, send_and_recv,
    )  # fmt: skip
    return {call.__name__: tried(lambda call=call: call(dtype)) for call in calls}


def _op(name: str) -> Any:
    return getattr(dist.ReduceOp, name)


def all_reduce(dtype: torch.dtype, op: Any) -> Any:
    tensor = data(dtype)
    dist.all_reduce(tensor, op)
    return tensor


def reduce(dtype: torch.dtype, op: Any) -> Any:
    root = dist.get_world_size() - 1
    tensor = data(dtype)
    dist.reduce(tensor, root, op)
    return tensor if dist.get_rank() == root else None


def reduce_scatter(dtype: torch.dtype, op: Any) -> Any:
    out = torch.empty(2, dtype=dtype)
    parts = [data(dtype, count=2) for _ in range(dist.get_world_size())]
    dist.reduce_scatter(out, parts, op)
    return out


def reduce_scatter_tensor(dtype: torch.dtype, op: Any) -> Any:
    out = torch.empty(2, dtype=dtype)
    dist.reduce_scatter_tensor(out, data(dtype, count=2 * dist.get_world_size()), op)
    return out


def broadcast(dtype: torch.dtype) -> Any:
    tensor = data(dtype)
    dist.broadcast(tensor, 1)
    return plain(tensor)


def all_gather(dtype: torch.dtype) -> Any:
    outs = [torch.zeros(COUNT, dtype=dtype) for _ in range(dist.get_world_size())]
    dist.all_gather(outs, data(dtype))
    return [plain(t) for t in outs]


def all_gather_into_tensor(dtype: torch.dtype) -> Any:
    out = torch.zeros(COUNT * dist.get_world_size(), dtype=dtype)
    dist.all_gather_into_tensor(out, data(dtype))
    return plain(out)


def gather(dtype: torch.dtype) -> Any:
    outs = None
    if dist.get_rank() == 1:
        outs = [torch.zeros(COUNT, dtype=dtype) for _ in range(dist.get_world_size())]
    dist.gather(data(dtype), outs, dst=1)
    return outs and [plain(t) for t in outs]


def scatter(dtype: torch.dtype) -> Any:
    out = torch.zeros(COUNT, dtype=dtype)
    parts = None
    if dist.get_rank() == 1:
        parts = [data(dtype, rank=r) for r in range(dist.get_world_size())]
    dist.scatter(out, parts, src=1)
    return plain(out)


def all_to_all_single(dtype: torch.dtype) -> Any:
    n = dist.get_world_size()
    out = torch.zeros(2 * n, dtype=dtype)
    dist.all_to_all_single(out, data(dtype, count=2 * n))
    return plain(out)


def all_to_all_single_uneven(dtype: torch.dtype) -> Any:
    n, rank = dist.get_world_size(), dist.get_rank()
    sent = [to + 1 for to in range(n)]
    out = torch.zeros(n * (rank + 1), dtype=dtype)
    dist.all_to_all_single(out, data(dtype, count=sum(sent)), [rank + 1] * n, sent)
    return plain(out)


def send_and_recv(dtype: torch.dtype) -> Any:
    n, rank = dist.get_world_size(), dist.get_rank()
    tensor = torch.zeros(COUNT, dtype=dtype)
    sending = dist.isend(data(dtype), (rank + 1) % n, tag=3)
    source = dist.recv(tensor, (rank - 1) % n, tag=3)
    sending.wait()
    return [plain(tensor), source]
