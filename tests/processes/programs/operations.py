"""Every collective, dtype and op, held against the definition, and gloo where it has the case."""

from __future__ import annotations

from typing import Any

import numpy as np

import ringd_client
from tests.processes.programs import definition
from tests.processes.programs.definition import COMPLEX, FLOAT8, Case
from tests.processes.trainer import Stage


class Library:
    """Tensors of numpy or of torch, out of values of the reference and back."""

    def __init__(self, name: str) -> None:
        self.name = name
        if name == "torch":
            import torch

            self.torch = torch

    def tensor(self, values: Any, dtype: str) -> Any:
        """A tensor of ``dtype`` with these values."""
        if self.name == "numpy":
            return values.astype(dtype)
        kind = getattr(self.torch, dtype)
        tensor = self.torch.from_numpy(values.copy())
        return tensor.view(kind) if dtype in FLOAT8 else tensor.to(kind)

    def empty(self, count: int, dtype: str) -> Any:
        """A tensor with values that no result has."""
        if self.name == "numpy":
            return np.full(count, 77).astype(dtype)
        return self.torch.full((count,), 77.0).to(getattr(self.torch, dtype))

    def values(self, tensor: Any, dtype: str) -> Any:
        """A tensor's values in the reference's dtype."""
        if self.name == "numpy":
            return tensor.astype(definition.carrier(dtype))
        if dtype in FLOAT8:
            return tensor.view(self.torch.uint8).numpy()
        return tensor.to(getattr(self.torch, definition.carrier(dtype))).numpy()


class Sweeper:
    """Makes calls and notes what is wrong with their results."""

    def __init__(self, stage: Stage, library: str) -> None:
        self.comm = stage.comm
        self.library = Library(library)
        self.wrong: list[str] = []
        self.made = 0
        self.by_gloo = 0

    @property
    def told(self) -> dict[str, Any]:
        return {"made": self.made, "by_gloo": self.by_gloo, "wrong": self.wrong[:20]}

    def hold(self, case: Case, who: str, tensor: Any) -> None:
        """Note it if a result is not what the definition says."""
        wanted = definition.expected(case, self.comm.rank, self.comm.world_size)
        if wanted is None or tensor is None:
            if wanted is not tensor:
                self.wrong.append(f"{who} {case}: {tensor} instead of {wanted}")
            return
        if str(tensor.dtype).removeprefix("torch.") != case.dtype:
            self.wrong.append(f"{who} {case}: dtype {tensor.dtype}")
        got = self.library.values(tensor, case.dtype)
        if got.shape != wanted.shape or not np.array_equal(got, wanted):
            self.wrong.append(f"{who} {case}: {got[:8]} instead of {wanted[:8]}")

    def make(self, case: Case, *, arena: bool) -> None:
        """One call through ringd."""
        comm, n = self.comm, self.comm.world_size
        mine = self._own(case, arena=arena)
        has_output = case.collective != "gather" or comm.rank == case.root
        sizes = {"all_gather": n, "gather": n, "all_to_all": n}
        size = case.count * sizes.get(case.collective, 1)
        output = self.library.empty(size, case.dtype) if has_output else None
        result = self._call(case, mine, output)
        self.made += 1
        self.hold(case, "ringd", result)

    def _own(self, case: Case, *, arena: bool) -> Any:
        values = definition.contribution(case, self.comm.rank, self.comm.world_size)
        tensor = self.library.tensor(values, case.dtype)
        if not arena:
            return tensor
        shared = self.comm.empty(len(tensor), tensor.dtype, like=self.library.name)
        shared[...] = tensor
        return shared

    def _call(self, case: Case, mine: Any, output: Any) -> Any:
        comm, how = self.comm, {"algorithm": case.algorithm}
        op: Any = case.op
        if op == "premul_sum":
            op = ringd_client.premul_sum(definition.factor(case.dtype, comm.rank))
        match case.collective:
            case "all_reduce":
                return comm.all_reduce(mine, op, **how)
            case "reduce":
                return comm.reduce(mine, case.root, op, **how)
            case "reduce_scatter":
                return comm.reduce_scatter(output, mine, op, **how)
            case "broadcast":
                return comm.broadcast(mine, case.root, **how)
            case "all_gather":
                return comm.all_gather(output, mine, **how)
            case "gather":
                return comm.gather(output, mine, case.root, **how)
            case "scatter":
                whole = mine if comm.rank == case.root else None
                return comm.scatter(output, whole, case.root, **how)
            case "all_to_all":
                return comm.all_to_all(output, mine, **how)
        n, left = comm.world_size, (comm.rank - 1) % comm.world_size
        sent = comm.isend(mine, (comm.rank + 1) % n, tag=5)
        assert comm.recv(output, left, tag=5) == left
        sent.wait()
        return output


