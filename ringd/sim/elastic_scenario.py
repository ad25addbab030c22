"""One seed, one elastic job: what happens to it, drawn; and what must be true at its end."""

from __future__ import annotations

import asyncio
import random

from ringd.sim.elastic import Job
from ringd.sim.happenings import HAPPENINGS, Happening
from ringd.sim.invariants import leftovers
from ringd.sim.scenario import Outcome
from ringd.sim.trace import Trace
from ringd.sim.world import World, WrongOutcome

PREFIX = "elastic: "
ELASTIC = tuple(PREFIX + happening.name for happening in HAPPENINGS)
HAPPENS_S = 120.0
"""Longer than any happening takes."""
WHOLE_S = 60.0
"""All ranks are members again at last so long after a happening."""
MAX_HAPPENINGS = 3
AMID_CALL = 0.8
"""So often it strikes while a call is under way, else at any time;"""
AMID_CALL_S = 0.002
"""so long after the call began, in the mean."""


class Elastic:
    """A job whose ranks come and go, drawn from a seed.

    Args:
        n, fault: fixed instead of drawn; the fault is the first of those that happen.
        trace: gets what happens.
    """

    def __init__(
        self,
        seed: int,
        *,
        n: int | None = None,
        fault: str | None = None,
        trace: Trace | None = None,
    ) -> None:
        rng = self.rng = random.Random(f"elastic {seed}")
        self._options = (f" --ranks {n}" if n else "") + (f" --fault '{fault}'" if fault else "")
        self.n = n or rng.randint(2, 5)
        possible = [h for h in HAPPENINGS if h.least <= self.n]
        drawn = rng.choices(possible, k=rng.randint(1, MAX_HAPPENINGS))
        if fault is not None:
            drawn[0] = next(h for h in HAPPENINGS if PREFIX + h.name == fault)
            self.n = max(self.n, drawn[0].least)
        self.happenings: list[Happening] = drawn
        self.world = World(rng, self.n, calm=True, trace=trace)
        self.job = Job(seed, self.world.cluster, work_s=rng.uniform(0.1, 0.6))
        self.outcome = Outcome(seed, self.n, self.kind, -1, self.job.tally)

    @property
    def kind(self) -> str:
        """Of what happens first."""
        return PREFIX + self.happenings[0].name

    def describe(self) -> str:
        """The scenario in a line, with the command that replays it."""
        what = ", ".join(happening.name for happening in self.happenings)
        return (
            f"seed {self.outcome.seed}: n={self.n}, elastic: {what} "
            f"(replay: python -m ringd.sim --seed {self.outcome.seed}{self._options} --trace)"
        )

    def run(self) -> Outcome:
        """Run to the end.

        Raises:
            WrongOutcome: a wrong sum, an error that nothing explains, a call or a reform() after
                its deadline, a step that some have and others have not, two epochs side by side, a
                rank that does not get in again, or something left over.
        """
        self.world.run(self._main, self.describe)
        self.outcome.steps = self.world.loop.steps
        return self.outcome

    async def _main(self) -> None:
        job, loop = self.job, self.world.loop
        begun = loop.time()
        for seat in range(self.n):
            job.begin(seat, steps=0)
        try:
            for happening in self.happenings:
                await self._happens(happening)
            await job.finish(steps=3)
        finally:
            job.cancel()
        self.outcome.virtual_s = loop.time() - begun
        self.outcome.resumed = self.world.cluster.resumed()
        for node in self.world.cluster.nodes:
            left = leftovers(node.engine)
            if left:
                raise WrongOutcome(f"rank {node.rank} keeps {left}")

    async def _happens(self, happening: Happening) -> None:
        """All goes well for some steps, then it strikes at some moment of one."""
        job = self.job
        mark = job.steps + self.rng.randint(1, 5)
        await job.until(lambda: job.steps >= mark, f"step {mark}", WHOLE_S)
        if self.rng.random() < AMID_CALL:
            job.calls.clear()
            await job.calls.wait()
            await asyncio.sleep(self.rng.expovariate(1 / AMID_CALL_S))
        else:
            await asyncio.sleep(self.rng.uniform(0.0, job.work_s))
        self.world.network.note("happens", happening.name)
        epoch = max(job.epochs)
        job.disturbed = not happening.harmless
        run = asyncio.ensure_future(happening.run(job, self.rng))
        try:
            await job.until(run.done, f"the end of {happening.name}", HAPPENS_S)
            await run
        finally:
            run.cancel()
        mark = job.steps + 2
        await job.until(lambda: job.whole and job.steps >= mark, "all are members again", WHOLE_S)
        if happening.harmless and max(job.epochs) != epoch:
            raise WrongOutcome(f"{happening.name} ended epoch {epoch}")
        job.disturbed = False
        job.struck.clear()
