"""Every collective, dtype, reduction and algorithm, held against its definition and gloo.

The definition is written here once more with torch: the left fold in rank order, 16-bit floats
in float32 with one rounding at the end. What folds in another order (ring, tree) must lie within
the error that float32 allows, and be the same on every rank: each case's result is hashed, and
the test compares the hashes of the ranks.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ringd_client
from tests.processes.programs.definition import ALGORITHMS
from tests.processes.trainer import Stage

REDUCE_OPS = ("sum", "prod", "min", "max", "avg")
ALL_REDUCE = ALGORITHMS["all_reduce"]
PARTS = ALGORITHMS["all_gather"]
IN_RANK_ORDER = ("direct", "exchange", "chain")
GLOO_DTYPES = ("float32", "float64", "int32", "int64")


@dataclass(frozen=True)
class Case:
    """One call, the same on every rank."""

    collective: str
    dtype: str
    count: int
    algorithm: str
    op: str = ""
    root: int = -1

    def __str__(self) -> str:
        words = (self.collective, self.dtype, self.count, self.algorithm, self.op, self.root)
        return "/".join(map(str, words))


class Book:
    """The reference: contributions of all ranks, and what must come of them."""

    def __init__(self, n: int) -> None:
        import torch

        self.torch = torch
        self.n = n
        self.dtypes = {
            "float32": torch.float32,
            "float64": torch.float64,
            "float16": torch.float16,
            "bfloat16": torch.bfloat16,
            "int32": torch.int32,
            "int64": torch.int64,
        }
        self._inputs: dict[Any, Any] = {}
        self._folds: dict[Any, Any] = {}

    def inputs(self, dtype: str, op: str, count: int) -> list[Any]:
        """What each rank contributes: different at each rank and position."""
        key = (dtype, op == "prod", count)
        if key not in self._inputs:
            self._inputs[key] = [self._draw(dtype, op, count, rank) for rank in range(self.n)]
        return list(self._inputs[key])

    def _draw(self, dtype: str, op: str, count: int, rank: int) -> Any:
        torch = self.torch
        generator = torch.Generator().manual_seed(count * 64 + rank)
        kind = self.dtypes[dtype]
        if not kind.is_floating_point:
            bounds = torch.iinfo(kind)  # the whole range, so that sums and products wrap
            return torch.randint(bounds.min, bounds.max, (count,), generator=generator, dtype=kind)
        noise = torch.randn(count, generator=generator, dtype=torch.float64)
        return (1 + noise / 8 if op == "prod" else noise * 3 + rank).to(kind)

    def fold(self, dtype: str, op: str, count: int) -> Any:
        """From the left, in rank order, and rounded once."""
        key = (dtype, op, count)
        if key not in self._folds:
            self._folds[key] = self.left_fold(self.inputs(dtype, op, count), op)
        return self._folds[key]

    def left_fold(self, contributions: list[Any], op: str) -> Any:
        """The definition."""
        torch = self.torch
        kind = contributions[0].dtype
        narrow = kind in (torch.float16, torch.bfloat16)
        terms = [c.to(torch.float32) if narrow else c for c in contributions]
        result = terms[0].clone()
        for term in terms[1:]:
            if op in ("sum", "avg"):
                result += term
            elif op == "prod":
                result *= term
            else:
                result = (torch.minimum if op == "min" else torch.maximum)(result, term)
        if op == "avg":
            result /= len(terms)
        return result.to(kind)

    def judge(self, case: Case, expected: Any, result: Any) -> str:
        """What is wrong with a result; "" if nothing is."""
        torch = self.torch
        if result.dtype != expected.dtype or result.shape != expected.shape:
            return f"{result.dtype} {tuple(result.shape)} instead of {expected.dtype}"
        exact = not case.op or not result.dtype.is_floating_point or case.op in ("min", "max")
        if exact or case.algorithm in IN_RANK_ORDER or self.n <= 2:
            if torch.equal(_bits(torch, result), _bits(torch, expected)):
                return ""
            worst = (result.double() - expected.double()).abs().max().item()
            return f"not the fold in rank order: off by {worst}"
        bound = self._order_error(case)
        error = (result.double() - expected.double()).abs()
        if bool((error <= bound).all()):
            return ""
        at = int((error - bound).argmax())
        return f"off by {error[at].item()} at {at}, where {bound[at].item()} is allowed"

    def _order_error(self, case: Case) -> Any:
        """How far two orders of the same float additions or products can be apart."""
        key = ("bound", case.dtype, case.op, self._whole(case))
        if key not in self._folds:
            self._folds[key] = self._bound(case)
        bound = self._folds[key]
        if case.collective == "reduce_scatter":
            return bound[self._rank * case.count : (self._rank + 1) * case.count]
        return bound

    def _bound(self, case: Case) -> Any:
        torch = self.torch
        kind = self.dtypes[case.dtype]
        accumulator = torch.float64 if kind == torch.float64 else torch.float32
        size = torch.ones(1, dtype=torch.float64) if case.op == "prod" else 0.0
        for contribution in self.inputs(case.dtype, case.op, self._whole(case)):
            magnitude = contribution.double().abs()
            size = size * magnitude if case.op == "prod" else size + magnitude
        if case.op == "avg":
            size = size / self.n
        bound = 2 * self.n * torch.finfo(accumulator).eps
        return size * (bound if kind == accumulator else bound + torch.finfo(kind).eps)

    _rank = 0

    def of_rank(self, rank: int) -> Book:
        """The book, read by this rank."""
        self._rank = rank
        return self

    def _whole(self, case: Case) -> int:
        return case.count * (self.n if case.collective == "reduce_scatter" else 1)

    def expected(self, case: Case) -> Any:
        """What this rank's output must hold."""
        if case.collective == "broadcast":
            return self.inputs(case.dtype, "", case.count)[case.root]
        if case.collective == "all_gather":
            return self.torch.cat(self.inputs(case.dtype, "", case.count))
        whole = self.fold(case.dtype, case.op, self._whole(case))
        if case.collective == "reduce_scatter":
            return whole[self._rank * case.count : (self._rank + 1) * case.count]
        return whole

    def call(self, comm: Any, case: Case, *, arena: bool, suffix: str = "") -> tuple[Any, Any]:
        """Make the call; what it returned, and its output."""
        torch, rank = self.torch, self._rank

        def memory(count: int) -> Any:
            kind = self.dtypes[case.dtype]
            return comm.empty(count, kind) if arena else torch.empty(count, dtype=kind)

        method = getattr(comm, case.collective + suffix)
        if case.collective == "all_reduce":
            output = memory(case.count).copy_(self.inputs(case.dtype, case.op, case.count)[rank])
            return method(output, case.op, algorithm=case.algorithm), output
        if case.collective == "broadcast":
            source = self.inputs(case.dtype, "", case.count)[rank]
            output = memory(case.count).copy_(source)
            return method(output, case.root, algorithm=case.algorithm), output
        if case.collective == "all_gather":
            part = memory(case.count).copy_(self.inputs(case.dtype, "", case.count)[rank])
            output = memory(case.count * self.n)
            return method(output, part, algorithm=case.algorithm), output
        whole = memory(case.count * self.n)
        whole.copy_(self.inputs(case.dtype, case.op, case.count * self.n)[rank])
        output = memory(case.count)
        return method(output, whole, case.op, algorithm=case.algorithm), output


