"""From samples to figures: minimum, median, p99, bandwidths, ratios. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

MIN_SAMPLES_FOR_P99 = 100


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured: one row of the table."""

    impl: str
    op: str
    n: int
    size_bytes: int
    dtype: str
    algorithm: str
    memory: str
    itemsize: int

    @property
    def question(self) -> tuple[str, int, int, str]:
        """What is equal between implementations that are compared."""
        return (self.op, self.n, self.size_bytes, self.dtype)


@dataclass(slots=True)
class Samples:
    """What was measured: the slowest rank's time of each operation, in µs."""

    times_us: list[float] = field(default_factory=list)
    rounds: int = 0
    ok: bool = True
    algorithm: str = ""


def bus_factor(op: str, n: int) -> float:
    """Bytes that must cross a rank's link per byte of the tensor, as nccl-tests defines it.

    Sizes follow nccl-tests too: for all_gather and reduce_scatter a size is that of the whole
    (N parts). Source: nccl-tests, doc/PERFORMANCE.md.
    """
    if op == "all_reduce":
        return 2 * (n - 1) / n
    if op in ("all_gather", "reduce_scatter"):
        return (n - 1) / n
    return 1.0


def row(case: Case, samples: Samples, peer: Samples | None) -> dict[str, Any]:
    """One row as it goes to JSON. Times in µs, bandwidths in GB/s (1e9 bytes per second)."""
    times = sorted(samples.times_us)
    median = statistics.median(times)
    algbw = case.size_bytes / median / 1e3
    facts = asdict(case)
    itemsize = facts.pop("itemsize")
    size = facts.pop("size_bytes")
    return {
        **facts,
        "bytes": size,
        "count": size // itemsize,
        "algorithm": samples.algorithm or case.algorithm,
        "rounds": samples.rounds,
        "samples": len(times),
        "min_us": round(times[0], 1),
        "median_us": round(median, 1),
        "p99_us": p99(times),
        "algbw": round(algbw, 3),
        "busbw": round(algbw * bus_factor(case.op, case.n), 3),
        "ratio_min": None if peer is None else round(min(peer.times_us) / times[0], 2),
        "ratio_median": None
        if peer is None
        else round(statistics.median(peer.times_us) / median, 2),
        "ok": samples.ok,
    }


def p99(times: Sequence[float]) -> float | None:
    """The 99th percentile of sorted times; none under 100 samples."""
    if len(times) < MIN_SAMPLES_FOR_P99:
        return None
    return round(times[min(len(times) - 1, int(len(times) * 0.99))], 1)


def operations(size_bytes: int, *, quick: bool) -> int:
    """How many operations of a size are timed in one round."""
    budget = 8e6 if quick else 48e6
    most = 50 if quick else 200
    return max(2 if quick else 3, min(most, int(budget / max(size_bytes, 1))))
