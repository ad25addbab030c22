"""The driver of ``ringd bench --torch``: both backends in turn, round after round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ringd.bench.crew import Crew
from ringd.bench.places import ThisHost
from ringd.bench.report import report
from ringd.bench.table import progress
from ringd.bench.torch.figures import Case, Samples, row
from ringd.bench.torch.table import print_rows

WORKER = "ringd.bench.torch.worker"
CALL_BYTES = 1024
CALLS, QUICK_CALLS = 200, 50
STEPS, QUICK_STEPS = 5, 2
FIRST_WARM_UP, WARM_UP = 6, 1
"""Steps: DDP arranges its buckets anew after the first, ringd adopts them after some more."""


def run(world_sizes: Sequence[int], *, rounds: int, json_path: Path | None, quick: bool) -> int:
    """Measure, print a table, write JSON.

    Returns:
        0, or 1 if a result was wrong or ranks did not train alike.

    Raises:
        RingdError: a worker failed.
    """
    cases = [case for n in world_sizes for case in _cases(n)]
    rows: list[dict[str, Any]] = []
    with progress(rounds * len(cases)) as step:
        for n in world_sizes:
            rows += _measure([case for case in cases if case.n == n], n, rounds, quick, step)
    machine = report(json_path, rows, "torch")["machine"]
    print_rows(rows, machine)
    return 0 if all(r["ok"] for r in rows) else 1


def _cases(n: int) -> list[Case]:
    from ringd.bench.torch.training import PARAMETERS

    gradients = PARAMETERS * 4
    return [
        Case("all_reduce", "gloo", "ordinary", n, CALL_BYTES),
        Case("all_reduce", "ringd", "ordinary", n, CALL_BYTES),
        Case("ddp step", "gloo", "ordinary", n, gradients),
        Case("ddp step", "ringd", "adopted", n, gradients),
        Case("ddp step", "ringd", "copied", n, gradients),
    ]


def _measure(
    cases: Sequence[Case], n: int, rounds: int, quick: bool, step: Any
) -> list[dict[str, Any]]:
    """Calls, then steps: one round of each case, then the next round."""
    samples = {case: Samples() for case in cases}
    with Crew(["ringd", "gloo"], n, ThisHost(WORKER)) as crew:
        for measure in ("all_reduce", "ddp step"):
            for number in range(rounds):
                for case in cases:
                    if case.measure == measure:
                        order = _order(case, quick, first=not number)
                        samples[case].add(crew.order(case.impl, **order))
                        step(f"{case.impl} {measure} n={n}")
    return [row(case, samples[case], _peer(case, samples)) for case in cases]


def _order(case: Case, quick: bool, *, first: bool) -> dict[str, Any]:
    if case.measure == "all_reduce":
        calls = QUICK_CALLS if quick else CALLS
        return {"do": "calls", "bytes": case.size_bytes, "calls": calls}
    warm_up = FIRST_WARM_UP if first else WARM_UP
    steps = QUICK_STEPS if quick else STEPS
    return {"do": "steps", "memory": case.memory, "warm_up": warm_up, "steps": steps}


def _peer(case: Case, samples: dict[Case, Samples]) -> Samples | None:
    """What a row of ours is compared with."""
    if case.impl == "gloo":
        return None
    return next(
        taken
        for other, taken in samples.items()
        if other.impl == "gloo" and other.measure == case.measure
    )
