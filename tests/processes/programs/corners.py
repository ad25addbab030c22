"""Cases from bug reports about dtypes, ops, zeros and layouts; values of interest travel back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ringd.vocabulary import REDUCE_OPS
from tests.processes.programs.basics import outcome
from tests.processes.programs.definition import ALGORITHMS, DTYPES, OPS
from tests.processes.trainer import Stage


def reduced(comm: Any, tensor: Any, op: str) -> dict[str, Any]:
    """What each reducing collective makes of a flat tensor, on this rank."""
    import torch

    whole = torch.cat([tensor] * comm.world_size)
    return {
        "all_reduce": comm.all_reduce(tensor.clone(), op),
        "reduce": comm.reduce(tensor.clone(), 0, op),
        "reduce_scatter": comm.reduce_scatter(torch.empty_like(tensor), whole, op),
    }


def refusals(comm: Any, tensor: Any, op: str) -> list[dict[str, Any]]:
    """How each reducing collective refuses; whether it changed the tensor."""
    import torch

    whole = torch.cat([tensor] * comm.world_size)
    before = tensor.clone()
    told = [
        outcome(lambda: comm.all_reduce(tensor, op)),
        outcome(lambda: comm.reduce(tensor, 0, op)),
        outcome(lambda: comm.reduce_scatter(tensor, whole, op)),
    ]
    for call in told:
        call["untouched"] = _bytes(tensor) == _bytes(before)
    return told


def averages(stage: Stage) -> dict[str, Any]:
    """N4: avg of 1 and 3 in float32, and of whole numbers, by every reducing collective."""
    import torch

    comm = stage.comm
    mine = torch.full((5,), [1.0, 3.0][comm.rank])
    told: dict[str, Any] = {
        "float32": [tensor.tolist() for tensor in reduced(comm, mine, "avg").values()],
        "refused": [],
    }
    for dtype, pair in (("int32", (7, 8)), ("int32", (-7, -8)), ("int8", (100, 100))):
        whole = torch.full((5,), pair[comm.rank], dtype=getattr(torch, dtype))
        told["refused"] += refusals(comm, whole, "avg")
    told["next"] = comm.all_reduce(torch.ones(3)).tolist()
    return told


def truths(stage: Stage) -> dict[str, Any]:
    """N6: [True, True, False] of each rank through every collective; the bytes that are stored."""
    import torch

    comm, n = stage.comm, stage.comm.world_size
    mine = torch.tensor([True, True, False])
    told: dict[str, Any] = {
        op: {name: _bytes(tensor) for name, tensor in reduced(comm, mine, op).items()}
        for op in OPS["bool"]
    }
    rows = torch.stack([mine] * n)
    neighbour = isent(comm, mine)
    moved = {
        "broadcast": comm.broadcast(mine.clone(), 1),
        "all_gather": comm.all_gather(torch.zeros_like(rows), mine),
        "gather": comm.gather(torch.zeros_like(rows) if comm.rank == 0 else None, mine, 0),
        "scatter": comm.scatter(torch.zeros_like(mine), rows if comm.rank == 0 else None, 0),
        "all_to_all": comm.all_to_all(torch.zeros_like(rows), rows),
        "recv": neighbour,
    }
    told["moved"] = {name: _bytes(tensor) for name, tensor in moved.items() if tensor is not None}
    empty = [torch.ones(0, 3, dtype=torch.bool) for _ in range(n)]
    comm.all_gather(empty, torch.ones(0, 3, dtype=torch.bool))
    told["empty"] = [[list(tensor.shape), str(tensor.dtype)] for tensor in empty]
    loose = torch.tensor([3, 0, 255], dtype=torch.uint8).view(torch.bool)
    told["loose"] = _bytes(comm.all_reduce(loose.clone()))
    return told


def isent(comm: Any, tensor: Any) -> Any:
    """What the left neighbour sent, while this rank sent ``tensor`` to the right one."""
    import torch

    sent = comm.isend(tensor, (comm.rank + 1) % comm.world_size)
    taken = torch.zeros_like(tensor)
    comm.recv(taken, (comm.rank - 1) % comm.world_size)
    sent.wait()
    return taken


def _bytes(tensor: Any) -> list[int]:
    import torch

    found: list[int] = tensor.contiguous().view(torch.uint8).reshape(-1).tolist()
    return found


def unsupported_pairs(stage: Stage) -> dict[str, Any]:
    """N6: every pair that the table has not; one ordinary sum after those of each dtype."""
    import torch

    comm = stage.comm
    told: dict[str, Any] = {"refused": {}, "sums": []}
    for dtype in DTYPES:
        for op in REDUCE_OPS:
            if op in OPS[dtype] or op == "premul_sum":
                continue
            tensor = torch.ones(4).to(getattr(torch, dtype))
            told["refused"][f"{dtype} {op}"] = refusals(comm, tensor, op)
        told["sums"].append(comm.all_reduce(torch.ones(2)).tolist())
    return told


def complex_numbers(stage: Stage) -> dict[str, Any]:
    """N7: 1+2j and 3+4j through the reducing collectives; ops that need an order."""
    import torch

    comm = stage.comm
    mine = torch.full((3,), [1 + 2j, 3 + 4j][comm.rank], dtype=torch.complex64)
    told: dict[str, Any] = {}
    for op in ("sum", "prod"):
        told[op] = {
            name: [str(tensor.dtype), *([v.real, v.imag] for v in tensor.tolist())]
            for name, tensor in reduced(comm, mine, op).items()
        }
    gathered = comm.all_gather(torch.zeros(2, 3, dtype=torch.complex64), mine.conj())
    told["conjugates"] = [[v.real, v.imag] for v in gathered[:, 2].tolist()]
    told["refused"] = [
        call for op in ("max", "min", "band", "bxor") for call in refusals(comm, mine, op)
    ]
    told["next"] = float(comm.all_reduce(torch.ones(1))[0])
    return told


def complex_layer(stage: Stage) -> dict[str, bool]:
    """N7: one step of data-parallel training of a complex Linear layer, and on all the data."""
    import torch

    comm, n = stage.comm, stage.comm.world_size
    torch.manual_seed(comm.rank)
    layer = torch.nn.Linear(6, 4, dtype=torch.complex64)
    for parameter in layer.parameters():
        comm.broadcast(parameter, 0)
    data = torch.randn(8 * n, 6, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))
    alone = torch.nn.Linear(6, 4, dtype=torch.complex64)
    alone.load_state_dict(layer.state_dict())
    layer(data[comm.rank :: n]).abs().square().mean().backward()
    alone(data).abs().square().mean().backward()
    for parameter in layer.parameters():
        comm.all_reduce(parameter.grad, "avg")
    pairs: Any = list(zip(layer.parameters(), alone.parameters(), strict=True))
    return {
        "close": all(torch.allclose(p.grad, q.grad, rtol=1e-5, atol=1e-6) for p, q in pairs),
        "complex": all(p.grad.dtype == torch.complex64 for p, _ in pairs),
    }


PECULIAR = {
    "float32": [-(2**31), 0x7FC12345, 0x7F812345, 1],  # -0.0, NaNs with payloads, subnormal
    "bfloat16": [-(2**15), 0x7FC5, 0x7F85, 1, 0x4380],  # the last is 257, cast to bfloat16
}


def peculiar_bits(stage: Stage) -> dict[str, Any]:
    """N9 (a): moves keep every bit; which they were, and which came, as whole numbers."""
    import torch

    comm, n = stage.comm, stage.comm.world_size
    told: dict[str, Any] = {}
    for dtype, patterns in PECULIAR.items():
        raw = torch.int32 if dtype == "float32" else torch.int16
        bits = torch.tensor(patterns, dtype=raw)
        odd = bits.view(getattr(torch, dtype))
        assert dtype != "bfloat16" or odd[-1] == torch.tensor(257.0).to(torch.bfloat16)
        blank = torch.zeros_like(odd)
        rows = torch.stack([odd] * n)
        moved = {
            "broadcast": comm.broadcast(odd.clone() if comm.rank == 0 else blank.clone(), 0),
            "all_gather": comm.all_gather(torch.zeros_like(rows), odd)[1],
            "scatter": comm.scatter(blank.clone(), rows if comm.rank == 0 else None, 0),
            "all_to_all": comm.all_to_all(torch.zeros_like(rows), rows)[-1],
            "recv": isent(comm, odd),
        }
        told[dtype] = {name: tensor.view(raw).tolist() for name, tensor in moved.items()}
    return told


def zeros(stage: Stage) -> dict[str, Any]:
    """N9 (b), (c): sums of -0.0 by every algorithm, and min and max of both zeros, as bits."""
    import torch

    comm, n = stage.comm, stage.comm.world_size
    sums, least = {}, {}
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        kind = getattr(torch, dtype)
        for name in ALGORITHMS["all_reduce"]:
            # 5 is no multiple of 3 ranks: what fills up chunks must not get into the results.
            mine = torch.full((5,), -0.0, dtype=kind)
            sums[f"all_reduce {dtype} {name}"] = comm.all_reduce(mine, algorithm=name)
            mixed = torch.full((5,), -0.0 if comm.rank == 1 else 0.0, dtype=kind)
            for op in ("min", "max"):
                found = comm.all_reduce(mixed.clone(), op, algorithm=name)
                least[f"{op} {dtype} {name}"] = _bytes(found)
        whole = torch.full((n, 5), -0.0, dtype=kind)
        part = torch.ones(5, dtype=kind)
        sums[f"reduce_scatter {dtype}"] = comm.reduce_scatter(part, whole)
        sums[f"reduce {dtype}"] = comm.reduce(torch.full((5,), -0.0, dtype=kind), 2)
    negative = {k: bool(((t == 0) & t.signbit()).all()) for k, t in sums.items()}
    return {"negative": negative, "least": least}


def channels_last(stage: Stage, ranks: list[int]) -> dict[str, bool]:
    """S4: arange(16) as (2,2,2,2), channels_last on some ranks: is each result as it should be?"""
    import torch

    comm = stage.comm
    base = torch.arange(16.0).reshape(2, 2, 2, 2)

    def mine() -> Any:
        tensor = base * (comm.rank + 1)
        form = torch.channels_last if comm.rank in ranks else torch.contiguous_format
        return tensor.contiguous(memory_format=form)

    assert mine().is_contiguous() == (comm.rank not in ranks)
    gathered = [mine().zero_() for _ in range(comm.world_size)]
    comm.all_gather(gathered, mine())
    return {
        "all_gather": all(torch.equal(t, base * (r + 1)) for r, t in enumerate(gathered)),
        "all_reduce": torch.equal(comm.all_reduce(mine()), base * 3),
        "broadcast from 0": torch.equal(comm.broadcast(mine(), 0), base),
        "broadcast from 1": torch.equal(comm.broadcast(mine(), 1), base * 2),
        "all_to_all": torch.equal(
            comm.all_to_all(mine().zero_(), mine()),
            torch.stack([base[comm.rank] * (r + 1) for r in range(comm.world_size)]),
        ),
    }


def uneven_lengths(stage: Stage) -> dict[str, Any]:
    """S9: all_gather of lengths 5, 0, 3, and reduce_scatter counts 2, 0, 4."""
    import torch

    comm = stage.comm
    lengths = [5, 0, 3]
    mine = torch.arange(float(lengths[comm.rank])) + 10 * comm.rank
    listed = comm.all_gather([torch.full((length,), -1.0) for length in lengths], mine)
    counts = [2, 0, 4]
    part = torch.full((counts[comm.rank],), -1.0)
    comm.reduce_scatter(part, torch.arange(6.0) * (comm.rank + 1), counts=counts)
    return {"all_gather": [tensor.tolist() for tensor in listed], "part": part.tolist()}


def split_rows(stage: Stage, inputs: list[list[int]], outputs: list[list[int]]) -> dict[str, Any]:
    """S9: all_to_all with these splits of each rank, and two ordinary sums: how they ended."""
    comm = stage.comm
    sent, got = inputs[comm.rank], outputs[comm.rank]
    given = np.arange(float(sum(sent))) + 10 * comm.rank
    output = np.full(sum(got), -1.0)
    first = outcome(
        lambda: comm.all_to_all(output, given, input_splits=sent, output_splits=got).tolist()
    )
    first["output"] = output.tolist()
    following, last = (outcome(lambda: comm.all_reduce(np.ones(2)).tolist()) for _ in range(2))
    return {"first": first, "next": following, "last": last}
