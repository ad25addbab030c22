"""What is measured, against nccl-tests' definitions and torch.distributed's gloo itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ringd.bench.ops import (
    OPS,
    SENDRECV,
    algorithms,
    counts,
    gloo_has,
    is_reduction,
    resolve,
    steps,
)
from ringd.vocabulary import ALGORITHMS, DTYPES, reductions


def test_every_collective_of_the_vocabulary_is_measured() -> None:
    assert set(OPS) - {SENDRECV} == set(ALGORITHMS) - {"new_group", "agree"}  # of a few bytes


@pytest.mark.parametrize(
    ("op", "elements"),
    [
        ("all_reduce", (1000, None)),
        ("reduce", (1000, None)),
        ("broadcast", (1000, None)),
        ("all_gather", (333, 999)),
        ("gather", (333, 999)),
        ("scatter", (999, 333)),
        ("reduce_scatter", (999, 333)),
        ("all_to_all", (999, 999)),
        ("sendrecv", (1000, 1000)),
        ("barrier", (None, None)),
    ],
)
def test_the_larger_tensor_has_the_size(op: str, elements: tuple[Any, Any]) -> None:
    assert counts(op, 1000, 3) == elements


@pytest.mark.parametrize(
    ("op", "count", "n", "algorithm", "rounds"),
    [
        ("all_reduce", 256, 2, "exchange", 1),
        ("all_reduce", 256, 4, "tree", 4),
        ("all_reduce", 1 << 22, 4, "ring", 6),
        ("reduce", 256, 4, "tree", 2),
        ("all_gather", 256, 4, "direct", 1),
        ("gather", 256, 4, "direct", 1),
        ("scatter", 256, 7, "tree", 3),
        ("all_to_all", 256, 7, "direct", 1),
        ("broadcast", 1 << 22, 4, "chain", 3),
        ("barrier", 0, 2, "exchange", 1),
        (SENDRECV, 256, 4, "", 1),
        (SENDRECV, 256, 1, "", 0),
    ],
)
def test_auto_is_resolved_as_on_one_host(
    op: str, count: int, n: int, algorithm: str, rounds: int
) -> None:
    found = resolve(op, "auto", count=count, dtype="float32", n=n)
    assert (found, steps(op, found, n)) == (algorithm, rounds)


@pytest.mark.parametrize("op", OPS)
def test_an_algorithm_that_is_asked_for_is_taken(op: str) -> None:
    for name in algorithms(op):
        if name != "auto":
            assert resolve(op, name, count=1 << 20, dtype="float32", n=5) == name


@pytest.fixture(scope="module")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = tmp_path_factory.mktemp("gloo") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


_GLOO_OPS: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}


@pytest.mark.parametrize(
    ("dtype", "op"),
    [(dtype, op) for dtype in DTYPES for op in _GLOO_OPS if op in reductions(dtype)],
)
def test_gloo_reduces_what_we_say_that_it_does(gloo: None, dtype: str, op: str) -> None:
    tensor = torch.ones(3).to(getattr(torch, dtype))
    done = _can(lambda: dist.all_reduce(tensor, op=_GLOO_OPS[op]))
    assert done == gloo_has("all_reduce", dtype, op)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gloo_moves_what_we_say_that_it_does(gloo: None, dtype: str) -> None:
    tensor = torch.ones(3).to(getattr(torch, dtype))
    other = tensor.clone()
    assert _can(lambda: dist.gather(tensor, [other], 0)) == gloo_has("gather", dtype)
    assert _can(lambda: dist.scatter(tensor, [other], 0)) == gloo_has("scatter", dtype)
    assert _can(lambda: dist.all_gather([other], tensor)) == gloo_has("all_gather", dtype)


def test_what_nobody_sums_is_no_reduction() -> None:
    assert [op for op in OPS if is_reduction(op)] == ["all_reduce", "reduce", "reduce_scatter"]


def _can(call: Any) -> bool:
    try:
        call()
    except (RuntimeError, ValueError):
        return False
    return True
