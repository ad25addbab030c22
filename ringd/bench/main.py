"""The driver of ``ringd bench``: every implementation in turn, round after round."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ringd.bench.crew import Crew
from ringd.bench.figures import Case, Samples, operations, row
from ringd.bench.table import print_rows, progress
from ringd.vocabulary import DTYPES

SCHEMA = 1


def run(
    *,
    op: str,
    sizes_bytes: Sequence[int],
    world_sizes: Sequence[int],
    peers: Sequence[str],
    rounds: int,
    dtype: str,
    algorithms: Sequence[str],
    memory: Sequence[str],
    json_path: Path | None,
    quick: bool,
) -> int:
    """Measure, print the table, write JSON.

    Returns:
        0, or 1 if a result was wrong.

    Raises:
        RingdError: a worker failed.
    """
    rows: list[dict[str, Any]] = []
    cases = {
        n: list(_cases(op, sizes_bytes, n, peers, dtype, algorithms, memory)) for n in world_sizes
    }
    with progress(rounds * sum(map(len, cases.values()))) as step:
        for n in world_sizes:
            with Crew(["ringd", *peers], n) as crew:
                for size in sizes_bytes:
                    here = [case for case in cases[n] if case.size_bytes == size]
                    rows += _measure(crew, here, rounds, quick, step)
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "versions": versions(),
        "machine": machine(),
        "rows": rows,
    }
    if json_path is not None:
        json_path.write_text(json.dumps(report, indent=1) + "\n")
    print_rows(rows, report["machine"])
    return 0 if all(r["ok"] for r in rows) else 1


def _cases(
    op: str,
    sizes_bytes: Sequence[int],
    n: int,
    peers: Sequence[str],
    dtype: str,
    algorithms: Sequence[str],
    memory: Sequence[str],
) -> Iterator[Case]:
    itemsize = DTYPES[dtype].itemsize
    for size in sizes_bytes:
        for peer in peers:
            yield Case(peer, op, n, size, dtype, "default", "ordinary", itemsize)
        for algorithm in algorithms:
            for place in memory:
                yield Case("ringd", op, n, size, dtype, algorithm, place, itemsize)


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
                count=max(case.n, case.size_bytes // case.itemsize),
                dtype=case.dtype,
                algorithm=case.algorithm,
                memory=case.memory,
                operations=operations(case.size_bytes, quick=quick),
            )
            taken = samples[case]
            taken.times_us += [max(t) for t in zip(*(a["times_us"] for a in answers), strict=True)]
            taken.ok = taken.ok and all(a["ok"] for a in answers)
            taken.rounds += 1
            step(f"{case.impl} n={case.n} {case.size_bytes} B")
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
