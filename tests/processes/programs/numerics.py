"""Cases from bug reports about numbers, shapes and autograd; the values of interest travel back."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tests.processes.programs.values import ALL_REDUCE, digest
from tests.processes.trainer import Stage


def permuted_sums(stage: Stage, dtype: str, values: list[float], count: int) -> dict[str, Any]:
    """Constant tensors, their values in every order over the ranks, by every algorithm."""
    import torch

    comm = stage.comm
    found: dict[str, Any] = {}
    for order in sorted(set(itertools.permutations(values))):
        for algorithm in ALL_REDUCE:
            mine = torch.full((count,), order[comm.rank], dtype=getattr(torch, dtype))
            comm.all_reduce(mine, algorithm=algorithm)
            found[f"{order} {algorithm}"] = sorted(set(mine.tolist()))
    return found


def average(stage: Stage, dtype: str, value: float, count: int) -> dict[str, Any]:
    """The average of equal tensors, by every algorithm and by reduce_scatter."""
    import torch

    comm = stage.comm
    kind = getattr(torch, dtype)
    found: dict[str, Any] = {}
    for algorithm in ALL_REDUCE:
        mine = torch.full((count,), value, dtype=kind)
        found[algorithm] = sorted(set(comm.all_reduce(mine, "avg", algorithm=algorithm).tolist()))
    parts = torch.full((comm.world_size, count), value, dtype=kind)
    part = comm.reduce_scatter(torch.empty(count, dtype=kind), parts, "avg")
    found["reduce_scatter"] = sorted(set(part.tolist()))
    return found


def cancelling(stage: Stage, counts: list[int], repeats: int) -> dict[str, Any]:
    """N10: 1e8, 1, -1e8, 1 over ranks and positions; the hashes that came, per case."""
    comm = stage.comm
    digests: dict[str, list[str]] = {}
    for count, algorithm in itertools.product(counts, (*ALL_REDUCE, "deterministic")):
        mine = np.resize(np.roll([1e8, 1, -1e8, 1], -comm.rank), count).astype(np.float32)
        options: Any = {"algorithm": algorithm}
        if algorithm == "deterministic":
            options = {"deterministic": True}
        seen = set()
        for _ in range(repeats):
            result = comm.all_reduce(mine.copy(), **options)
            seen.add(_numpy_digest(result))
        digests[f"{count} {algorithm}"] = sorted(seen)
    return digests


def _numpy_digest(array: Any) -> str:
    import hashlib

    return hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()


def left_fold_of_cancelling(stage: Stage) -> float:
    """Each rank gives one of 1e8, 1, -1e8, 1; the sum by deterministic=True."""
    mine = np.array([[1e8, 1, -1e8, 1][stage.comm.rank]], dtype=np.float32)
    return float(stage.comm.all_reduce(mine, deterministic=True)[0])


def sixteen_million_and_one(stage: Stage) -> list[Any]:
    """N12: rank 0 has 2**24 + 1 in float64, the other 0: sum by every algorithm, and broadcast."""
    comm = stage.comm
    mine = 16777217.0 if comm.rank == 0 else 0.0
    found: list[Any] = []
    for algorithm in ALL_REDUCE:
        result = comm.all_reduce(np.array([mine]), algorithm=algorithm)
        found.append([str(result.dtype), float(result[0])])
    result = comm.broadcast(np.array([mine]), 0)
    return [*found, [str(result.dtype), float(result[0])]]


def nothing_by_every_collective(stage: Stage) -> dict[str, Any]:
    """S1: shape (1, 0, 2) through all collectives and algorithms; then a barrier and a sum."""
    import torch

    comm = stage.comm
    n = comm.world_size
    shapes = [comm.all_reduce(torch.empty(1, 0, 2), algorithm=name) for name in ALL_REDUCE]
    shapes.append(comm.reduce_scatter(torch.empty(1, 0, 2), torch.empty(n, 1, 0, 2)))
    shapes.append(comm.broadcast(torch.empty(1, 0, 2), 1))
    gathered = comm.all_gather(torch.empty(n, 1, 0, 2), torch.empty(1, 0, 2))
    comm.barrier()
    total = comm.all_reduce(torch.full((3,), float(comm.rank)))
    return {
        "shapes": [[list(t.shape), str(t.dtype)] for t in shapes],
        "gathered": list(gathered.shape),
        "sum": total.tolist(),
        "next_seq": comm.status()["next_seq"],
    }


def strided(stage: Stage) -> dict[str, Any]:
    """S3: columns, steps and transposes, in place on memory whose gaps must stay as they are."""
    import torch

    comm = stage.comm
    rank, n = comm.rank, comm.world_size
    square = torch.arange(4.0).reshape(2, 2) + 10 * rank
    comm.broadcast(square[:, 0], 0)
    wide = torch.arange(20.0).reshape(2, 10) * (rank + 1)
    comm.all_reduce(wide[:, ::2].t())
    steps = torch.linspace(0, 5, 6) + rank
    gathered = torch.full((n, 3, 2), -1.0)
    comm.all_gather(gathered[:, :, 1], steps[::2])
    table = torch.arange(12.0).reshape(3, 4) + rank
    part = torch.full((6, 2), -1.0)
    comm.reduce_scatter(part[:, 0], table.t())
    return {
        "square": square.tolist(),
        "wide": wide.tolist(),
        "gathered": gathered.tolist(),
        "part": part.tolist(),
    }


def parameters(stage: Stage) -> dict[str, Any]:
    """S7: leaf parameters and inference mode, blocking and not, with grad mode on and off."""
    import torch

    comm = stage.comm
    found: dict[str, Any] = {}
    for grad in (True, False):
        for blocking in (True, False):
            with torch.set_grad_enabled(grad):
                summed = torch.nn.Parameter(torch.ones(3))
                cast = torch.nn.Parameter(torch.full((3,), float(comm.rank)))
                if blocking:
                    comm.all_reduce(summed)
                    comm.broadcast(cast, 1)
                else:
                    handles = [comm.all_reduce_async(summed), comm.broadcast_async(cast, 1)]
                    for handle in handles:
                        handle.wait()
            found[f"grad={grad} blocking={blocking}"] = [
                [p.tolist(), p.requires_grad, p.is_leaf, p.grad is None] for p in (summed, cast)
            ]
    with torch.inference_mode():
        gathered = torch.zeros(comm.world_size, 2)
        comm.all_gather(gathered, torch.full((2,), float(comm.rank)))
        later = torch.zeros(comm.world_size, 2)
        comm.all_gather_async(later, torch.full((2,), float(comm.rank))).wait()
    found["gathered"] = [gathered.tolist(), later.tolist()]
    return found


def not_a_number(stage: Stage) -> dict[str, Any]:
    """NaN on one rank through min and max; moves of values with peculiar bits."""
    import torch

    comm = stage.comm
    rank, n = comm.rank, comm.world_size
    found: dict[str, Any] = {}
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for op in ("min", "max"):
            for algorithm in ALL_REDUCE:
                mine = torch.full((5,), float("nan") if rank == 1 else 1.0, dtype=dtype)
                comm.all_reduce(mine, op, algorithm=algorithm)
                found[f"{dtype} {op} {algorithm}"] = bool(mine.isnan().all())
    bits = torch.tensor([-(2**31), 0x7FC12345, 0x7F812345, 1], dtype=torch.int32)
    odd = bits.view(torch.float32)  # -0.0, NaNs with payloads, the smallest subnormal
    moved = odd.clone() if rank == 0 else torch.zeros(4)
    comm.broadcast(moved, 0)
    gathered = comm.all_gather(torch.zeros(n, 4), odd)
    found["broadcast"] = moved.view(torch.int32).tolist() == bits.tolist()
    found["all_gather"] = gathered.view(torch.int32).tolist() == [bits.tolist()] * n
    found["digest"] = digest(gathered)
    return found
