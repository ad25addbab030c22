"""From what survivors saw to figures: minimum, median, p99, maximum, who was named. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ringd.bench.figures import p99

if TYPE_CHECKING:
    from ringd.bench.faults.kinds import Answer, Kind


@dataclass(slots=True)
class Tally:
    """All rounds of one kind at one world size."""

    kind: Kind
    n: int
    rounds: int = 0
    times_ms: list[float] = field(default_factory=list)
    raised: int = 0
    named: int = 0
    one_verdict: int = 0
    ok: bool = True
    errors: Counter[str] = field(default_factory=Counter)
    odd: list[str] = field(default_factory=list)

    def add(self, victim: int, event_at: float, answers: Mapping[int, Answer]) -> None:
        """One round: the answers of the survivors, by rank."""
        self.rounds += 1
        errors = [answer for answer in answers.values() if answer["error"] is not None]
        self.raised += len(errors)
        self.errors.update(str(answer["error"]) for answer in errors)
        self.named += sum(self.kind.names(answer, victim) for answer in errors)
        self.times_ms += [_took_ms(answer, event_at) for answer in answers.values()]
        self._check(victim, answers)
        verdicts = sorted({_verdict(answer) for answer in errors})
        agreed = bool(verdicts) and _are_one(verdicts)
        self.one_verdict += agreed
        if self.kind.expected != "none" and not agreed:
            self.ok = False
            self.odd.append(f"round {self.rounds}, rank {victim} struck: verdicts {verdicts}")

    def _check(self, victim: int, answers: Mapping[int, Answer]) -> None:
        for rank, answer in answers.items():
            right = self.kind.is_as_expected(answer)
            if right and (self.kind.expected == "none" or self.kind.names(answer, victim)):
                continue
            self.ok = False
            said = answer.get("text") or ("no error" if answer["right"] else "a wrong sum")
            self.odd.append(f"round {self.rounds}, rank {victim} struck: rank {rank} said: {said}")

    def row(self) -> dict[str, Any]:
        """The row as it goes to JSON. Times in ms."""
        times = sorted(self.times_ms)
        tail = p99(times)
        promised_s = self.kind.promised_s
        return {
            "kind": self.kind.name,
            "event": self.kind.event,
            "n": self.n,
            "rounds": self.rounds,
            "survivors": len(times),
            "raised": self.raised,
            "named": self.named,
            "one_verdict": self.one_verdict,
            "errors": dict(self.errors),
            "call_timeout_s": self.kind.timeout_s,
            "min_ms": round(times[0], 2),
            "median_ms": round(statistics.median(times), 2),
            "p99_ms": None if tail is None else round(tail, 2),
            "max_ms": round(times[-1], 2),
            "promised_ms": None if promised_s is None else promised_s * 1e3,
            "ok": self.ok,
        }


def _verdict(answer: Answer) -> tuple[int, str]:
    """Which operation ended with which verdict; a loss (-1) ends all of them with one."""
    fields = answer["fields"]
    seq = -1 if answer["error"] == "PeerLostError" else int(fields.get("seq", -1))
    return seq, str(fields.get("verdict") or "")


def _are_one(verdicts: list[tuple[int, str]]) -> bool:
    """Whether there is one for each operation: a fault may meet ranks in two that follow."""
    return len({seq for seq, _ in verdicts}) == len(verdicts) and all(v for _, v in verdicts)


def _took_ms(answer: Answer, event_at: float) -> float:
    """From the event to the exception; without one to the end of the call that took longest."""
    if answer["error"] is not None:
        return float(answer["at"] - event_at) * 1e3
    after = [(end - begun, end) for begun, end in answer["calls"] if end > event_at]
    return (max(after)[1] - event_at) * 1e3 if after else 0.0
