"""Part 1 on a rank: every case by ringd, twice, and what gloo or the fold says."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch

from ringd.demo.cases import Case
from ringd.demo.workers import gloo, reference
from ringd.errors import RingdError
from ringd_client import Communicator

LIMIT_S = 20.0
LAG_S = 0.02
"""How much later than the one before it each rank enters a barrier."""


@dataclass(frozen=True, slots=True)
class _Question:
    """Input and answer of the cases that differ in the algorithm only."""

    source: torch.Tensor
    expected: torch.Tensor
    relative_to: torch.Tensor


def answer(comm: Communicator, order: dict[str, Any]) -> dict[str, Any]:
    """Run the cases of an order."""
    questions: dict[Case, _Question] = {}
    results = []
    for case in (Case(**fields) for fields in order["cases"]):
        if case.collective == "barrier":
            results.append(_barrier(comm, case))
            continue
        if case.question not in questions:
            questions[case.question] = _prepare(comm, case)
        results.append(_check(comm, case, questions[case.question]))
    return {"results": results}


def _prepare(comm: Communicator, case: Case) -> _Question:
    n = comm.world_size
    inputs = [reference.contribution(case, rank, n) for rank in range(n)]
    source = inputs[comm.rank]
    relative_to = _mine(comm, case, reference.magnitude(case, inputs))
    if case.is_folded:
        expected = _mine(comm, case, reference.left_fold(case, inputs))
    else:
        expected = gloo.run(case, source, n)
    if not case.reduce_op:
        relative_to = torch.ones(1)
    return _Question(source, expected, relative_to)


def _mine(comm: Communicator, case: Case, whole: torch.Tensor) -> torch.Tensor:
    """This rank's part of a whole, where ranks have parts."""
    if case.collective != "reduce_scatter":
        return whole
    return whole[comm.rank * case.count : (comm.rank + 1) * case.count]


def _check(comm: Communicator, case: Case, question: _Question) -> dict[str, Any]:
    """Two calls, whatever the first one gave: the other ranks make two calls too."""
    outputs, failure = [], ""
    for _ in range(2):
        try:
            outputs.append(_call(comm, case, question.source.clone()))
        except RingdError as exc:
            failure = f"{type(exc).__name__}: {exc}"
    if failure:
        return {"failure": failure}
    first, second = (reference.digest(output) for output in outputs)
    error = reference.max_error(outputs[0], question.expected, question.relative_to)
    return {
        "max_error": error if math.isfinite(error) else None,
        "tolerance": reference.tolerance(case, comm.world_size),
        "digest": first,
        "repeat_equal": first == second,
    }


def _call(comm: Communicator, case: Case, source: torch.Tensor) -> torch.Tensor:
    how: dict[str, Any] = {"algorithm": case.algorithm, "timeout_s": LIMIT_S}
    if case.collective == "all_reduce":
        return comm.all_reduce(source, case.reduce_op, **how)
    if case.collective == "broadcast":
        return comm.broadcast(source, case.root, **how)
    if case.collective == "reduce_scatter":
        return comm.reduce_scatter(source.new_empty(case.count), source, case.reduce_op, **how)
    return comm.all_gather(source.new_empty(case.count * comm.world_size), source, **how)


def _barrier(comm: Communicator, case: Case) -> dict[str, Any]:
    """Enter one rank after the other, the last rank first; when each entered and left."""
    time.sleep(LAG_S * (comm.world_size - comm.rank))
    entered_ns = time.monotonic_ns()
    try:
        comm.barrier(algorithm=case.algorithm, timeout_s=LIMIT_S)
    except RingdError as exc:
        return {"failure": f"{type(exc).__name__}: {exc}"}
    return {"entered_ns": entered_ns, "left_ns": time.monotonic_ns()}
