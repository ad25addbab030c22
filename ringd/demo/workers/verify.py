"""Part 1 on a rank: every case by ringd, twice, and what gloo or the definition says."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack
import torch

from ringd.demo.cases import BARRIER, GROUPS, OBJECTS, Case
from ringd.demo.workers import definition, gloo, inputs, reference
from ringd.demo.workers.calls import LIMIT_S, call
from ringd.errors import RingdError
from ringd.vocabulary import REDUCING
from ringd_client import Communicator

LAG_S = 0.02
"""How much later than all others the last rank enters a barrier."""

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Question:
    """Input and answer of the cases that differ in the algorithm only."""

    source: torch.Tensor
    expected: torch.Tensor
    relative_to: torch.Tensor
    reference: str


def answer(comm: Communicator, order: dict[str, Any]) -> Answer:
    """Run the cases of an order, which are of one form."""
    cases = [Case(**fields) for fields in order["cases"]]
    if cases[0].form != GROUPS:
        return {"results": _run(comm, cases)}
    group = comm.split(comm.rank % 2, key=-comm.rank, timeout_s=LIMIT_S)
    assert group is not None
    with group:
        return {"results": _run(group, cases)}


def _run(comm: Communicator, cases: list[Case]) -> list[Answer]:
    questions: dict[Case, _Question] = {}
    results = []
    for case in cases:
        if case.collective == BARRIER:
            results.append(_barrier(comm, case))
        elif case.form == OBJECTS:
            results.append(_objects(comm, case))
        else:
            if case.question not in questions:
                questions[case.question] = _prepare(comm, case)
            results.append(_check(comm, case, questions[case.question]))
    return results


def _prepare(comm: Communicator, case: Case) -> _Question:
    rank, n, salt = comm.rank, comm.world_size, min(comm.ranks)
    sources = [inputs.contribution(case, r, n, salt=salt) for r in range(n)]
    if case.is_folded or not gloo.can(case):
        name = "float32 fold" if case.is_folded else "definition"
        expected = definition.result(case, sources, rank)
    else:
        name, expected = "gloo", gloo.run(case, sources[rank], rank, n)
    relative_to = torch.zeros(1)  # whatever is off is off by much
    if case.collective in REDUCING and case.root in (-1, rank):
        relative_to = definition.own(case, definition.magnitude(case, sources), sources, rank)
    return _Question(sources[rank], expected, relative_to, name)


def _check(comm: Communicator, case: Case, question: _Question) -> Answer:
    outputs, failure = _twice(lambda: call(comm, case, question.source.clone()))
    if failure:
        return {"failure": failure}
    first, second = (reference.digest(output) for output in outputs)
    error = reference.max_error(outputs[0], question.expected, question.relative_to)
    return {
        "reference": question.reference,
        "max_error": error if math.isfinite(error) else None,
        "tolerance": reference.tolerance(case, comm.world_size),
        "digest": first,
        "repeat_equal": first == second,
    }


def _twice(make: Callable[[], Any]) -> tuple[list[Any], str]:
    """Two calls, whatever the first one gave: the other ranks make two calls too."""
    outputs, failure = [], ""
    for _ in range(2):
        try:
            outputs.append(make())
        except RingdError as exc:
            failure = f"{type(exc).__name__}: {exc}"
    return outputs, failure


def _objects(comm: Communicator, case: Case) -> Answer:
    things = [inputs.thing(case.count, rank) for rank in range(comm.world_size)]
    outputs, failure = _twice(lambda: _call_with_objects(comm, case, things))
    if failure:
        return {"failure": failure}
    is_root = comm.rank == case.root
    expected = {
        "all_gather_object": things,
        "broadcast_object": things[case.root],
        "gather_object": things if is_root else None,
        "scatter_object": things[comm.rank],
    }[case.collective]
    first, second = (reference.digest(msgpack.packb(output)) for output in outputs)
    return {
        "reference": "definition",
        "max_error": 0.0 if outputs[0] == expected else None,
        "tolerance": 0.0,
        "digest": first,
        "repeat_equal": first == second,
    }


def _call_with_objects(comm: Communicator, case: Case, things: list[Any]) -> Any:
    mine, is_root = things[comm.rank], comm.rank == case.root
    how: Any = {"timeout_s": LIMIT_S}
    match case.collective:
        case "all_gather_object":
            return comm.all_gather_object(mine, **how)
        case "broadcast_object":
            return comm.broadcast_object(mine if is_root else None, case.root, **how)
        case "gather_object":
            return comm.gather_object(mine, case.root, **how)
    return comm.scatter_object(things if is_root else None, case.root, **how)


def _barrier(comm: Communicator, case: Case) -> Answer:
    """Enter, the rank ``root`` later than the others; when each entered and left."""
    if comm.rank == case.root:
        time.sleep(LAG_S)
    entered_ns = time.monotonic_ns()
    try:
        comm.barrier(algorithm=case.algorithm, timeout_s=LIMIT_S)
    except RingdError as exc:
        return {"failure": f"{type(exc).__name__}: {exc}"}
    return {"entered_ns": entered_ns, "left_ns": time.monotonic_ns()}
