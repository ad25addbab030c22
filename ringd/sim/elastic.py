"""A job that goes on: ranks are lost and come back while the others commit their steps.

Each member computes a step, agrees with the others, and commits it; after a failure it calls
``reform()``, and goes on with who is left. All members of the last epoch must have committed the
same steps, none twice and none missing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from ringd.errors import (
    CollectiveTimeoutError,
    HandshakeRefusedError,
    MembershipChangedError,
    PeerLostError,
    RendezvousError,
    RingdError,
)
from ringd.sim.calls import Array
from ringd.sim.cluster import Cluster, SimTrainer
from ringd.sim.program import SLACK_S, Tally
from ringd.sim.world import WrongOutcome
from ringd.vocabulary import ALGORITHMS, OpSpec, agree_spec

CALL_S = 2.0
"""The deadline of each call."""
REFORM_S = 5.0
"""How long a rank waits for the next epoch."""
COUNTS = (1, 100, 4000)
_EXCUSED = (PeerLostError, MembershipChangedError, CollectiveTimeoutError)
_PATIENCE_S = 600.0
_AGAIN_S = 0.5
_LOOK_S = 0.02


class _Border(Exception):
    """The epoch is to end here, though nothing failed: somebody waits to be let in."""


class _Left(Exception):
    """This rank says goodbye."""


class Worker:
    """The loop of one seat's trainer.

    Attributes:
        steps: how many are committed; None: a newcomer that does not know yet.
        total: the sum of what was committed.
        asleep_s: it is to come late to its next step by so long.
        leaves: it is to say goodbye before its next step.
        out: why it takes no part any more.
    """

    def __init__(self, job: Job, trainer: SimTrainer, steps: int | None) -> None:
        self.job = job
        self.trainer = trainer
        self.seat = trainer.node.rank
        self.steps = steps
        self.total = 0
        self.asleep_s = 0.0
        self.leaves = False
        self.out: RingdError | None = None
        self._pending: int | None = None

    @property
    def ready(self) -> bool:
        """It takes part, and knows how far the job is."""
        return self.steps is not None and self.out is None

    async def run(self) -> None:
        """Until the job's last step, or until this rank can't go on."""
        try:
            fresh = self.steps is not None  # all begin together: all know
            while not await self._epoch(synced=fresh):
                fresh = False
                await self._reform()
        except _Left:
            self.trainer.goodbye()
        except RendezvousError as error:
            self.job.gives_up(self, error)

    async def _epoch(self, *, synced: bool) -> bool:
        """Steps, until something fails or somebody is to be let in; whether the job is over."""
        try:
            if not synced:
                await self._sync()
            while self.steps != self.job.last_step:
                await self._border()
                await self._step()
        except _Border:
            return False
        except RingdError as error:
            self.job.excuse(self.seat, error)
            return False
        return True

    async def _border(self) -> None:
        """What happens between two steps."""
        await asyncio.sleep(self.job.work_s + self.asleep_s)
        self.asleep_s = 0.0
        if self.leaves:
            raise _Left
        if self.trainer.node.newcomers():
            raise _Border

    async def _step(self) -> None:
        assert self.steps is not None
        value = await self._sum(self.steps)
        self._pending = value
        agreed = np.array([1], "uint8")
        await self._call(agree_spec(0), agreed)
        self._commit()

    def _commit(self) -> None:
        value, self._pending = self._pending, None
        assert value is not None
        assert self.steps is not None
        self.job.committed(self, self.steps, value)
        self.steps += 1
        self.total += value

    async def _sum(self, step: int) -> int:
        """A sum over the members of the epoch, checked; what stands for it."""
        spec = self.job.spec_of(step)
        region = self.job.part_of(self.seat, step)
        await self._call(spec, region)
        whole = sum(self.job.part_of(seat, step) for seat in self.trainer.ranks)
        if not np.array_equal(region, whole):
            raise WrongOutcome(f"rank {self.seat} step {step} ({spec}): wrong sum")
        return int(region.sum())

    async def _reform(self) -> None:
        begun = self.job.loop.time()
        error: RendezvousError | None = None
        try:
            facts = await self.trainer.reform(REFORM_S)
        except RendezvousError as exc:
            error = exc
        took_s = self.job.loop.time() - begun
        if took_s > REFORM_S + SLACK_S:
            raise WrongOutcome(f"rank {self.seat}: reform() took {took_s:.3f} s")
        if error is not None:
            raise error
        if facts["agreed"] and self._pending is not None:
            self._commit()
        self._pending = None
        self.job.begins(self, facts)

    async def _sync(self) -> None:
        """The first of the members, which is an old one, tells how far the job is."""
        knows = self.trainer.ranks[0] == self.seat
        if knows and self.steps is None:
            raise WrongOutcome(f"rank {self.seat}, a newcomer, leads {self.trainer.ranks}")
        region = np.array([self.steps or 0, self.total], "int64")
        await self._call(OpSpec("broadcast", "int64", "", (2,), root=0), region)
        steps, total = map(int, region)
        newcomer = self.steps is None or self.seat in self.job.stale
        if not newcomer and (steps, total) != (self.steps, self.total):
            raise WrongOutcome(
                f"rank {self.seat} has committed {self.steps} steps, in total {self.total}; rank "
                f"{self.trainer.ranks[0]} {steps}, in total {total}"
            )
        self.job.stale.discard(self.seat)
        self.steps, self.total = steps, total

    async def _call(self, spec: OpSpec, region: Array) -> None:
        begun = self.job.loop.time()
        self.job.calls.set()
        view = memoryview(region.view("uint8").data).cast("B")
        error, _ = await self.trainer.call(spec, view, CALL_S)
        took_s = self.job.loop.time() - begun
        self.job.tally.count(error)
        self.job.note("ended", self.seat, self.trainer.epoch, "ok" if error is None else error.code)
        if took_s > CALL_S + SLACK_S:
            raise WrongOutcome(f"rank {self.seat}: {spec} took {took_s:.3f} s: {error}")
        if error is not None:
            raise error


class Job:
    """The workers of all seats, and what is known of what they did.

    Attributes:
        last_step: how many steps there are; None: not decided yet.
        struck: seats that a fault has hit, which may fail to get into the next epoch.
        stale: seats that were left out of an epoch, and are no newcomers.
        epochs: by number, the members that somebody was told.
        work_s: how long a step takes besides its calls.
        calls: set when some rank makes a call.
        disturbed: something has happened, so that calls may fail.
    """

    def __init__(self, seed: int, cluster: Cluster, work_s: float) -> None:
        self.cluster = cluster
        self.loop = cluster.network.loop
        self.note = cluster.network.note
        self.tally = Tally()
        self.work_s = work_s
        self.last_step: int | None = None
        self.struck: set[int] = set()
        self.stale: set[int] = set()
        self.epochs: dict[int, tuple[int, ...]] = {}
        self.workers: dict[int, Worker] = {}
        self._seed = seed
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._values: dict[tuple[int, int], int] = {}
        self.calls = asyncio.Event()
        self.disturbed = False

    # What is computed

    def spec_of(self, step: int) -> OpSpec:
        """The call of a step, the same on all ranks."""
        rng = random.Random(f"{self._seed} {step}")
        algorithm = rng.choice(ALGORITHMS["all_reduce"])
        return OpSpec("all_reduce", "int64", "sum", (rng.choice(COUNTS),), algorithm=algorithm)

    def part_of(self, seat: int, step: int) -> Array:
        """What a seat adds to a step."""
        (count,) = self.spec_of(step).shape
        return (np.arange(count, dtype="int64") * 7 + 31 * step + 1001 * seat) % 1009 + 1

    # What the workers report

    def excuse(self, seat: int, error: RingdError) -> None:
        """A call failed; there must be a reason."""
        if not self.disturbed or not isinstance(error, _EXCUSED):
            raise WrongOutcome(f"rank {seat}: nothing explains {type(error).__name__}: {error}")

    def gives_up(self, worker: Worker, error: RendezvousError) -> None:
        """A rank can't get into the next epoch."""
        if worker.seat not in self.struck:
            raise WrongOutcome(f"rank {worker.seat} is well: {type(error).__name__}: {error}")
        worker.out = error
        self.note("out", worker.seat, error.code)
        worker.trainer.goodbye()

    def begins(self, worker: Worker, facts: dict[str, Any]) -> None:
        """A rank was told of an epoch: all must be told the same."""
        epoch, members = facts["epoch"], tuple(facts["ranks"])
        if self.epochs.setdefault(epoch, members) != members:
            raise WrongOutcome(f"epoch {epoch} has members {members} and {self.epochs[epoch]}")
        if worker.seat not in members:
            raise WrongOutcome(f"rank {worker.seat} is no member of {members}")
        if worker.seat in facts["joined"]:
            self.stale.add(worker.seat)

    def committed(self, worker: Worker, step: int, value: int) -> None:
        """A rank commits a step: all that do in one epoch commit the same."""
        self.note("commit", worker.seat, step, worker.trainer.epoch)
        key = (worker.trainer.epoch, step)
        if self._values.setdefault(key, value) != value:
            raise WrongOutcome(f"step {step} of epoch {key[0]}: {value} and {self._values[key]}")

    # Life

    def begin(self, seat: int, *, steps: int | None) -> None:
        """The trainer of a seat, which takes part in an epoch, begins to work."""
        trainer = self.cluster.trainers[seat]
        if self.epochs.setdefault(trainer.epoch, trainer.ranks) != trainer.ranks:
            raise WrongOutcome(f"epoch {trainer.epoch}: {trainer.ranks}, {self.epochs}")
        worker = self.workers[seat] = Worker(self, trainer, steps)
        self._tasks[seat] = asyncio.create_task(worker.run())

    def end(self, seat: int) -> None:
        """A worker dies where it stands."""
        self.workers.pop(seat, None)
        task = self._tasks.pop(seat, None)
        if task is not None:
            task.cancel()

    async def bring_back(self, seat: int, *, daemon: bool) -> None:
        """A fresh trainer at a seat, and before it a fresh daemon; it waits to be let in."""
        self.end(seat)
        if daemon:
            self.cluster.crash(seat)
            await self._start_daemon(seat)
        trainer = self.cluster.trainers[seat] = SimTrainer(self.cluster.nodes[seat])
        await trainer.attach(_PATIENCE_S)
        self.struck.discard(seat)
        self.begin(seat, steps=None)

    async def _start_daemon(self, seat: int) -> None:
        while True:
            node = self.cluster.make_node(seat)
            try:
                await node.start(self.loop.time() + _PATIENCE_S)
                break
            except HandshakeRefusedError:  # the one that died is not missed yet
                await asyncio.sleep(_AGAIN_S)
        self.cluster.nodes[seat] = node

    def is_over(self, seat: int) -> bool:
        """Its worker has ended."""
        return self._tasks[seat].done()

    def is_settled(self, seat: int) -> bool:
        """It can't go on, or takes part in the last epoch."""
        worker = self.workers[seat]
        return worker.out is not None or worker.trainer.epoch == max(self.epochs)

    def commits(self) -> dict[int, int]:
        """By seat, how many steps its worker has."""
        return {seat: worker.steps or 0 for seat, worker in self.workers.items()}

    def wrong(self, text: str) -> NoReturn:
        """Something that must never be."""
        raise WrongOutcome(text)

    @property
    def whole(self) -> bool:
        """Every seat takes part in one epoch, and knows how far the job is."""
        everyone = len(self.workers) == self.cluster.n
        epochs = {worker.trainer.epoch for worker in self.workers.values()}
        sizes = {len(worker.trainer.ranks) for worker in self.workers.values()}
        ready = everyone and all(worker.ready for worker in self.workers.values())
        return ready and not self.stale and len(epochs) == 1 and sizes == {self.cluster.n}

    @property
    def steps(self) -> int:
        """The most that anybody has committed."""
        return max((worker.steps or 0 for worker in self.workers.values()), default=0)

    async def until(self, holds: Callable[[], bool], what: str, limit_s: float) -> float:
        """Wait in virtual time; how long it took.

        Raises:
            WrongOutcome: it does not come to hold in time, or a worker saw something wrong.
        """
        begun = self.loop.time()
        while not holds():
            for task in self._tasks.values():
                if task.done():
                    task.result()
            if self.loop.time() > begun + limit_s:
                state = {s: (w.steps, w.trainer.ranks, w.out) for s, w in self.workers.items()}
                raise WrongOutcome(f"not within {limit_s:g} s: {what}; {state}")
            await asyncio.sleep(_LOOK_S)
        return self.loop.time() - begun

    async def finish(self, steps: int) -> None:
        """Some more steps, and all end with the same."""
        self.last_step = self.steps + steps
        await asyncio.gather(*self._tasks.values())
        ends = {(w.steps, w.total, w.trainer.epoch) for w in self.workers.values()}
        if len(ends) != 1 or len(self.workers) != self.cluster.n:
            raise WrongOutcome(f"steps, total and epoch of the ranks at the end: {sorted(ends)}")

    def cancel(self) -> None:
        """All workers end."""
        for task in self._tasks.values():
            task.cancel()
