"""Tensors of the measured operations: their memory, their contents, and what must come out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ringd.bench import ops
from ringd.vocabulary import DTYPES

Make = Callable[[int, torch.dtype], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Tensors:
    """Input and output of one rank.

    Attributes:
        input: None where the operation has none on this rank.
        output: likewise; it is ``input`` where the operation works in place.
    """

    input: torch.Tensor | None
    output: torch.Tensor | None

    def clear(self) -> None:
        """Make all of it zeros, which stay zeros whatever is summed how often."""
        for tensor in (self.input, self.output):
            if tensor is not None:
                tensor.zero_()


def dtype_of(name: str) -> torch.dtype:
    """The torch dtype of a name."""
    found = getattr(torch, DTYPES[name].name)
    assert isinstance(found, torch.dtype)
    return found


def allocate(op: str, count: int, dtype: torch.dtype, rank: int, n: int, make: Make) -> Tensors:
    """The tensors of ``rank``, where the larger of an operation's two has ``count`` elements."""
    n_in, n_out = ops.counts(op, count, n)
    absent = ops.OPS[op].at_root if rank != ops.ROOT else ""
    source = None if n_in is None or absent == "input" else make(n_in, dtype)
    if ops.OPS[op].output == "input":
        return Tensors(source, source)
    return Tensors(source, None if n_out is None or absent == "output" else make(n_out, dtype))


def fill(tensors: Tensors, rank: int) -> None:
    """Data that depends on rank and position, and nothing in the output.

    Whole numbers so small that their sums over four ranks are exact in every dtype that is
    reduced, and that they themselves are told apart in all others.
    """
    tensors.clear()
    if tensors.input is not None:
        tensors.input.copy_(_contribution(tensors.input.numel(), rank).to(tensors.input.dtype))


def holds(tensors: Tensors, op: str, count: int, rank: int, n: int) -> bool:
    """Whether the output is, bit by bit, what the definition of ``op`` gives on such data.

    After a reduce only the root's tensor counts: gloo uses the others as scratch memory.
    """
    out = tensors.output
    if out is None or (op == "reduce" and rank != ops.ROOT):
        return True
    expected = _expected(op, count, rank, n).to(out.dtype)
    return torch.equal(out.view(torch.uint8), expected.view(torch.uint8))


def _contribution(count: int, rank: int) -> torch.Tensor:
    return torch.arange(count) % 61 + rank + 1


def _sum(count: int, n: int) -> torch.Tensor:
    return torch.arange(count) % 61 * n + n * (n + 1) // 2


def _expected(op: str, count: int, rank: int, n: int) -> torch.Tensor:
    """The output of a rank that has one."""
    part = count // n
    own = slice(rank * part, (rank + 1) * part)
    match op:
        case "all_reduce" | "reduce":
            return _sum(count, n)
        case "broadcast":
            return _contribution(count, ops.ROOT)
        case "all_gather" | "gather":
            return torch.cat([_contribution(part, r) for r in range(n)])
        case "scatter":
            return _contribution(part * n, ops.ROOT)[own]
        case "reduce_scatter":
            return _sum(part * n, n)[own]
        case "all_to_all":
            return torch.cat([_contribution(part * n, r)[own] for r in range(n)])
        case ops.SENDRECV:
            return _contribution(count, (rank - 1) % n)
    raise ValueError(f"{op!r} has no output")
