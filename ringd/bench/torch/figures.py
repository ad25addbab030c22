"""From what the ranks answered to rows: times, ratios, whether the numbers are right. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ringd.bench.figures import p99

LOSS_TOLERANCE = 1e-6
"""Relative: sums of more than two ranks depend on their order."""


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table.

    Attributes:
        measure: "all_reduce" or "ddp step".
        memory: of ringd's gradients: "adopted" into shared memory, or "copied"; of gloo and of
            calls "ordinary".
        size_bytes: of the tensor, or of all gradients of a rank.
    """

    measure: str
    impl: str
    memory: str
    n: int
    size_bytes: int


@dataclass(slots=True)
class Samples:
    """What was measured: the slowest rank's time of each call or step, in µs.

    Attributes:
        cpu_us: processor time of a call or step, the mean of each round and rank.
        losses: of each step, by rank.
        digests: of the parameters after each round, by rank.
    """

    times_us: list[float] = field(default_factory=list)
    rounds: int = 0
    ok: bool = True
    cpu_us: list[float] = field(default_factory=list)
    losses: list[tuple[float, ...]] = field(default_factory=list)
    digests: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, answers: Sequence[dict[str, Any]]) -> None:
        """One round, as all ranks tell it."""
        self.times_us += [max(times) for times in zip(*_each(answers, "times_us"), strict=True)]
        self.cpu_us += _each(answers, "cpu_us")
        self.rounds += 1
        if "losses" in answers[0]:
            self.losses += zip(*_each(answers, "losses"), strict=True)
            self.digests.append(tuple(_each(answers, "digest")))
            self.ok = self.ok and len(set(self.digests[-1])) == 1
        else:
            self.ok = self.ok and all(_each(answers, "ok"))

    def trains_as(self, other: Samples) -> bool:
        """Whether the losses are the same, up to the order of sums."""
        pairs = zip(self.losses, other.losses, strict=True)
        return all(
            abs(a - b) <= LOSS_TOLERANCE * abs(b)
            for ours, theirs in pairs
            for a, b in zip(ours, theirs, strict=True)
        )


def row(case: Case, samples: Samples, peer: Samples | None) -> dict[str, Any]:
    """One row as it goes to JSON. Times in µs."""
    times = sorted(samples.times_us)
    median = statistics.median(times)
    tail = p99(times)
    return {
        "measure": case.measure,
        "impl": case.impl,
        "memory": case.memory,
        "n": case.n,
        "bytes": case.size_bytes,
        "rounds": samples.rounds,
        "samples": len(times),
        "min_us": round(times[0], 1),
        "median_us": round(median, 1),
        "p99_us": tail,
        "ratio_min": None if peer is None else round(min(peer.times_us) / times[0], 2),
        "ratio_median": None
        if peer is None
        else round(statistics.median(peer.times_us) / median, 2),
        "cpu_us": round(statistics.mean(samples.cpu_us), 1),
        "ratio_cpu": None
        if peer is None
        else round(statistics.mean(peer.cpu_us) / statistics.mean(samples.cpu_us), 2),
        "same_bits": None
        if peer is None or not samples.digests
        else samples.digests == peer.digests,
        "ok": samples.ok and (peer is None or samples.trains_as(peer)),
    }


def _each(answers: Sequence[dict[str, Any]], key: str) -> list[Any]:
    return [answer[key] for answer in answers]
