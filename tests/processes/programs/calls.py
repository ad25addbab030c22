"""Calls by description, so that a test can let ranks make different ones, or wrong ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.processes.programs.basics import outcome
from tests.processes.trainer import Stage

Call = dict[str, Any]


def of_any_kind(stage: Stage, name: str) -> Call:
    """A call that is more than a collective of one tensor, with arguments that are right."""
    comm = stage.comm

    def coalesced() -> None:
        with comm.coalesce():
            comm.all_reduce(np.ones(3))
            comm.all_reduce(np.ones(4))

    made = {
        "none": lambda: None,
        "agree": lambda: comm.agree(True),
        "agree_async": lambda: comm.agree_async(True).wait(),
        "new_group": lambda: comm.new_group(range(comm.world_size)) and None,
        "all_gather_object": lambda: comm.all_gather_object(1),
        "sync_state": lambda: comm.sync_state({"a": np.ones(3)}) and None,
        "coalesce": coalesced,
        "empty": lambda: comm.empty(3, like="torch").tolist() and None,
    }
    return outcome(made[name])


def tensor_of(call: Call, comm: Any) -> Any:
    """The call's tensor: as ``tensor`` says, or of ``shape`` and ``dtype`` with known values."""
    kind = call.get("tensor", "array")
    shape, dtype = call.get("shape", [5]), call.get("dtype", "float32")
    if "counts" in call:
        shape = [call["counts"][comm.rank], *shape[1:]]
    if kind == "list":
        return [1.0, 2.0]
    if kind == "none":
        return None
    if kind == "overlapping":
        return np.lib.stride_tricks.as_strided(np.zeros(3), (3, 4), (8, 0))
    if kind == "arena":
        array = comm.empty(shape, dtype, like="numpy")
        array[...] = 1 + comm.rank
        return array
    array = np.full(shape, 1 + comm.rank).astype(dtype)
    if kind == "read-only":
        array.flags.writeable = False
    return array


def make(comm: Any, call: Call, tensor: Any) -> Any:
    """Make the call; as JSON what it wrote."""
    collective = call.get("collective", "all_reduce")
    options: Call = {
        name: call[name]
        for name in ("algorithm", "deterministic", "timeout_s", "recv_timeout_ms", "preserve_input")
        if name in call
    }
    if collective == "barrier":
        comm.barrier(**options)
        return None
    return _make(comm, call, collective, tensor, options)


def _make(comm: Any, call: Call, collective: str, tensor: Any, options: Call) -> Any:
    n, op, root = comm.world_size, call.get("op", "sum"), call.get("root", 0)
    counts = call.get("counts")
    many = (sum(counts), *tensor.shape[1:]) if counts else (n, *getattr(tensor, "shape", ()))
    parts = {"counts": counts} if counts else {}
    if collective in ("all_gather", "gather", "scatter", "reduce_scatter", "all_to_all"):
        whole = np.full(many, 1 + comm.rank).astype(tensor.dtype)
    if collective == "broadcast":
        return comm.broadcast(tensor, root, **options).tolist()
    if collective == "reduce":
        return comm.reduce(tensor, root, op, **options).tolist()
    if collective == "all_gather":
        return comm.all_gather(whole, tensor, **parts, **options).tolist()
    if collective == "gather":
        taken = whole if comm.rank == root else None
        return np.array(comm.gather(taken, tensor, root, **parts, **options)).tolist()
    if collective == "scatter":
        given = whole if comm.rank == root else None
        return comm.scatter(tensor, given, root, **parts, **options).tolist()
    if collective == "reduce_scatter":
        return comm.reduce_scatter(tensor, whole, op, **parts, **options).tolist()
    if collective == "all_to_all":
        return comm.all_to_all(np.zeros_like(whole), whole, **options).tolist()
    return comm.all_reduce(tensor, op, **options).tolist()


def each_its_own(stage: Stage, calls: list[Call]) -> dict[str, Any]:
    """``calls[rank]``, then two ordinary sums: how all ended, and if the input is as before."""
    comm = stage.comm
    call = calls[comm.rank]
    tensor = tensor_of(call, comm)
    before = np.array(tensor).copy() if tensor is not None else None
    first = outcome(lambda: make(comm, call, tensor))
    if before is not None:
        first["untouched"] = bool(np.array_equal(before, np.array(tensor)))
    plain: Call = {"shape": [3]}
    following = outcome(lambda: make(comm, plain, tensor_of(plain, comm)))
    last = outcome(lambda: make(comm, plain, tensor_of(plain, comm)))
    status = comm.status()
    return {"first": first, "next": following, "last": last, "seq": status["next_seq"]}


def sums(stage: Stage, sizes: list[int]) -> list[dict[str, Any]]:
    """Sums of float32 tensors of so many elements, one after another: how each ends, and its
    first and last element."""

    def sum_of(size: int) -> list[float]:
        made = stage.comm.all_reduce(np.full(size, 1 + stage.comm.rank, np.float32))
        return [float(made[0]), float(made[-1])]

    return [outcome(lambda size=size: sum_of(size)) for size in sizes]


def sequence(stage: Stage, calls: list[Call]) -> list[dict[str, Any]]:
    """One call after another, whatever comes of them."""
    comm = stage.comm
    return [outcome(lambda call=call: make(comm, call, tensor_of(call, comm))) for call in calls]
