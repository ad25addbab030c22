"""The driver of ``ringd bench``: every implementation in turn, round after round."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ringd.bench.crew import Crew
from ringd.bench.figures import Case, Samples, operations, row
from ringd.bench.matrix import Matrix
from ringd.bench.places import InLab, Place, ThisHost
from ringd.bench.table import print_rows, progress
from ringd.lab.lab import temporary
from ringd.lab.spec import LabSpec

SCHEMA = 1


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
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "versions": versions(),
        "machine": machine(),
        "lab": None if lab is None else lab.to_json(),
        "rows": rows,
    }
    if json_path is not None:
        json_path.write_text(json.dumps(report, indent=1) + "\n")
    for op in matrix.ops:
        print_rows([r for r in rows if r["op"] == op], report["machine"])
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


def versions() -> dict[str, str]:
    """Versions of what takes part."""
    found = {"python": platform.python_version()}
    for name in ("ringd", "torch", "numpy", "uvloop", "msgpack"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "congestion_control": congestion.read_text().strip() if congestion.exists() else "unknown",
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
