"""The faults that a scenario draws: how each strikes, what it explains, and how it heals."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ringd.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    MembershipChangedError,
    PeerLostError,
    RingdError,
)
from ringd.sim.cluster import RENDEZVOUS_AT, Cluster, host
from ringd.sim.invariants import disagreement
from ringd.vocabulary import POINT_TO_POINT

FAULTS = (
    "none", "none", "crash", "silence", "trainer dies", "stall", "delay", "late", "resume",
    "absent", "stopped", "cut", "coordinator",
)  # fmt: skip
JUDGED = frozenset({"absent", "stopped", "cut", "coordinator"})
"""Faults in which a call ends at its deadline, and the verdict must name the culprit."""
GONE = frozenset({"crash", "silence", "trainer dies"})
"""Faults after which the victim calls no more."""
DAEMON_GONE = frozenset({"crash", "silence", "stall"})
"""Faults after which the victim's daemon has to be started anew."""
TIMEOUT_S = 90.0
JUDGED_TIMEOUT_S = 1.2
"""Short, as a rendezvous that can't be reached for 2 s takes a daemon for dead."""
ABSENT_S = 1.6
CUT_S = 1.8
EXPECTED_ERRORS = (PeerLostError, CollectiveTimeoutError, MembershipChangedError)


@dataclass(slots=True)
class Fault:
    """One fault of one run.

    Attributes:
        other: a second rank: the far end of a link, or who has no coordinator.
        errors: by step of the program, each rank's error.
        uneven: steps that use a group that only some of its members got.
        messages_missed: a send or receive timed out, so that later ones may meet another's.
    """

    kind: str
    victim: int
    other: int
    cluster: Cluster
    rng: random.Random
    both_ways: bool = True
    errors: dict[int, dict[int, RingdError]] = field(default_factory=dict)
    uneven: set[int] = field(default_factory=set)
    messages_missed: bool = False

    @property
    def timeout_s(self) -> float:
        """The deadline of every call of the run."""
        return JUDGED_TIMEOUT_S if self.kind in JUDGED else TIMEOUT_S

    # Striking and healing

    async def strike(self) -> None:
        """At a random moment of the operation that the others have begun."""
        await asyncio.sleep(self.rng.expovariate(1 / 0.002))
        network, name, other = self.cluster.network, host(self.victim), host(self.other)
        match self.kind:
            case "crash":
                network.crash(name, self.rng.choice(("reset", "eof")))
            case "silence":
                network.crash(name, "silence")
            case "trainer dies":
                self.cluster.trainers[self.victim].die()
            case "stall":
                network.stall(name)
            case "resume":
                network.stall(name)
                self._later(self.rng.uniform(0.0, 1.0), network.resume, name)
            case "late":
                await asyncio.sleep(self.rng.uniform(0.0, 5.0))
            case "delay":
                network.delay(name, other, self.rng.uniform(0.001, 0.3))
            case "cut":
                network.cut(name, other, both=self.both_ways)
                self._later(CUT_S, network.heal, name, other)
            case "coordinator":
                network.cut(other, RENDEZVOUS_AT.host)
                self._later(CUT_S, network.heal, other, RENDEZVOUS_AT.host)
                await asyncio.sleep(ABSENT_S)
            case "absent":
                await asyncio.sleep(ABSENT_S)
            case "stopped":
                self.cluster.trainers[self.victim].state = "stopped"
                await asyncio.sleep(ABSENT_S)
                self.cluster.trainers[self.victim].state = "running"

    def _later(self, delay_s: float, command: Any, *args: str) -> None:
        asyncio.get_running_loop().call_later(delay_s, command, *args)

    def heal(self) -> int | None:
        """All is as it was; the rank whose daemon has to be started anew, if any."""
        network, name, other = self.cluster.network, host(self.victim), host(self.other)
        for peer in (other, RENDEZVOUS_AT.host):
            network.heal(name, peer)
            network.heal(other, peer) if peer != other else None
        network.delay(name, other, 0.0)
        if self.kind == "stall":
            network.crash(name)
        return self.victim if self.kind in DAEMON_GONE else None

    # Judging

    def takes(self, rank: int, step: int, error: RingdError) -> str | None:
        """What is wrong with an error that a rank got in a step, by itself; None: nothing."""
        self.errors.setdefault(step, {})[rank] = error
        timed_out = isinstance(error, CollectiveTimeoutError)
        if self.kind in JUDGED:
            self.messages_missed |= error.fields.get("op") in POINT_TO_POINT
            meets_another = self.messages_missed and isinstance(error, CollectiveMismatchError)
            return None if timed_out or meets_another else "no fault explains it"
        if self.kind == "delay" and timed_out:
            return None  # a pipe of a kilobyte and a third of a second is slower than the deadline
        if self.kind in ("none", "late", "delay", "resume") or not isinstance(
            error, EXPECTED_ERRORS
        ):
            return "no fault explains it"
        blamed = error.rank if isinstance(error, PeerLostError) else self.victim
        if rank != self.victim and blamed != self.victim:
            return f"it blames rank {blamed}"
        return None

    def judged(self, steps: Sequence[int]) -> str | None:
        """What is wrong with the verdicts on ``steps``, taken together; None: nothing."""
        if self.kind not in JUDGED:
            return None
        for step in sorted(set(steps) & set(self.errors) - self.uneven):
            errors = self.errors[step]
            wrong = disagreement(list(errors.values()))
            for rank, error in errors.items():
                wrong = wrong or self._misnamed(rank, step, error)
            if wrong is not None:
                return f"step {step}: {wrong}"
        return None

    def _misnamed(self, rank: int, step: int, error: RingdError) -> str | None:
        """Who is blamed without being the culprit, or held up by it in an earlier step."""
        blamed = set(error.fields["culprits"])
        guilty = {self.victim}
        if self.kind in ("cut", "coordinator"):
            guilty.add(self.other)
        held_up = {r for earlier, by in self.errors.items() if earlier < step for r in by}
        if blamed - guilty - held_up:
            return f"rank {rank} blames {sorted(blamed)}: {error}"
        if not blamed and not error.fields["partial"] and not held_up:
            return f"rank {rank} blames nobody: {error}"
        return None