def _bits(torch: Any, tensor: Any) -> Any:
    """The tensor as bytes, so that signs of zero count and NaN equals itself."""
    return tensor.contiguous().view(torch.uint8) if tensor.numel() else tensor


def digest(tensor: Any) -> str:
    """A hash of the bits."""
    import torch

    data = _bits(torch, tensor).numpy().tobytes() if tensor.numel() else b""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def cases(
    n: int, dtypes: list[str], counts: list[int], ops: Sequence[str] = REDUCE_OPS
) -> Iterator[Case]:
    """All of them."""
    for dtype in dtypes:
        for count in counts:
            for op in ops:
                if op == "avg" and dtype.startswith("int"):
                    continue
                for algorithm in ALL_REDUCE:
                    yield Case("all_reduce", dtype, count, algorithm, op)
                for algorithm in PARTS:
                    yield Case("reduce_scatter", dtype, count, algorithm, op)
            for algorithm in PARTS:
                yield Case("all_gather", dtype, count, algorithm)
            for root in range(n):
                yield Case("broadcast", dtype, count, "auto", root=root)


@dataclass
class Findings:
    """What a sweep came to."""

    made: int = 0

    def __post_init__(self) -> None:
        self.wrong: list[str] = []
        self.digests: dict[str, str] = {}

    def note(self, book: Book, case: Case, output: Any, how: str) -> None:
        """Judge one output."""
        self.made += 1
        problem = book.judge(case, book.expected(case), output)
        if problem:
            self.wrong.append(f"{case} ({how}): {problem}")
        told = digest(output)
        if case.collective == "reduce_scatter":  # there each rank has its own
            return
        if self.digests.setdefault(str(case), told) != told:
            self.wrong.append(f"{case} ({how}): not the bits that it had before")

    def told(self) -> dict[str, Any]:
        """As JSON."""
        return {"made": self.made, "wrong": self.wrong[:20], "digests": self.digests}


