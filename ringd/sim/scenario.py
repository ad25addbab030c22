"""One seed, one job, one fault: what every rank gets is checked against the definition."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ringd.engine.engine import EngineOptions, Local
from ringd.errors import RingdError
from ringd.sim.calls import (
    Array,
    Call,
    Exchange,
    InGroup,
    Message,
    NewGroup,
    Step,
    draw_program,
    values,
)
from ringd.sim.clock import VirtualLoop
from ringd.sim.cluster import Cluster, SimTrainer
from ringd.sim.faults import FAULTS, GONE, JUDGED, TIMEOUT_S, Fault
from ringd.sim.invariants import leftovers
from ringd.sim.weather import Climate, SeededWeather
from ringd.transport.memory import MemoryNetwork
from ringd.vocabulary import RECV, SEND, OpSpec

SLACK_S = 0.25
MAX_DELAY_S = 0.5
JUDGED_MAX_DELAY_S = 0.01
"""Where verdicts are judged, every daemon can answer in time."""
SETTLE_S = 5.0
"""Until a daemon that crashed is known to be gone."""


class WrongOutcome(AssertionError):
    """A rank got what it must never get; the text has the seed."""


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


class Scenario:
    """A job with a fault, drawn from a seed."""

    def __init__(self, seed: int, *, n: int | None = None, fault: str | None = None) -> None:
        rng = random.Random(seed)
        self.rng = rng
        self.n = n or rng.randint(2, 5)
        self.kind = fault or rng.choice(FAULTS)
        self.victim = rng.randrange(self.n)
        self.steps = draw_program(rng, self.n)
        self.at_step = rng.randrange(len(self.steps))
        self.window = rng.randint(1, 4)
        self.outcome = Outcome(seed, self.n, self.kind, self.victim)
        judged = self.kind in JUDGED
        self.loop = VirtualLoop(time_limit_s=3600.0, step_limit=5_000_000)
        self.network = MemoryNetwork(
            self.loop,
            _livable_weather(rng, JUDGED_MAX_DELAY_S if judged else MAX_DELAY_S),
            pipe_bytes=256 * 1024 if judged else rng.choice((4 * 1024, 16 * 1024, 256 * 1024)),
            trace=[],
        )
        self.loop.diagnose.append(self.network.describe)
        options = EngineOptions(
            segment_bytes=rng.choice((1024, 16 * 1024) if judged else (64, 1024, 16 * 1024)),
            eager_bytes=rng.choice((0, 256, 4096)),
            inline_bytes=rng.choice((4096, 64 * 1024)),
        )
        self.cluster = Cluster(self.network, self.n, rng, options)
        self.fault = Fault(
            self.kind,
            self.victim,
            other=(self.victim + rng.randrange(1, self.n)) % self.n,
            cluster=self.cluster,
            rng=rng,
            both_ways=rng.random() < 0.5,
        )

    def run(self) -> Outcome:
        """Run to the end.

        Raises:
            WrongOutcome: a wrong result, an error where there is no fault, an end after the
                deadline, a healthy rank blamed, several verdicts on one operation, a next epoch
                that does not work, or something left over.
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
            f"seed {self.outcome.seed}: n={self.n} fault={self.kind} victim={self.victim} "
            f"at step {self.at_step} (replay: python -m ringd.sim --seed {self.outcome.seed})"
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
        collectives = [i for i, step in enumerate(self.steps) if not isinstance(step, Exchange)]
        wrong = self.fault.judged(collectives)
        if wrong is not None:
            raise WrongOutcome(wrong)
        await self._next_epoch()
        await self.cluster.stop()

    async def _next_epoch(self) -> None:
        """All is healed and everybody comes again: a call works, and nothing is left over."""
        anew = self.fault.heal()
        await asyncio.sleep(SETTLE_S)
        nodes = self.cluster.nodes
        for rank, trainer in enumerate(self.cluster.trainers):
            if rank != anew:
                trainer.goodbye()
        if anew is not None:
            nodes[anew] = self.cluster.make_node(anew)
            await nodes[anew].start(self.loop.time() + SETTLE_S)
        trainers = self.cluster.trainers = [SimTrainer(node) for node in nodes]
        await asyncio.gather(*(trainer.attach(SETTLE_S) for trainer in trainers))
        call = Call(OpSpec("all_reduce", "int64", "sum", (3,)), 0, tuple(range(self.n)))
        regions = [call.region(rank) for rank in range(self.n)]
        calls = (
            trainer.call(call.spec, memoryview(region.view("uint8").data), TIMEOUT_S)
            for trainer, region in zip(trainers, regions, strict=True)
        )
        for rank, (error, _) in enumerate(await asyncio.gather(*calls)):
            if error is not None or not np.array_equal(regions[rank], call.expected(rank)):
                raise WrongOutcome(f"rank {rank} in the next epoch: {error or regions[rank]}")
            left = leftovers(nodes[rank].engine)
            if left:
                raise WrongOutcome(f"rank {rank} keeps {left}")

    async def _program(self, trainer: SimTrainer) -> None:
        """One rank's calls, up to ``window`` steps of them in flight."""
        rank = trainer.node.rank
        flying: list[asyncio.Task[None]] = []
        groups: list[int | None] = []
        for index, step in enumerate(self.steps):
            if rank == self.victim and index == self.at_step:
                await self.fault.strike()
            while len(flying) >= self.window:
                await flying.pop(0)
            if not self._takes_part(rank, index):
                break
            if isinstance(step, NewGroup):
                groups.append(await self._new_group(trainer, index, step))
                continue
            work = self._work(trainer, index, step, groups)
            if work is not None:
                flying.append(asyncio.create_task(work))
                await asyncio.sleep(0)  # it begins now: the order of calls is that of the steps
        await asyncio.gather(*flying)

    def _work(
        self, trainer: SimTrainer, index: int, step: Step, groups: list[int | None]
    ) -> Coroutine[Any, Any, None] | None:
        """What this rank does in a step; None: nothing."""
        rank = trainer.node.rank
        if isinstance(step, Exchange):
            return self._exchange(trainer, index, step)
        if isinstance(step, Call):
            return self._call(trainer, index, step, step.spec)
        assert isinstance(step, InGroup)
        number = groups[step.index]
        if number is None:
            self.fault.uneven.add(index)  # others may have the group
        if number is None or rank not in step.call.members:
            return None
        return self._call(trainer, index, step.call, replace(step.call.spec, group=number))

    def _takes_part(self, rank: int, index: int) -> bool:
        gone = self.kind in GONE and rank == self.victim
        return not (gone and index >= self.at_step)

    async def _new_group(self, trainer: SimTrainer, index: int, step: NewGroup) -> int | None:
        """The number of the new group; None: this rank is no member, or it failed."""
        region = np.zeros(1, "int64")
        error, _ = await self._timed(trainer, index, step.spec(), region, None)
        if error is not None or trainer.node.rank not in step.members:
            return None
        return int(region[0])

    async def _call(self, trainer: SimTrainer, index: int, call: Call, spec: OpSpec) -> None:
        place = call.members.index(trainer.node.rank)
        region = call.region(place)
        error, _ = await self._timed(trainer, index, spec, region, call.splits(place))
        if error is None and not np.array_equal(
            call.result_of(region, place), call.expected(place)
        ):
            raise WrongOutcome(f"rank {trainer.node.rank} step {index} ({spec}): wrong result")

    async def _exchange(self, trainer: SimTrainer, index: int, step: Exchange) -> None:
        """Post this rank's sends and receives; same tags meet in the order in which they stand."""
        rank = trainer.node.rank
        await asyncio.gather(
            *(self._send(trainer, index, m) for m in step.messages if m.source == rank),
            *(self._receive(trainer, index, m) for m in step.messages if m.dest == rank),
        )

    async def _send(self, trainer: SimTrainer, index: int, message: Message) -> None:
        await self._timed(trainer, index, message.spec(SEND), message.data(), message.tag)

    async def _receive(self, trainer: SimTrainer, index: int, message: Message) -> None:
        region = values(message.count, 1, message.dtype)
        error, source = await self._timed(trainer, index, message.spec(RECV), region, message.tag)
        if error is not None or self.fault.messages_missed:
            return
        if source != message.source or not np.array_equal(region, message.data()):
            raise WrongOutcome(
                f"rank {trainer.node.rank} step {index} ({message}): wrong message from {source}"
            )

    async def _timed(
        self, trainer: SimTrainer, index: int, spec: OpSpec, region: Array, local: Local
    ) -> tuple[RingdError | None, int | None]:
        """Make a call; it must end by its deadline, and an error must be one that is explained."""
        rank = trainer.node.rank
        view = memoryview(region.view("uint8").data).cast("B") if region.size else memoryview(b"")
        begun = self.loop.time()
        error, result = await trainer.call(spec, view, self.fault.timeout_s, local)
        took_s = self.loop.time() - begun
        if took_s > self.fault.timeout_s + SLACK_S:
            raise WrongOutcome(f"rank {rank} step {index} took {took_s:.3f} s: {error}")
        if error is None:
            self.outcome.completed += 1
        else:
            self.outcome.failed += 1
            self.outcome.errors.append((rank, index, error))
            wrong = self.fault.takes(rank, index, error)
            if wrong is not None:
                raise WrongOutcome(
                    f"rank {rank} step {index}: {wrong}: {type(error).__name__}: {error}"
                )
        return error, result


def _livable_weather(rng: random.Random, max_delay_s: float) -> SeededWeather:
    """A weather in which a heartbeat is never late enough to be taken for a death."""
    while True:
        weather = SeededWeather(random.Random(rng.getrandbits(32)), Climate.draw(rng))
        if weather.max_delay_s < max_delay_s:
            return weather


def run_seeds(seeds: Sequence[int]) -> list[Outcome]:
    """Run scenarios; the first wrong one raises."""
    return [Scenario(seed).run() for seed in seeds]
