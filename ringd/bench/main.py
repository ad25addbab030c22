"""The driver of ``ringd bench``: every implementation in turn, round after round."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ringd.bench.crew import Crew
from ringd.bench.figures import Case, Samples, operations, row
from ringd.bench.matrix import Matrix
from ringd.bench.places import InLab, Place, ThisHost
from ringd.bench.report import report
from ringd.bench.table import print_rows, progress
from ringd.lab.lab import temporary
from ringd.lab.spec import LabSpec


def run(
    matrix: Matrix, *, rounds: int, json_path: Path | None, quick: bool, lab: LabSpec | None = None
) -> int:
    """Measure, print a table for each operation, write JSON.

    Args:
        lab: each rank runs on a host of such a lab, which stands as long as the bench.

    Returns:
        0, or 1 if a result was wrong.

    Raises:
        RingdError: a worker failed.
        UnsupportedPlatformError: there can be no lab.
    """
    rows: list[dict[str, Any]] = []
    blocks = {n: list(matrix.blocks(n)) for n in matrix.world_sizes}
    total = sum(len(block) for found in blocks.values() for block in found)
    with progress(rounds * total) as step, _place(lab) as place:
        for n in matrix.world_sizes:
            with Crew(["ringd", *matrix.peers], n, place) as crew:
                for block in blocks[n]:
                    rows += _measure(crew, block, rounds, quick, step)
    machine = report(json_path, rows, lab=None if lab is None else lab.to_json())["machine"]
    for op in matrix.ops:
        print_rows([r for r in rows if r["op"] == op], machine)
    return 0 if all(r["ok"] for r in rows) else 1


@contextlib.contextmanager
def _place(lab: LabSpec | None) -> Iterator[Place]:
    if lab is None:
        yield ThisHost()
        return
    with temporary(lab) as made:
        yield InLab(made)


def _measure(
    crew: Crew, cases: Sequence[Case], rounds: int, quick: bool, step: Any
) -> list[dict[str, Any]]:
    """All cases of one size, interleaved: one round of each, then the next round."""
    samples = {case: Samples() for case in cases}
    for _ in range(rounds):
        for case in cases:
            answers = crew.order(
                case.impl,
                do="measure",
                op=case.op,
                count=case.count,
                dtype=case.dtype,
                algorithm=case.algorithm,
                memory=case.memory,
                operations=operations(case.size_bytes, quick=quick),
            )
            samples[case].add(answers)
            step(f"{case.impl} {case.op} n={case.n} {case.size_bytes} B")
    return [row(case, samples[case], _peer(case, samples)) for case in cases]


def _peer(case: Case, samples: dict[Case, Samples]) -> Samples | None:
    """What a row of ours is compared with: the first peer that answers the same question."""
    if case.impl != "ringd":
        return None
    for other, taken in samples.items():
        if other.impl != "ringd" and other.question == case.question:
            return taken
    return None
