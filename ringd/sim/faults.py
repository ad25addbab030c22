"""One fault of one run: it strikes, and is healed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from ringd.errors import HandshakeRefusedError
from ringd.sim.cluster import Cluster, SimTrainer, host
from ringd.sim.kinds import RENDEZVOUS, Clock, Kind
from ringd.transport.memory import MemoryNetwork

LONG_S = (90.0, 300.0)
SHORT_S = (1.0, 1.2)
"""Short, as a rendezvous that can't be reached for 2 s takes a daemon for dead."""
SETTLE_S = 5.0
"""Until a daemon that crashed is known to be gone."""
OFFICE_S = 20.0
"""Until a rendezvous has a successor, and until it has its place again."""
_STRIKE_S = 0.002
"""The mean of the time from a call's beginning to the strike."""
_PATIENCE_S = 3600.0
_AGAIN_S = 0.5


def draw_timeouts(rng: random.Random, clock: Clock, n: int) -> tuple[float, ...]:
    """Each rank's deadline for all of its calls."""
    if clock == "mixed":
        return tuple(rng.choice(SHORT_S + LONG_S) for _ in range(n))
    return (rng.choice(SHORT_S if clock == "short" else LONG_S),) * n


@dataclass(slots=True)
class Fault:
    """One fault of one run.

    Attributes:
        other: a second rank: the far end of a link, or who has no coordinator.
        timeouts: by rank, the deadline of its calls in seconds.
        struck: it has begun.
        changes: when it does something later, such as to end.
    """

    kind: Kind
    victim: int
    other: int
    cluster: Cluster
    rng: random.Random
    timeouts: tuple[float, ...]
    both_ways: bool = True
    struck: bool = False
    changes: set[float] = field(default_factory=set)
    _timers: list[asyncio.TimerHandle] = field(default_factory=list)
    _return: asyncio.Task[None] | None = None
    _restart: asyncio.Task[None] | None = None

    @property
    def network(self) -> MemoryNetwork:
        """Where it strikes."""
        return self.cluster.network

    @property
    def name(self) -> str:
        """The victim's host."""
        return host(self.victim)

    @property
    def far(self) -> str:
        """The other one's host."""
        return host(self.other)

    @property
    def trainer(self) -> SimTrainer:
        """The victim's."""
        return self.cluster.trainers[self.victim]

    def others(self) -> list[str]:
        """All hosts but the victim's, the rendezvous' among them."""
        return [host(r) for r in range(self.cluster.n) if r != self.victim] + [RENDEZVOUS]

    async def strike(self) -> None:
        """At a random moment of the operation that the others have begun."""
        await asyncio.sleep(self.rng.expovariate(1 / _STRIKE_S))
        self.struck = True
        self.network.note("strike", self.kind.name, self.victim, self.other)
        self.trainer.away = True
        try:
            await self.kind.strike(self)
        finally:
            self.trainer.away = False

    def later(self, delay_s: float, command: Callable[..., object], *args: object) -> None:
        """What the strike sets off, unless all is healed before."""
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(delay_s, command, *args))
        self.changes.add(loop.time() + delay_s)

    def restart_after(self, delay_s: float) -> None:
        """The victim's daemon and trainer are started anew, again and again until they join."""
        self._return = asyncio.get_running_loop().create_task(self._come_back(delay_s))

    def rendezvous_after(self, delay_s: float) -> None:
        """The rendezvous is started anew, and knows nobody."""
        self._restart = asyncio.get_running_loop().create_task(self._start_rendezvous(delay_s))

    async def _start_rendezvous(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await self.cluster.start_rendezvous()

    async def _come_back(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        loop = asyncio.get_running_loop()
        while True:
            node = self.cluster.make_node(self.victim)
            try:
                await node.start(loop.time() + _PATIENCE_S)
                break
            except HandshakeRefusedError:  # the one that died is not missed yet
                await asyncio.sleep(_AGAIN_S)
        self.cluster.nodes[self.victim] = node
        self.cluster.trainers[self.victim] = trainer = SimTrainer(node)
        await trainer.attach(_PATIENCE_S)

    async def heal(self) -> None:
        """All is as it was, and every trainer has attached anew."""
        for timer in self._timers:
            timer.cancel()
        cluster = self.cluster
        renewed = self.kind.renewed and self.struck
        if renewed and self._return is None:
            cluster.crash(self.victim)
        self.network.note("heal all")
        self.network.lift()
        if self.kind.name == "coordinator dies" and self.struck:
            await cluster.renew()
            return
        if self._restart is not None:
            await self._restart
        settle_s = OFFICE_S if self.kind.embedded else SETTLE_S
        await asyncio.sleep(settle_s)
        comes = [rank for rank in range(cluster.n) if rank != self.victim or self._return is None]
        for rank in comes:
            if rank != self.victim or not renewed:
                cluster.trainers[rank].goodbye()
        if renewed and self._return is None:
            await cluster.replace(self.victim, settle_s)
        for rank in comes:
            cluster.trainers[rank] = SimTrainer(cluster.nodes[rank])
        await asyncio.gather(*(cluster.trainers[rank].attach(SETTLE_S * 2) for rank in comes))
        if self._return is not None:
            await self._return
