"""One seed, one job, one fault: what every rank gets is checked against the definition.

Values are small whole numbers, so that every sum, product and order is exact in every dtype
that is drawn, and the expected result needs no code of ours.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ringd.engine.engine import EngineOptions
from ringd.errors import (
    CollectiveTimeoutError,
    MembershipChangedError,
    PeerLostError,
    RingdError,
)
from ringd.sim.clock import VirtualLoop
from ringd.sim.cluster import Cluster, SimTrainer, host
from ringd.sim.weather import Climate, SeededWeather
from ringd.transport.memory import MemoryNetwork
from ringd.vocabulary import ALGORITHMS, OpSpec

TIMEOUT_S = 90.0
SLACK_S = 0.25
MAX_DELAY_S = 0.5
FAULTS = ("none", "none", "crash", "silence", "trainer dies", "stall", "delay", "late", "resume")
COUNTS = (0, 1, 2, 5, 77, 1000, 9001, 30_011)
DTYPES = ("float32", "float64", "int32", "int64", "float16")
EXPECTED_ERRORS = (PeerLostError, CollectiveTimeoutError, MembershipChangedError)

Array = np.ndarray[Any, np.dtype[Any]]


class WrongOutcome(AssertionError):
    """A rank got what it must never get; the text has the seed."""


@dataclass(frozen=True, slots=True)
class Call:
    """One collective, the same on every rank."""

    spec: OpSpec
    salt: int

    def region(self, rank: int, n: int) -> Array:
        """What this rank's region holds before the call: depends on rank and position."""
        count = self.spec.region_count(n)
        values = (np.arange(count) * 7 + rank * 3 + self.salt) % 5 + 1
        if self.spec.collective == "all_gather":
            part = np.arange(count) // max(self.spec.count, 1)
            values = np.where(part == rank, values, 0)
        return values.astype(self.spec.dtype or "uint8")

    def expected(self, rank: int, n: int) -> Array:
        """What it holds after it, by the definition; for reduce_scatter only one's own part."""
        regions = [self.region(r, n).astype("float64") for r in range(n)]
        kind = self.spec.collective
        if kind == "broadcast":
            result = regions[self.spec.root]
        elif kind == "all_gather":
            result = np.stack(regions).sum(0)
        elif kind == "barrier":
            result = np.zeros(0)
        else:
            result = _REDUCE[self.spec.reduce_op](np.stack(regions))
        if kind == "reduce_scatter":
            result = result[rank * self.spec.count : (rank + 1) * self.spec.count]
        return np.asarray(result).astype(self.spec.dtype or "uint8")

    def result_of(self, region: Array, rank: int) -> Array:
        """The part of the region that is the result."""
        if self.spec.collective == "reduce_scatter":
            return region[rank * self.spec.count : (rank + 1) * self.spec.count]
        return region


_REDUCE = {
    "sum": lambda stack: stack.sum(0),
    "prod": lambda stack: stack.prod(0),
    "min": lambda stack: stack.min(0),
    "max": lambda stack: stack.max(0),
}


@dataclass(slots=True)
class Outcome:
    """What a scenario came to."""

    seed: int
    n: int
    fault: str
    victim: int
    completed: int = 0
    failed: int = 0
    virtual_s: float = 0.0
    steps: int = 0
    errors: list[tuple[int, int, RingdError]] = field(default_factory=list)


def draw_calls(rng: random.Random, n: int) -> list[Call]:
    """A program: collectives, algorithms, dtypes and sizes, empty and tiny ones among them."""
    calls = []
    for salt in range(rng.randint(3, 12)):
        collective = rng.choice(list(ALGORITHMS))
        reducing = collective in ("all_reduce", "reduce_scatter")
        # 5 to the power of 5 ranks is exact in float16, too.
        calls.append(
            Call(
                OpSpec(
                    collective,
                    "" if collective == "barrier" else rng.choice(DTYPES),
                    rng.choice(list(_REDUCE)) if reducing else "",
                    () if collective == "barrier" else (rng.choice(COUNTS),),
                    root=rng.randrange(n) if collective == "broadcast" else -1,
                    algorithm=rng.choice(ALGORITHMS[collective]),
                ),
                salt,
            )
        )
    return calls


