"""Both ends of a flow cut it alike, whatever the sizes."""

from __future__ import annotations

from typing import Any

import pytest

from ringd.engine.compiler import Compiler
from ringd.schedules.select import DEFAULT_THRESHOLDS, ONE_HOST, Thresholds
from ringd.vocabulary import ALGORITHMS, IN_PARTS, REDUCING, ROOTED, OpSpec

MIB = 1024 * 1024


def flows(
    collective: str, n: int, thresholds: Thresholds, shape: tuple[int, ...], counts: Any, dtype: str
) -> dict[tuple[int, int, str], list[int]]:
    """The sizes of the segments that each rank sends to, and expects from, each other one."""
    spec = OpSpec(
        collective,
        dtype,
        "sum" if collective in REDUCING else "",
        shape,
        root=n - 1 if collective in ROOTED else -1,
        counts=counts,
    )
    found = {}
    for rank in range(n):
        compiler = Compiler(tuple(range(n)), rank, MIB, 16 * 1024, None, thresholds)
        splits = (1,) * (2 * n) if collective == "all_to_all" else None
        plan = compiler.compile(spec.packed, spec, splits).plan
        for flow in plan.flows:
            found[rank, flow.peer, "sends"] = [send.size_bytes for send in flow.sends]
            found[rank, flow.peer, "recvs"] = [recv.size_bytes for recv in flow.recvs]
    return found


@pytest.mark.parametrize("thresholds", [DEFAULT_THRESHOLDS, ONE_HOST], ids=["hosts", "one host"])
@pytest.mark.parametrize("n", [2, 3, 4, 5, 7])
@pytest.mark.parametrize(
    "collective", sorted(ALGORITHMS.keys() - {"new_group", "barrier", "agree"})
)
def test_both_ends_of_a_flow_cut_it_alike(collective: str, n: int, thresholds: Thresholds) -> None:
    for dtype, count in (("float32", 7), ("float32", 1_000_003), ("bfloat16", 5_000_001)):
        uneven = tuple(1 + 3 * rank for rank in range(n))
        cases: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((count,), ())]
        if collective in IN_PARTS:
            cases.append(((count // 16,), uneven))
        for shape, counts in cases:
            found = flows(collective, n, thresholds, shape, counts, dtype)
            sends = {(a, b): sizes for (a, b, way), sizes in found.items() if way == "sends"}
            recvs = {(b, a): sizes for (a, b, way), sizes in found.items() if way == "recvs"}
            assert sends == recvs
            assert any(sends.values())
