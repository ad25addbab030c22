"""From calls to figures: of each stage its median, its 10th percentile, its share. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ringd.bench import ops
from ringd.bench.figures import Case
from ringd.bench.stages.path import STAGES, Call


@dataclass(slots=True)
class Samples:
    """What was measured, of each call on its slowest rank.

    Attributes:
        traced: in the traced job.
        untraced_us: in the ordinary one.
    """

    traced: list[Call] = field(default_factory=list)
    untraced_us: list[float] = field(default_factory=list)
    rounds: int = 0
    ok: bool = True

    def add_untraced(self, answers: Sequence[dict[str, Any]]) -> None:
        """A round of the ordinary job, as all ranks tell it."""
        self.rounds += 1
        taken = zip(*(answer["times_us"] for answer in answers), strict=True)
        self.untraced_us += [max(times) for times in taken]
        self.ok = self.ok and all(answer["ok"] for answer in answers)

    def add_traced(
        self, answers: Sequence[dict[str, Any]], ranks: Sequence[Sequence[Call]]
    ) -> None:
        """A round of the traced job: what its ranks answered, and the same calls of each rank."""
        self.traced += [max(same, key=whole_ns) for same in zip(*ranks, strict=True)]
        self.ok = self.ok and all(answer["ok"] for answer in answers)


def whole_ns(call: Call) -> int:
    """How long it took."""
    return sum(call.values())


def row(case: Case, samples: Samples) -> dict[str, Any]:
    """One row as it goes to JSON. Times in µs."""
    wholes = [whole_ns(call) / 1e3 for call in samples.traced]
    return {
        "op": case.op,
        "n": case.n,
        "bytes": case.size_bytes,
        "dtype": case.dtype,
        "algorithm": case.algorithm,
        "resolved": ops.resolve(
            case.op, case.algorithm, count=case.count, dtype=case.dtype, n=case.n
        ),
        "memory": case.memory,
        "rounds": samples.rounds,
        "samples": len(wholes),
        "p10_us": tenth(wholes),
        "median_us": median(wholes),
        "untraced_p10_us": tenth(samples.untraced_us),
        "untraced_median_us": median(samples.untraced_us),
        "stages": _stages(samples.traced),
        "ok": samples.ok,
    }


def _stages(traced: Sequence[Call]) -> list[dict[str, Any]]:
    usual = middle_half(traced)
    spent = sum(map(whole_ns, usual))
    found = []
    for name in STAGES:
        times = [call[name] / 1e3 for call in traced]
        share = sum(call[name] for call in usual) / spent
        found.append(
            {"stage": name, "p10_us": tenth(times), "median_us": median(times), "share": share}
        )
    return found


def middle_half(traced: Sequence[Call]) -> Sequence[Call]:
    """Without the quickest and the slowest quarter, so that no outlier counts."""
    ordered = sorted(traced, key=whole_ns)
    cut = len(ordered) // 4
    return ordered[cut : len(ordered) - cut]


def median(times_us: Sequence[float]) -> float:
    """To a tenth of a µs."""
    return round(statistics.median(times_us), 1)


def tenth(times_us: Sequence[float]) -> float:
    """The 10th percentile: one in ten is below it."""
    return round(sorted(times_us)[len(times_us) // 10], 1)