class Scenario:
    """A job with a fault, drawn from a seed."""

    def __init__(self, seed: int, *, n: int | None = None, fault: str | None = None) -> None:
        rng = random.Random(seed)
        self.rng = rng
        self.n = n or rng.randint(2, 5)
        self.fault = fault or rng.choice(FAULTS)
        self.victim = rng.randrange(self.n)
        self.calls = draw_calls(rng, self.n)
        self.at_call = rng.randrange(len(self.calls))
        self.window = rng.randint(1, 4)
        self.outcome = Outcome(seed, self.n, self.fault, self.victim)
        self.loop = VirtualLoop(time_limit_s=3600.0, step_limit=5_000_000)
        self.network = MemoryNetwork(
            self.loop,
            _livable_weather(rng),
            pipe_bytes=rng.choice((4 * 1024, 16 * 1024, 256 * 1024)),
            trace=[],
        )
        self.loop.diagnose.append(self.network.describe)
        options = EngineOptions(
            segment_bytes=rng.choice((64, 1024, 16 * 1024)),
            eager_bytes=rng.choice((0, 256, 4096)),
            inline_bytes=rng.choice((4096, 64 * 1024)),
        )
        self.cluster = Cluster(self.network, self.n, rng, options)

    def run(self) -> Outcome:
        """Run to the end.

        Raises:
            WrongOutcome: a wrong result, an error where there is no fault, an end after the
                deadline, a healthy rank blamed.
            StandStill: somebody waits for what can't come.
        """
        try:
            self.loop.run_until_complete(self._main())
            if self.loop.unhandled:
                raise WrongOutcome(f"unhandled: {self.loop.unhandled[0]}")
            if self.cluster.violations:
                raise WrongOutcome(f"protocol violation: {self.cluster.violations[0]}")
        except Exception as exc:
            raise WrongOutcome(f"{self.describe()}: {type(exc).__name__}: {exc}") from exc
        finally:
            self.loop.close()
        self.outcome.steps = self.loop.steps
        return self.outcome

    def describe(self) -> str:
        """The scenario in a line, with the command that replays it."""
        return (
            f"seed {self.outcome.seed}: n={self.n} fault={self.fault} victim={self.victim} "
            f"at call {self.at_call} (replay: python -m ringd.sim --seed {self.outcome.seed})"
        )

    async def _main(self) -> None:
        await self.cluster.start()
        begun = self.loop.time()
        tasks = [asyncio.create_task(self._program(trainer)) for trainer in self.cluster.trainers]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        self.outcome.virtual_s = self.loop.time() - begun
        if self.fault in ("stall", "resume"):
            self.network.resume(host(self.victim))
        await self.cluster.stop()

    async def _program(self, trainer: SimTrainer) -> None:
        """One rank's calls, up to ``window`` of them in flight."""
        rank = trainer.node.rank
        flying: list[asyncio.Task[bool]] = []
        for index, call in enumerate(self.calls):
            if rank == self.victim and index == self.at_call:
                await self._strike(trainer)
            while len(flying) >= self.window:
                await flying.pop(0)
            if not self._takes_part(rank, index):
                break
            flying.append(asyncio.create_task(self._call(trainer, index, call)))
        await asyncio.gather(*flying)

    def _takes_part(self, rank: int, index: int) -> bool:
        gone = self.fault in ("crash", "silence", "trainer dies")
        return not (gone and rank == self.victim and index >= self.at_call)

    async def _strike(self, trainer: SimTrainer) -> None:
        """The fault, at a random moment of the operation that the others have begun."""
        await asyncio.sleep(self.rng.expovariate(1 / 0.002))
        name = host(self.victim)
        if self.fault == "crash":
            self.network.crash(name, self.rng.choice(("reset", "eof")))
        elif self.fault == "silence":
            self.network.crash(name, "silence")
        elif self.fault == "trainer dies":
            trainer.die()
        elif self.fault == "stall":
            self.network.stall(name)
        elif self.fault == "resume":
            self.network.stall(name)
            self.loop.call_later(self.rng.uniform(0.0, 1.0), self.network.resume, name)
        elif self.fault == "late":
            await asyncio.sleep(self.rng.uniform(0.0, 5.0))
        elif self.fault == "delay":
            other = host((self.victim + 1) % self.n)
            self.network.delay(name, other, self.rng.uniform(0.001, 0.3))

    async def _call(self, trainer: SimTrainer, index: int, call: Call) -> bool:
        rank = trainer.node.rank
        region = call.region(rank, self.n)
        view = memoryview(region.data).cast("B") if region.size else memoryview(b"")
        begun = self.loop.time()
        error = await trainer.call(call.spec, view, TIMEOUT_S)
        took_s = self.loop.time() - begun
        if took_s > TIMEOUT_S + SLACK_S:
            raise WrongOutcome(f"rank {rank} call {index} took {took_s:.3f} s: {error}")
        if error is None:
            result = call.result_of(region, rank)
            if not np.array_equal(result, call.expected(rank, self.n)):
                raise WrongOutcome(f"rank {rank} call {index} ({call.spec}): wrong result")
            self.outcome.completed += 1
            return True
        self.outcome.failed += 1
        self.outcome.errors.append((rank, index, error))
        self._judge(rank, index, error)
        return False

    def _judge(self, rank: int, index: int, error: RingdError) -> None:
        """An error must be one that the fault explains, and blame nobody who is well."""
        if self.fault == "delay" and isinstance(error, CollectiveTimeoutError):
            return  # a pipe of a kilobyte and a third of a second is slower than the deadline
        if self.fault in ("none", "late", "delay", "resume"):
            raise WrongOutcome(f"rank {rank} call {index}: {type(error).__name__}: {error}")
        if not isinstance(error, EXPECTED_ERRORS):
            raise WrongOutcome(f"rank {rank} call {index}: {type(error).__name__}: {error}")
        if isinstance(error, PeerLostError) and rank != self.victim and error.rank != self.victim:
            raise WrongOutcome(f"rank {rank} call {index} blames rank {error.rank}: {error}")


def _livable_weather(rng: random.Random) -> SeededWeather:
    """A weather in which a heartbeat is never late enough to be taken for a death."""
    while True:
        weather = SeededWeather(random.Random(rng.getrandbits(32)), Climate.draw(rng))
        if weather.max_delay_s < MAX_DELAY_S:
            return weather


def run_seeds(seeds: Sequence[int]) -> list[Outcome]:
    """Run scenarios; the first wrong one raises."""
    return [Scenario(seed).run() for seed in seeds]
