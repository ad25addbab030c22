"""From samples to figures: minimum, median, p99, bandwidths, ratios. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ringd.bench import ops

MIN_SAMPLES_FOR_P99 = 100


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured: one row of the table.

    Attributes:
        size_bytes: of the larger one of a rank's tensors; 0 for a barrier.
        algorithm: as asked for, "auto" included.
        rate_bps: of a rank's link in a lab, in bits per second; 0: there is no such limit.
        own_hosts: each rank is on a host of its own.
    """

    impl: str
    op: str
    n: int
    size_bytes: int
    dtype: str
    algorithm: str
    memory: str
    itemsize: int
    rate_bps: int = 0
    own_hosts: bool = False

    @property
    def count(self) -> int:
        """Elements of the larger tensor; each rank has a part of one element at least."""
        return max(self.n, self.size_bytes // self.itemsize) if self.size_bytes else 0

    @property
    def question(self) -> tuple[str, int, int, str]:
        """What is equal between implementations that are compared."""
        return (self.op, self.n, self.size_bytes, self.dtype)


@dataclass(slots=True)
class Samples:
    """What was measured: the slowest rank's time of each operation, in µs.

    Attributes:
        frames: that the busiest rank sent in ``calls`` operations; None if nobody counts them.
    """

    times_us: list[float] = field(default_factory=list)
    rounds: int = 0
    ok: bool = True
    frames: int | None = None
    calls: int = 0

    def add(self, answers: Sequence[dict[str, Any]]) -> None:
        """One round, as all ranks tell it."""
        self.times_us += [
            max(times) for times in zip(*(a["times_us"] for a in answers), strict=True)
        ]
        self.ok = self.ok and all(a["ok"] for a in answers)
        self.rounds += 1
        sent = [a["frames"] for a in answers]
        if None not in sent:
            self.frames = (self.frames or 0) + max(sent)
            self.calls += answers[0]["calls"]

    @property
    def frames_per_operation(self) -> float | None:
        """Acks included."""
        return None if self.frames is None else round(self.frames / self.calls, 2)


def bus_factor(op: str, n: int) -> float:
    """Bytes that must cross a rank's link per byte of the size, as nccl-tests defines both."""
    return ops.OPS[op].bus_factor(n)


def row(case: Case, samples: Samples, peer: Samples | None) -> dict[str, Any]:
    """One row as it goes to JSON. Times in µs, bandwidths in GB/s (1e9 bytes per second).

    ``of_link`` is the share of a link's rate that busbw is; None where links have none.
    """
    times = sorted(samples.times_us)
    median = statistics.median(times)
    facts = asdict(case)
    del facts["itemsize"], facts["size_bytes"], facts["rate_bps"]
    return {
        **facts,
        **_schedule(case),
        "frames": samples.frames_per_operation,
        "bytes": case.size_bytes,
        "count": case.count,
        "rounds": samples.rounds,
        "samples": len(times),
        "min_us": round(times[0], 1),
        "median_us": round(median, 1),
        "p99_us": p99(times),
        **_bandwidths(case, median),
        "ratio_min": None if peer is None else round(min(peer.times_us) / times[0], 2),
        "ratio_median": None
        if peer is None
        else round(statistics.median(peer.times_us) / median, 2),
        "ok": samples.ok,
    }


def _schedule(case: Case) -> dict[str, Any]:
    """What "auto" is here, and its steps; of others we do not know them."""
    if case.impl != "ringd":
        return {"resolved": None, "steps": None}
    resolved = ops.resolve(
        case.op,
        case.algorithm,
        count=case.count,
        dtype=case.dtype,
        n=case.n,
        own_hosts=case.own_hosts,
    )
    return {"resolved": resolved, "steps": ops.steps(case.op, resolved, case.n)}


def _bandwidths(case: Case, median_us: float) -> dict[str, float | None]:
    if not ops.OPS[case.op].has_size:
        return {"algbw": None, "busbw": None, "of_link": None}
    algbw = case.size_bytes / median_us / 1e3
    busbw = algbw * bus_factor(case.op, case.n)
    of_link = significant(8e9 * busbw / case.rate_bps) if case.rate_bps else None
    return {"algbw": significant(algbw), "busbw": significant(busbw), "of_link": of_link}


def significant(value: float) -> float:
    """Four digits that count, however small the number: a bandwidth at 1 KiB is none of 0.00."""
    return float(f"{value:.4g}")


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
