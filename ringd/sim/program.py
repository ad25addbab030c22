"""What the ranks of a simulated job do: their calls in order, each checked when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from ringd.engine.engine import Local
from ringd.errors import RingdError
from ringd.sim.calls import Array, Call, Exchange, InGroup, Message, NewGroup, Relay, Step, values
from ringd.sim.cluster import SimTrainer
from ringd.sim.world import WrongOutcome
from ringd.transport.memory import MemoryNetwork
from ringd.vocabulary import RECV, SEND, OpSpec

SLACK_S = 0.25
"""How long after its deadline a call may end."""


class Judging(Protocol):
    """Who says which errors may be."""

    uneven: set[int]
    messages_missed: bool

    def enters(self, rank: int, step: int) -> None:
        """A rank makes the call of a step."""

    def takes(self, rank: int, step: int, error: RingdError) -> str | None:
        """What is wrong with an error; None: nothing."""


class Before(Protocol):
    """Who is asked before each step of each rank."""

    async def step(self, rank: int, index: int) -> bool:
        """Whether this rank goes on."""


class Undisturbed:
    """Nothing happens between the steps."""

    async def step(self, rank: int, index: int) -> bool:
        """Every rank goes on."""
        return True


class NoError:
    """Of a job in which nothing may fail."""

    def __init__(self) -> None:
        self.uneven: set[int] = set()
        self.messages_missed = False

    def enters(self, rank: int, step: int) -> None:
        """No matter when."""

    def takes(self, rank: int, step: int, error: RingdError) -> str | None:
        """None may be."""
        return "nothing is wrong here"


@dataclass(slots=True)
class Tally:
    """How calls ended."""

    completed: int = 0
    failed: int = 0
    partial: int = 0
    verdicts: set[str] = field(default_factory=set)

    def count(self, error: RingdError | None) -> None:
        """A call ended."""
        if error is None:
            self.completed += 1
            return
        self.failed += 1
        self.partial += bool(error.fields.get("partial"))
        if error.fields.get("verdict"):
            self.verdicts.add(str(error.fields["verdict"]))


class Program:
    """The calls of all ranks in one epoch.

    Args:
        steps: what is called, in the order of the world's calls.
        window: how many steps a rank has in flight at most.
        timeouts: by rank, the deadline of its calls.
        judge: of errors.
    """

    def __init__(
        self,
        network: MemoryNetwork,
        steps: Sequence[Step],
        *,
        window: int,
        timeouts: Sequence[float],
        judge: Judging,
        tally: Tally,
    ) -> None:
        self._network = network
        self._loop = network.loop
        self._steps = steps
        self._window = window
        self._timeouts = timeouts
        self._judge = judge
        self._tally = tally

    async def run_all(self, trainers: Sequence[SimTrainer], before: Before) -> None:
        """All ranks' calls at once; the first wrong outcome is raised, and ends them."""
        tasks = [asyncio.create_task(self.run(trainer, before)) for trainer in trainers]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def run(self, trainer: SimTrainer, before: Before) -> None:
        """One rank's calls.

        Args:
            before: awaited before each step; False: this rank calls no more, and what it has in
                flight is forgotten.

        Raises:
            WrongOutcome: a call ended as it may not.
        """
        flying: list[asyncio.Task[None]] = []
        groups: list[int | None] = []
        try:
            for index, step in enumerate(self._steps):
                if not await before.step(trainer.node.rank, index):
                    return
                while len(flying) >= self._window:
                    await flying.pop(0)
                if isinstance(step, NewGroup):
                    groups.append(await self._new_group(trainer, index, step))
                    continue
                work = self._work(trainer, index, step, groups)
                if work is not None:
                    flying.append(asyncio.create_task(work))
                    await asyncio.sleep(0)  # it begins now: the order of calls is that of the steps
            await asyncio.gather(*flying)
        finally:
            for task in flying:
                task.cancel()

    def _work(
        self, trainer: SimTrainer, index: int, step: Step, groups: list[int | None]
    ) -> Coroutine[Any, Any, None] | None:
        """What this rank does in a step; None: nothing."""
        rank = trainer.node.rank
        if isinstance(step, Exchange):
            return self._exchange(trainer, index, step)
        if isinstance(step, Relay):
            return self._relay(trainer, index, step)
        if isinstance(step, Call):
            return self._call(trainer, index, step, step.spec)
        assert isinstance(step, InGroup)
        number = groups[step.index]
        if rank not in step.call.members:
            return None
        if number is None:
            self._judge.uneven.add(index)  # others may have the group
            return None
        return self._call(trainer, index, step.call, replace(step.call.spec, group=number))

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

    async def _relay(self, trainer: SimTrainer, index: int, step: Relay) -> None:
        """Receive this rank's message, then send its own; without the one there is no other."""
        rank = trainer.node.rank
        for message in step.messages:
            if message.dest == rank and await self._receive(trainer, index, message) is not None:
                return
            if message.source == rank:
                await self._send(trainer, index, message)

    async def _send(self, trainer: SimTrainer, index: int, message: Message) -> None:
        await self._timed(trainer, index, message.spec(SEND), message.data(), message.tag)

    async def _receive(
        self, trainer: SimTrainer, index: int, message: Message
    ) -> RingdError | None:
        region = values(message.count, 1, message.dtype)
        error, source = await self._timed(trainer, index, message.spec(RECV), region, message.tag)
        if error is not None or self._judge.messages_missed:
            return error
        if source != message.source or not np.array_equal(region, message.data()):
            raise WrongOutcome(
                f"rank {trainer.node.rank} step {index} ({message}): wrong message from {source}"
            )
        return None

    async def _timed(
        self, trainer: SimTrainer, index: int, spec: OpSpec, region: Array, local: Local
    ) -> tuple[RingdError | None, int | None]:
        """Make a call; it must end by its deadline, and an error must be one that is explained."""
        rank = trainer.node.rank
        view = memoryview(region.view("uint8").data).cast("B") if region.size else memoryview(b"")
        timeout_s = self._timeouts[rank]
        begun = self._loop.time()
        self._judge.enters(rank, index)
        error, result = await trainer.call(spec, view, timeout_s, local)
        took_s = self._loop.time() - begun
        self._tally.count(error)
        self._network.note("ended", rank, index, "ok" if error is None else _short(error))
        if took_s > timeout_s + SLACK_S:
            raise WrongOutcome(f"rank {rank} step {index} took {took_s:.3f} s: {error}")
        wrong = None if error is None else self._judge.takes(rank, index, error)
        if wrong is not None:
            raise WrongOutcome(
                f"rank {rank} step {index} ({spec}): {wrong}: {type(error).__name__}: {error}"
            )
        return error, result


def _short(error: RingdError) -> str:
    """An error in a trace."""
    fields = error.fields
    verdict = "partial" if fields.get("partial") else fields.get("verdict", "")
    return f"{error.code} {verdict} {fields.get('case', '')} {fields.get('culprits', '')}"