def every_pair(stage: Stage, store: str, count: int) -> dict[str, Any]:
    """Every collective x dtype x op once by ringd, and by gloo in the same process."""
    sweeper = Sweeper(stage, "torch")
    comm = stage.comm
    gloo = Gloo(store, comm.rank, comm.world_size)
    for number, case in enumerate(definition.every_pair(count, root=comm.world_size - 2)):
        sweeper.make(case, arena=number % 2 > 0)
        if gloo.can(case):
            sweeper.by_gloo += 1
            mine = sweeper._own(case, arena=False)
            sweeper.hold(case, "gloo", gloo.make(case, mine, sweeper.library))
    gloo.close()
    return sweeper.told


def every_algorithm(
    stage: Stage, library: str, counts: list[int], dtypes: list[str]
) -> dict[str, Any]:
    """Every algorithm and root of every collective, for some dtypes."""
    sweeper = Sweeper(stage, library)
    cases = definition.every_algorithm(stage.comm.world_size, counts, dtypes)
    for number, case in enumerate(cases):
        sweeper.make(case, arena=number % 3 > 1)
    return sweeper.told


class Gloo:
    """torch.distributed beside ringd, in the same process."""

    def __init__(self, store: str, rank: int, n: int) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.rank, self.n = torch, dist, rank, n
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=n)
        reduce_ops = dist.ReduceOp
        self.ops = {
            "sum": reduce_ops.SUM,
            "prod": reduce_ops.PRODUCT,
            "min": reduce_ops.MIN,
            "max": reduce_ops.MAX,
            "avg": reduce_ops.AVG,
            "band": reduce_ops.BAND,
            "bor": reduce_ops.BOR,
            "bxor": reduce_ops.BXOR,
        }

    def can(self, case: Case) -> bool:
        """Whether gloo has this dtype and op."""
        if case.collective == "shift":
            return case.dtype not in FLOAT8[2:]
        if case.dtype == "int16" or case.dtype in FLOAT8:
            return False
        if case.dtype in COMPLEX:
            return case.op in ("sum", "avg") or (not case.op and case.collective != "gather")
        return case.op in ("", *self.ops)

    def make(self, case: Case, mine: Any, library: Library) -> Any:
        """The same call; its output on this rank."""
        dist, n = self.dist, self.n
        op = self.ops.get(case.op)
        is_root = self.rank == case.root
        part = library.empty(case.count, case.dtype)
        parts = [library.empty(case.count, case.dtype) for _ in range(n)]
        match case.collective:
            case "all_reduce":
                dist.all_reduce(mine, op)
            case "reduce":
                untouched = mine.clone()
                dist.reduce(mine, case.root, op)
                return mine if is_root else untouched  # gloo leaves partial sums there
            case "reduce_scatter":
                dist.reduce_scatter_tensor(part, mine, op)
                return part
            case "broadcast":
                dist.broadcast(mine, case.root)
            case "all_gather":
                dist.all_gather(parts, mine)
                return self.torch.cat(parts)
            case "gather":
                dist.gather(mine, parts if is_root else None, case.root)
                return self.torch.cat(parts) if is_root else None
            case "scatter":
                dist.scatter(part, list(mine.chunk(n)) if is_root else None, case.root)
                return part
            case "all_to_all":
                dist.all_to_all(parts, list(mine.chunk(n)))
                return self.torch.cat(parts)
            case "shift":
                sent = dist.isend(mine, (self.rank + 1) % n)
                dist.recv(part, (self.rank - 1) % n)
                sent.wait()
                return part
        return mine

    def close(self) -> None:
        self.dist.destroy_process_group()
