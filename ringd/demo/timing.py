"""Part 3: how long each algorithm takes, and which one "auto" takes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringd.bench.figures import bus_factor
from ringd.config.values import format_size
from ringd.demo.cases import algorithms
from ringd.demo.job import Job

Row = dict[str, Any]

OP = "all_reduce"
ITEMSIZE = 4
CALLS = {1 << 10: 20, 64 << 10: 15, 1 << 20: 5, 16 << 20: 1}
"""Size in bytes to how many calls a round times."""
ROUNDS = 3
ALGORITHMS = algorithms(OP)


@dataclass(slots=True)
class Samples:
    """Times in µs, each the slowest rank's; what the accounting says was run."""

    times_us: list[float] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    ok: bool = True


def steps() -> int:
    """How often :func:`run` calls ``step``."""
    return len(CALLS) * (1 + ROUNDS * len(ALGORITHMS))


def run(job: Job, step: Callable[[str], None]) -> list[Row]:
    """Time all algorithms at all sizes, in turn, round after round.

    Raises:
        RingdError: a rank ended, or the accounting is incomplete.
    """
    rows = []
    for size_bytes, calls in CALLS.items():
        step(f"timing {format_size(size_bytes)} auto")
        auto = Samples()
        _measure(job, "auto", size_bytes, 0, auto)
        samples = {algorithm: Samples() for algorithm in ALGORITHMS}
        for _ in range(ROUNDS):
            for algorithm, found in samples.items():
                step(f"timing {format_size(size_bytes)} {algorithm}")
                _measure(job, algorithm, size_bytes, calls, found)
        rows += [row(name, size_bytes, job.n, found, auto) for name, found in samples.items()]
    return rows


def _measure(job: Job, algorithm: str, size_bytes: int, calls: int, samples: Samples) -> None:
    """One round: a first call, whose result is checked in the first round, and timed ones."""
    job.ledger.skip()
    answers = job.order(
        "timing",
        algorithm=algorithm,
        count=size_bytes // ITEMSIZE,
        calls=calls,
        check=not samples.times_us,
    )
    samples.times_us += slowest([answer["times_us"] for answer in answers])
    samples.ok = samples.ok and all(answer["ok"] for answer in answers)
    samples.taken |= {line["algorithm"] for lines in job.ledger.take() for line in lines}


def slowest(by_rank: Sequence[Sequence[float]]) -> list[float]:
    """The time of each operation: that of its slowest rank."""
    return [max(times) for times in zip(*by_rank, strict=True)]


def row(algorithm: str, size_bytes: int, n: int, samples: Samples, auto: Samples) -> Row:
    """One row: times in µs, bandwidth in GB/s; ``auto``: whether "auto" takes this algorithm.

    That is what the accounting says was run, of both.
    """
    median_us = statistics.median(samples.times_us)
    return {
        "op": OP,
        "dtype": "float32",
        "world_size": n,
        "bytes": size_bytes,
        "algorithm": algorithm,
        "auto": algorithm in auto.taken,
        "samples": len(samples.times_us),
        "min_us": round(min(samples.times_us), 1),
        "median_us": round(median_us, 1),
        "busbw": round(size_bytes / median_us / 1e3 * bus_factor(OP, n), 3),
        "ok": samples.ok and auto.ok and samples.taken == {algorithm} and len(auto.taken) == 1,
    }