def sweep(
    stage: Stage, dtypes: list[str], counts: list[int], ops: Sequence[str] = REDUCE_OPS
) -> dict[str, Any]:
    """Every case by blocking calls in ordinary memory."""
    comm = stage.comm
    book = Book(comm.world_size).of_rank(comm.rank)
    findings = Findings()
    for case in cases(comm.world_size, dtypes, counts, ops):
        returned, output = book.call(comm, case, arena=False)
        if returned is not output:
            findings.wrong.append(f"{case}: returns something else than its output")
        findings.note(book, case, output, "blocking")
    return findings.told()


def sweep_in_flight(stage: Stage, dtypes: list[str], counts: list[int]) -> dict[str, Any]:
    """Every case asynchronously in arena memory, eight in flight, waited for from the last."""
    comm = stage.comm
    book = Book(comm.world_size).of_rank(comm.rank)
    findings = Findings()
    flying: list[tuple[Case, Any, Any]] = []
    for case in cases(comm.world_size, dtypes, counts):
        flying.append((case, *book.call(comm, case, arena=True, suffix="_async")))
        if len(flying) == 8:
            _land(flying, book, findings)
    _land(flying, book, findings)
    return findings.told()


def _land(flying: list[tuple[Case, Any, Any]], book: Book, findings: Findings) -> None:
    while flying:
        case, handle, output = flying.pop()
        if handle.wait() is not output:
            findings.wrong.append(f"{case}: wait() returns something else than the output")
        findings.note(book, case, output, "in flight, arena")


def sweep_asyncio(stage: Stage, dtypes: list[str], counts: list[int]) -> dict[str, Any]:
    """Every case by the asyncio face, eight gathered at a time."""
    return asyncio.run(_sweep_asyncio(dtypes, counts))


async def _sweep_asyncio(dtypes: list[str], counts: list[int]) -> dict[str, Any]:
    findings = Findings()
    async with await ringd_client.connect_async() as comm:
        book = Book(comm.world_size).of_rank(comm.rank)
        flying: list[tuple[Case, Any, Any]] = []
        for case in cases(comm.world_size, dtypes, counts):
            flying.append((case, *book.call(comm, case, arena=len(flying) % 2 > 0)))
            if len(flying) == 8:
                await asyncio.gather(*(handle for _, handle, _ in flying))
                for done, _, output in flying:
                    findings.note(book, done, output, "asyncio")
                flying.clear()
        for done, handle, output in flying:
            await handle
            findings.note(book, done, output, "asyncio")
    return findings.told()


def beside_gloo(stage: Stage, store: str, counts: list[int]) -> dict[str, Any]:
    """The same inputs through gloo, in this very process."""
    import torch
    import torch.distributed as dist

    comm = stage.comm
    book = Book(comm.world_size).of_rank(comm.rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=comm.rank, world_size=comm.world_size
    )
    ops = {
        "sum": dist.ReduceOp.SUM,
        "prod": dist.ReduceOp.PRODUCT,
        "min": dist.ReduceOp.MIN,
        "max": dist.ReduceOp.MAX,
    }
    wrong, made = [], 0
    for case in cases(comm.world_size, list(GLOO_DTYPES), counts):
        if case.algorithm != "auto" or case.op == "avg":
            continue
        made += 1
        inputs = book.inputs(case.dtype, case.op, book._whole(case))
        theirs = inputs[comm.rank].clone()
        if case.collective == "broadcast":
            dist.broadcast(theirs, case.root)
        elif case.collective == "all_gather":
            parts = [torch.empty_like(theirs) for _ in range(comm.world_size)]
            dist.all_gather(parts, theirs)
            theirs = torch.cat(parts)
        else:
            dist.all_reduce(theirs, ops[case.op])
            if case.collective == "reduce_scatter":
                theirs = theirs[comm.rank * case.count : (comm.rank + 1) * case.count]
        _, ours = book.call(comm, case, arena=False)
        # gloo folds in an order of its own, so for floats it is one more order of the same.
        other_order = Case(case.collective, case.dtype, case.count, "ring", case.op, case.root)
        problem = book.judge(other_order, theirs, ours)
        if problem:
            wrong.append(f"{case}: {problem}")
    dist.destroy_process_group()
    return {"made": made, "wrong": wrong}
