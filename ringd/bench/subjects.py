"""The implementations that are measured, behind one small interface. Runs inside workers."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist

import ringd_client
from ringd.bench.ops import ROOT
from ringd.bench.tensors import Tensors, allocate


class Subject(Protocol):
    """One implementation on one rank."""

    rank: int
    world_size: int

    def tensors(self, op: str, count: int, dtype: torch.dtype, memory: str) -> Tensors:
        """Input and output of ``op``, where the larger one has ``count`` elements."""

    def run(self, op: str, tensors: Tensors, algorithm: str) -> None:
        """One operation, complete when it returns."""

    def sent_frames(self) -> int | None:
        """Frames that this rank has sent so far; None if nobody counts them."""

    def close(self) -> None:
        """End in order."""


class Ringd:
    """ringd, through the synchronous client."""

    def __init__(self) -> None:
        self.comm = ringd_client.connect()
        self.rank, self.world_size = self.comm.rank, self.comm.world_size

    def tensors(self, op: str, count: int, dtype: torch.dtype, memory: str) -> Tensors:
        """Tensors in ordinary memory or in the arena."""

        def make(size: int, dtype: torch.dtype) -> torch.Tensor:
            made = self.comm.empty if memory == "arena" else torch.empty
            found = made((size,), dtype=dtype)
            assert isinstance(found, torch.Tensor)
            return found

        return allocate(op, count, dtype, self.rank, self.world_size, make)

    def run(self, op: str, tensors: Tensors, algorithm: str) -> None:
        """One operation."""
        comm, source, out = self.comm, tensors.input, tensors.output
        match op:
            case "all_reduce":
                comm.all_reduce(source, algorithm=algorithm)
            case "reduce":
                comm.reduce(source, ROOT, algorithm=algorithm)
            case "broadcast":
                comm.broadcast(source, ROOT, algorithm=algorithm)
            case "all_gather":
                comm.all_gather(out, source, algorithm=algorithm)
            case "gather":
                comm.gather(out, source, ROOT, algorithm=algorithm)
            case "scatter":
                comm.scatter(out, source, ROOT, algorithm=algorithm)
            case "reduce_scatter":
                comm.reduce_scatter(out, source, algorithm=algorithm)
            case "all_to_all":
                comm.all_to_all(out, source, algorithm=algorithm)
            case "barrier":
                comm.barrier(algorithm=algorithm)
            case _:
                right, left = neighbours(self.rank, self.world_size)
                received = comm.irecv(out, left)
                comm.isend(source, right).wait()
                received.wait()

    def sent_frames(self) -> int:
        """By the daemon's count, on all links."""
        return sum(link["sent_frames"] for link in self.comm.status()["links"].values())

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
        return allocate(op, count, dtype, self.rank, self.world_size, _ordinary)

    def run(self, op: str, tensors: Tensors, algorithm: str) -> None:
        """One operation."""
        source: Any = tensors.input
        out: Any = tensors.output
        match op:
            case "all_reduce":
                dist.all_reduce(source)
            case "reduce":
                dist.reduce(source, ROOT)
            case "broadcast":
                dist.broadcast(source, ROOT)
            case "all_gather":
                gather_whole(out, source)
            case "gather":
                dist.gather(source, parts(out, self.world_size), ROOT)
            case "scatter":
                dist.scatter(out, parts(source, self.world_size), ROOT)
            case "reduce_scatter":
                reduce_parts(out, source)
            case "all_to_all":
                dist.all_to_all_single(out, source)
            case "barrier":
                dist.barrier()
            case _:
                pass_on(out, source, *neighbours(self.rank, self.world_size))

    def sent_frames(self) -> None:
        """Nobody counts them."""

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()


def neighbours(rank: int, n: int) -> tuple[int, int]:
    """Right and left."""
    return (rank + 1) % n, (rank - 1) % n


def parts(whole: torch.Tensor | None, n: int) -> list[torch.Tensor] | None:
    """A view of each rank's part, which costs a few µs per call; None of nothing."""
    return None if whole is None else list(whole.chunk(n))


def pass_on(out: torch.Tensor, source: torch.Tensor, right: int, left: int) -> None:
    """Send to the right and receive from the left, by torch.distributed."""
    sent, received = dist.isend(source, right), dist.irecv(out, left)
    assert sent is not None
    assert received is not None
    sent.wait()
    received.wait()


def _ordinary(size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(size, dtype=dtype)


# Their names were changed in torch 2.13; the old ones warn there, and the new ones are not before.
gather_whole: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_parts: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
