"""Part 1: each collective × dtype × algorithm against gloo on the same input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from ringd.demo.cases import Case, cases
from ringd.demo.job import Job

Row = dict[str, Any]


def batches(world_size: int) -> list[list[Case]]:
    """The cases in orders: those of one collective and dtype together."""
    together = groupby(cases(world_size), key=lambda case: (case.collective, case.dtype))
    return [list(batch) for _, batch in together]


def run(job: Job, step: Callable[[str], None]) -> list[Row]:
    """Run all cases.

    Returns:
        One row for each. ``max_error`` is relative to the magnitude of what was combined, and the
        worst of all ranks; ``bit_equal`` is None where each rank has a part of its own.

    Raises:
        RingdError: a rank ended.
    """
    rows = []
    for batch in batches(job.n):
        step(f"verify {batch[0].collective} {batch[0].dtype}")
        answers = job.order("verify", cases=[asdict(case) for case in batch])
        for number, case in enumerate(batch):
            rows.append(judge(case, [answer["results"][number] for answer in answers]))
    return rows


def judge(case: Case, results: Sequence[Row]) -> Row:
    """One row from what all ranks say of a case."""
    reference = "float32 fold" if case.is_folded else "gloo"
    row = asdict(case) | {"world_size": len(results), "reference": reference}
    failures = [f"rank {r}: {x['failure']}" for r, x in enumerate(results) if "failure" in x]
    if failures:
        unknown = dict.fromkeys(("max_error", "tolerance", "bit_equal", "repeat_equal"))
        return row | unknown | {"failure": "; ".join(failures), "ok": False}
    if case.collective == "barrier":
        return row | _judge_barrier(results)
    errors = [x["max_error"] for x in results]
    tolerance = results[0]["tolerance"]
    has_parts = case.collective == "reduce_scatter"
    bit_equal = None if has_parts else len({x["digest"] for x in results}) == 1
    repeat_equal = all(x["repeat_equal"] for x in results)
    right = None not in errors and max(errors) <= tolerance
    return row | {
        "max_error": None if None in errors else max(errors),
        "tolerance": tolerance,
        "bit_equal": bit_equal,
        "repeat_equal": repeat_equal,
        "failure": None,
        "ok": right and bit_equal is not False and repeat_equal,
    }


def _judge_barrier(results: Sequence[Row]) -> Row:
    """Nobody may leave before the last one has entered; the error is by how many seconds."""
    early_ns = max(x["entered_ns"] for x in results) - min(x["left_ns"] for x in results)
    return {
        "reference": "definition",
        "max_error": max(0, early_ns) / 1e9,
        "tolerance": 0.0,
        "bit_equal": None,
        "repeat_equal": None,
        "failure": None,
        "ok": early_ns <= 0,
    }
