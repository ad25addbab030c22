"""The implementations that are measured, behind one small interface. Runs inside workers."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist

import ringd_client
from ringd.vocabulary import DTYPES

Tensors = dict[str, Any]


class Subject(Protocol):
    """One implementation on one rank."""

    rank: int
    world_size: int

    def tensors(self, op: str, count: int, dtype: torch.dtype, memory: str) -> Tensors:
        """Input and output of ``op``, where ``count`` elements are the whole."""

    def run(self, op: str, tensors: Tensors, algorithm: str) -> None:
        """One operation, complete when it returns."""

    def close(self) -> None:
        """End in order."""


def dtype_of(name: str) -> torch.dtype:
    """The torch dtype of a name."""
    found = getattr(torch, DTYPES[name].name)
    assert isinstance(found, torch.dtype)
    return found


def fill(tensors: Tensors, op: str, rank: int) -> None:
    """Data that depends on rank and position, small enough to be exact in every dtype."""
    source = tensors["input"]
    values = torch.arange(source.numel()) % 61 + rank + 1
    source.copy_(values.to(source.dtype).reshape(source.shape))


def holds(tensors: Tensors, op: str, rank: int, n: int) -> bool:
    """Whether the result is what the definition of ``op`` gives on :func:`fill`'s data."""
    if op == "barrier":
        return True
    source, out = tensors["input"], tensors["output"]
    base = torch.arange(source.numel()) % 61
    if op == "all_reduce":
        expected = base * n + n * (n + 1) // 2
    elif op == "broadcast":
        expected = base + 1
    elif op == "all_gather":
        expected = torch.cat([base + r + 1 for r in range(n)])
    else:
        part = source.numel() // n
        expected = (base * n + n * (n + 1) // 2)[rank * part : (rank + 1) * part]
    return bool(torch.equal(out.reshape(-1).to(torch.float64), expected.to(torch.float64)))


def _shapes(op: str, count: int, n: int) -> tuple[int, int]:
    """Elements of input and output of one rank."""
    if op == "all_gather":
        return count // n, count // n * n
    if op == "reduce_scatter":
        return count // n * n, count // n
    return count, count


class Ringd:
    """ringd, through the synchronous client."""

    def __init__(self) -> None:
        self.comm = ringd_client.connect()
        self.rank, self.world_size = self.comm.rank, self.comm.world_size

    def tensors(self, op: str, count: int, dtype: torch.dtype, memory: str) -> Tensors:
        """Tensors in ordinary memory or in the arena."""
        n_in, n_out = _shapes(op, count, self.world_size)
        make = self.comm.empty if memory == "arena" else torch.empty
        source = make((n_in,), dtype=dtype)
        return {"input": source, "output": source if n_in == n_out else make((n_out,), dtype=dtype)}

    def run(self, op: str, tensors: Tensors, algorithm: str) -> None:
        """One operation."""
        source, out = tensors["input"], tensors["output"]
        if op == "all_reduce":
            self.comm.all_reduce(source, algorithm=algorithm)
        elif op == "broadcast":
            self.comm.broadcast(source, 0, algorithm=algorithm)
        elif op == "all_gather":
            self.comm.all_gather(out, source, algorithm=algorithm)
        elif op == "reduce_scatter":
            self.comm.reduce_scatter(out, source, algorithm=algorithm)
        else:
            self.comm.barrier(algorithm=algorithm)

    def close(self) -> None:
        """Say goodbye."""
        self.comm.close()


class Gloo:
    """torch.distributed's gloo."""

    def __init__(self, rank: int, world_size: int, init_method: str) -> None:
        self.rank, self.world_size = rank, world_size
        dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world_size)

    def tensors(self, op: str, count: int, dtype: torch.dtype, memory: str) -> Tensors:
        """Tensors in ordinary memory."""
        n_in, n_out = _shapes(op, count, self.world_size)
        source = torch.empty(n_in, dtype=dtype)
        return {
            "input": source,
            "output": source if n_in == n_out else torch.empty(n_out, dtype=dtype),
        }

    def run(self, op: str, tensors: Tensors, algorithm: str) -> None:
        """One operation."""
        source, out = tensors["input"], tensors["output"]
        if op == "all_reduce":
            dist.all_reduce(source)
        elif op == "broadcast":
            dist.broadcast(source, 0)
        elif op == "all_gather":
            dist.all_gather_into_tensor(out, source)
        elif op == "reduce_scatter":
            dist.reduce_scatter_tensor(out, source)
        else:
            dist.barrier()

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()
