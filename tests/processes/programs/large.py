"""Tensors of more than 2 GiB, whose lengths do not fit 32 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.processes.trainer import Stage

BYTES = 2**31 + 8
PERIOD = 251
"""A prime, so that no chunk or segment begins where another one's pattern does."""
SAMPLE = 4096


def places(count: int) -> list[slice]:
    """Head, tail, the middle, and where a signed and an unsigned 32-bit offset would wrap."""
    wrap = min(2**31 // (BYTES // count), count - 1)
    middle, edge = count // 2, max(0, wrap - SAMPLE // 2)
    starts = (0, middle - SAMPLE // 2, edge, count - SAMPLE)
    return [slice(start, min(start + SAMPLE, count)) for start in starts]


def filled(comm: Any, dtype: str, rank: int) -> Any:
    """A tensor in the arena of BYTES bytes: its values depend on the position and the rank."""
    count = BYTES // np.dtype(dtype).itemsize
    tensor = comm.empty(count, dtype, like="numpy")
    pattern = _pattern(dtype, rank)
    whole = count // PERIOD
    tensor[: whole * PERIOD].reshape(whole, PERIOD)[...] = pattern
    tensor[whole * PERIOD :] = pattern[: count % PERIOD]
    return tensor


def _pattern(dtype: str, rank: int) -> Any:
    return (np.arange(PERIOD) % 100 + rank * 7).astype(dtype)


def _expected(dtype: str, ranks: list[int], part: slice) -> Any:
    total = np.sum([_pattern(dtype, rank) for rank in ranks], axis=0, dtype=dtype)
    return total[np.arange(part.start, part.stop) % PERIOD]


def _wrong(tensor: Any, dtype: str, ranks: list[int]) -> list[str]:
    return [
        f"{dtype} {part}: {tensor[part][:4]}"
        for part in places(tensor.size)
        if not np.array_equal(tensor[part], _expected(dtype, ranks, part))
    ]


def summed(stage: Stage, dtype: str) -> list[str]:
    """Sum over all ranks; the samples that are wrong."""
    comm = stage.comm
    tensor = filled(comm, dtype, comm.rank)
    assert tensor.nbytes == BYTES
    comm.all_reduce(tensor, timeout_s=500)
    return _wrong(tensor, dtype, list(range(comm.world_size)))


def sent(stage: Stage, dtype: str) -> list[str]:
    """Rank 0 sends to rank 1; the samples that are wrong there."""
    comm = stage.comm
    if comm.rank == 0:
        comm.send(filled(comm, dtype, 0), 1, timeout_s=500)
        return []
    tensor = filled(comm, dtype, 1)
    assert comm.recv(tensor, 0, timeout_s=500) == 0
    return _wrong(tensor, dtype, [0])
