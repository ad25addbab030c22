"""One seed, one job, one fault: what every rank gets is checked against the definition."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from ringd.sim.calls import (
    Exchange,
    Relay,
    Step,
    draw_call,
    draw_exchange,
    draw_program,
    draw_relay,
)
from ringd.sim.faults import Fault, draw_timeouts
from ringd.sim.invariants import leftovers
from ringd.sim.judging import Judge
from ringd.sim.kinds import KINDS
from ringd.sim.program import NoError, Program, Tally, Undisturbed
from ringd.sim.trace import Trace
from ringd.sim.world import World, WrongOutcome

NEXT_TIMEOUT_S = 90.0


@dataclass(slots=True)
class Outcome:
    """What a scenario came to.

    Attributes:
        resumed: how often a link had a new connection take over, of the links that are left.
        steps: callbacks of the loop.
    """

    seed: int
    n: int
    fault: str
    victim: int
    tally: Tally = field(default_factory=Tally)
    resumed: int = 0
    virtual_s: float = 0.0
    steps: int = 0


class Scenario:
    """A job with a fault, drawn from a seed.

    Args:
        n, fault: fixed instead of drawn.
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
        rng = self.rng = random.Random(seed)
        self._options = (f" --ranks {n}" if n else "") + (f" --fault '{fault}'" if fault else "")
        drawn_n = rng.randint(2, 5)
        kinds = list(KINDS.values())
        drawn = rng.choices(kinds, [kind.weight for kind in kinds])[0]
        kind = KINDS[fault] if fault else drawn
        self.n = max(n or drawn_n, kind.least)
        self.victim = rng.randrange(self.n)
        self.steps = draw_program(rng, self.n)
        self.at_step = rng.randrange(len(self.steps))
        if kind.relay:
            self.steps.insert(self.at_step, draw_relay(rng, self.n, self.victim, 40))
        self.window = rng.randint(1, 4)
        self.clock = rng.choice(kind.clocks)
        embed = self.victim if kind.embedded else None
        self.world = World(rng, self.n, calm=self.clock != "long", trace=trace, embed=embed)
        self.outcome = Outcome(seed, self.n, kind.name, self.victim)
        self.fault = Fault(
            kind,
            self.victim,
            other=(self.victim + rng.randrange(1, self.n)) % self.n,
            cluster=self.world.cluster,
            rng=rng,
            timeouts=draw_timeouts(rng, self.clock, self.n),
            both_ways=rng.random() < 0.5,
        )
        self.judge = Judge(self.fault, relay=self.at_step if kind.relay else None)

    @property
    def kind(self) -> str:
        """Of its fault."""
        return self.fault.kind.name

    def run(self) -> Outcome:
        """Run to the end.

        Raises:
            WrongOutcome: a wrong result, an error where there is no fault, an end after the
                deadline, a healthy rank blamed, several verdicts on one operation, a next epoch
                that does not work, something left over, or a stand-still: somebody waits for what
                can't come.
        """
        self.world.run(self._main, self.describe)
        self.outcome.steps = self.world.loop.steps
        return self.outcome

    def describe(self) -> str:
        """The scenario in a line, with the command that replays it."""
        return (
            f"seed {self.outcome.seed}: n={self.n}, {self.fault.kind.name!r} at rank {self.victim} "
            f"(and {self.fault.other}) in step {self.at_step} of {len(self.steps)}, {self.clock} "
            f"deadlines (replay: python -m ringd.sim --seed {self.outcome.seed}{self._options} "
            f"--trace)"
        )

    async def step(self, rank: int, index: int) -> bool:
        """The victim's fault strikes at its step; whether it goes on."""
        if rank == self.victim and index == self.at_step:
            await self.fault.strike()
            return not self.fault.kind.gone
        return True

    async def _main(self) -> None:
        loop = self.world.loop
        begun = loop.time()
        program = Program(
            self.world.network,
            self.steps,
            window=self.window,
            timeouts=self.fault.timeouts,
            judge=self.judge,
            tally=self.outcome.tally,
        )
        await program.run_all(self.world.cluster.trainers, self)
        self.outcome.virtual_s = loop.time() - begun
        messages = (Exchange, Relay)
        collectives = [i for i, step in enumerate(self.steps) if not isinstance(step, messages)]
        wrong = self.judge.judged(collectives)
        if wrong is not None:
            raise WrongOutcome(wrong)
        self.outcome.resumed = self.world.cluster.resumed()
        await self._next_epoch()

    async def _next_epoch(self) -> None:
        """All is healed and everybody comes again: calls work, and nothing is left over."""
        cluster = self.world.cluster
        before = max(trainer.epoch for trainer in cluster.trainers)
        was_renewed = self.fault.kind.name == "coordinator dies"
        await self.fault.heal()
        epochs = {trainer.epoch for trainer in cluster.trainers}
        if len(epochs) != 1 or not (was_renewed or min(epochs) > before):
            raise WrongOutcome(f"the epochs after epoch {before} are {sorted(epochs)}")
        everybody, rng = tuple(range(self.n)), self.rng
        steps: list[Step] = [
            draw_call(rng, everybody, 50),
            draw_exchange(rng, self.n, 60),
            draw_call(rng, everybody, 70),
        ]
        program = Program(
            self.world.network,
            steps,
            window=rng.randint(1, 3),
            timeouts=(NEXT_TIMEOUT_S,) * self.n,
            judge=NoError(),
            tally=Tally(),
        )
        await program.run_all(cluster.trainers, Undisturbed())
        for node in cluster.nodes:
            left = leftovers(node.engine)
            if left:
                raise WrongOutcome(f"rank {node.rank} keeps {left}")
