"""Part 1: each collective × dtype × reduce op, against gloo or its definition on the same input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from ringd.demo.cases import BARRIER, Case, cases
from ringd.demo.job import Job

Row = dict[str, Any]


def batches(world_size: int) -> dict[str, list[Case]]:
    """The cases in orders: those of one form together, and plain calls of one collective."""
    found: dict[str, list[Case]] = {}
    for case in cases(world_size):
        found.setdefault(case.form or case.collective, []).append(case)
    return found


def run(job: Job, step: Callable[[str], None]) -> list[Row]:
    """Run all cases.

    Returns:
        One row for each. ``max_error`` is relative to the magnitude of what was combined, and the
        worst of all ranks; ``bit_equal`` is None where ranks are to have different things;
        ``reference`` is "gloo", "float32 fold" or "definition".

    Raises:
        RingdError: a rank ended.
    """
    rows = []
    for name, batch in batches(job.n).items():
        step(f"verify {name}")
        answers = job.order("verify", cases=[asdict(case) for case in batch])
        for number, case in enumerate(batch):
            rows.append(judge(case, [answer["results"][number] for answer in answers]))
    return rows


def judge(case: Case, results: Sequence[Row]) -> Row:
    """One row from what all ranks say of a case."""
    row = asdict(case) | {"world_size": len(results)}
    failures = [f"rank {r}: {x['failure']}" for r, x in enumerate(results) if "failure" in x]
    if failures:
        unknown = ("reference", "max_error", "tolerance", "bit_equal", "repeat_equal")
        return row | dict.fromkeys(unknown) | {"failure": "; ".join(failures), "ok": False}
    if case.collective == BARRIER:
        return row | _judge_barrier(results)
    errors = [x["max_error"] for x in results]
    tolerance = results[0]["tolerance"]
    bit_equal = len({x["digest"] for x in results}) == 1 if case.is_same_on_all else None
    repeat_equal = all(x["repeat_equal"] for x in results)
    right = None not in errors and max(errors) <= tolerance
    return row | {
        "reference": results[0]["reference"],
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
