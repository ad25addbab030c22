"""A whole job in memory: the rendezvous, N nodes, N trainers, each on a host of its own."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

from ringd.daemon.continuity import Office
from ringd.daemon.mesh import Place
from ringd.daemon.node import Node
from ringd.daemon.trainer_state import State, TrainerState
from ringd.engine.engine import EngineOptions, Local
from ringd.errors import RingdError
from ringd.rendezvous.agent_events import DaemonInfo
from ringd.rendezvous.service import RendezvousService
from ringd.rendezvous.service_settings import ServiceSettings
from ringd.transport.base import Address
from ringd.transport.memory import Death, MemoryNetwork, MemoryTransport
from ringd.vocabulary import OpSpec
from ringd.wire.handshake import DAEMON, NONCE_BYTES, RENDEZVOUS, Credentials
from ringd.wire.raised import Raised

JOB = "simulation"
SECRET = b"a secret of the simulation"
RENDEZVOUS_AT = Address("rendezvous", 7000)
JOIN_LIMIT_S = 120.0
RAISED = Raised("RuntimeError", "no more data", "/job/train.py", 7)
"""What ended a trainer that fails."""


class _Violations(logging.Handler):
    """Collects what says that somebody broke the protocol: in a simulation nobody may."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "ProtocolError" in text or "FrameError" in text or record.exc_info:
            self.found.append(text)


def host(rank: int) -> str:
    """The name of a rank's host."""
    return f"host{rank}"


class SimTrainer:
    """A trainer that calls its node directly; its memory is its own.

    Attributes:
        ranks: the seats of its epoch, in order.
        state, stack: what ``inspect`` finds; who sets "stopped" makes no calls meanwhile.
        away: it is in its own code, and waits for none of its calls that are in flight.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.pid = 1000 + node.rank
        self.epoch = 0
        self.ranks: tuple[int, ...] = ()
        self.state: State = "running"
        self.stack: tuple[str, ...] = ("train.py:1 in main",)
        self.away = False
        self._welcome: asyncio.Future[int] | None = None

    async def attach(self, timeout_s: float) -> None:
        """Take part in the next epoch.

        Raises:
            RendezvousError: not all came together in time.
        """
        self._welcome = asyncio.get_running_loop().create_future()
        self.node.attach(self, timeout_s)
        self.epoch = await self._welcome

    def welcome(self, epoch: int, facts: dict[str, Any]) -> None:
        """Called by the node."""
        assert self._welcome is not None
        self.ranks = tuple(facts["ranks"])
        if not self._welcome.done():
            self._welcome.set_result(epoch)

    def refuse(self, error: RingdError) -> None:
        """Called by the node."""
        assert self._welcome is not None
        if not self._welcome.done():
            self._welcome.set_exception(error)

    async def reform(self, timeout_s: float, min_size: int = 1) -> dict[str, Any]:
        """Ask for the next epoch; what the daemon tells of it.

        Raises:
            RingdError: there is none.
        """
        future: asyncio.Future[tuple[RingdError | None, dict[str, Any] | None]]
        future = asyncio.get_running_loop().create_future()

        def reply(error: RingdError | None, facts: dict[str, Any] | None) -> None:
            if not future.done():
                future.set_result((error, facts))

        self.node.reform(self, min_size, timeout_s, reply)
        error, facts = await future
        if error is not None:
            raise error
        assert facts is not None
        self.epoch, self.ranks = facts["epoch"], tuple(facts["ranks"])
        return facts

    def call(
        self, spec: OpSpec, region: memoryview, timeout_s: float, local: Local = None
    ) -> asyncio.Future[tuple[RingdError | None, int | None]]:
        """Begin a call; the future has its error, if any, and who sent what was received."""
        future: asyncio.Future[tuple[RingdError | None, int | None]]
        future = asyncio.get_running_loop().create_future()

        def done(error: RingdError | None, result: int | None) -> None:
            if not future.done():  # a call of a trainer that died with its host is forgotten
                future.set_result((error, result))

        self.node.engine.submit(
            spec.packed,
            lambda _size: region,
            done,
            timeout_s=timeout_s,
            deadline=self.node.loop.time() + timeout_s,
            local=local,
        )
        return future

    def inspect(self, callback: Callable[[TrainerState], None]) -> None:
        """Called by the node: what a debugger would see."""
        engine = self.node.engine
        waits = bool(engine.live or engine.mail.live) and not self.away
        stack = ("ringd_client.wait (waiting)", *self.stack) if waits else self.stack
        stack = () if self.state == "stopped" else stack
        callback(TrainerState(self.pid, self.state, stack))

    def process_state(self) -> State:
        """The same, of the process alone."""
        return self.state

    def goodbye(self) -> None:
        """Leave in order."""
        self.node.detach(self, "goodbye", "")

    def die(self) -> None:
        """Leave as a killed process does."""
        self.node.detach(self, "died", f"process {self.pid} ended")

    def fail(self) -> None:
        """Leave as a process does that raised."""
        self.node.detach(self, "raised", str(RAISED), RAISED)


class Cluster:
    """N ranks on a simulated network.

    Args:
        embed: the rank whose daemon holds the rendezvous; None: it has a host of its own.
        majority: see ``ringd.daemon.continuity.Office``.
    """

    def __init__(
        self,
        network: MemoryNetwork,
        n: int,
        rng: random.Random,
        options: EngineOptions | None = None,
        settings: ServiceSettings | None = None,
        *,
        embed: int | None = None,
        majority: bool | None = None,
    ) -> None:
        self.network = network
        self.embed = embed
        self._majority = majority
        self.rendezvous_at = RENDEZVOUS_AT
        if embed is not None:
            self.rendezvous_at = Address(host(embed), RENDEZVOUS_AT.port)
        self.n = n
        self._rng = rng
        self._options = options or EngineOptions()
        self._settings = settings
        self._service: RendezvousService | None = None
        self._watch = _Violations()
        self._log = logging.Logger("ringd.sim.cluster")  # noqa: LOG001 - each its own
        self._log.addHandler(self._watch)
        self._ghosts: list[Node] = []
        self.nodes: list[Node] = []
        self.trainers: list[SimTrainer] = []

    @property
    def violations(self) -> list[str]:
        """Breaches of the protocol that any part has logged."""
        return self._watch.found

    def resumed(self) -> int:
        """How often a link has had a new connection take over, of the links that there are."""
        return sum(link.resumed for node in self.nodes for link in node.engine.links.values()) // 2

    def in_reach(self) -> bool:
        """Every living daemon has the rendezvous."""
        return all(node.in_reach() for node in self._living())

    def holders(self) -> list[int]:
        """Living ranks whose daemon holds a rendezvous."""
        return [node.rank for node in self._living() if node.holds_rendezvous]

    def _living(self) -> list[Node]:
        return [node for node in self.nodes if node not in self._ghosts]

    def describe(self) -> str:
        """Which rank waits for whom, for a report of a stand-still."""
        live = [(node.rank, op) for node in self.nodes for op in node.engine.live]
        return "\n".join(f"  rank {r}: {op.spec} seq {op.seq}: {op.progress()}" for r, op in live)

    def _nonce(self) -> bytes:
        return self._rng.randbytes(NONCE_BYTES)

    async def start(self) -> None:
        """Rendezvous, nodes, trainers: all attached when this returns."""
        await self.start_daemons()
        self.trainers = [SimTrainer(node) for node in self.nodes]
        await asyncio.gather(*(t.attach(JOIN_LIMIT_S) for t in self.trainers))

    async def start_daemons(self) -> None:
        """Rendezvous and nodes; the group is complete when this returns."""
        if self.embed is None:
            await self.start_rendezvous()
        self.nodes = [self.make_node(rank) for rank in range(self.n)]
        deadline = asyncio.get_running_loop().time() + JOIN_LIMIT_S
        await asyncio.gather(*(node.start(deadline) for node in self.nodes))
        await asyncio.gather(*(node.formed.wait() for node in self.nodes))

    async def start_rendezvous(self) -> None:
        """Only the rendezvous, which knows nobody."""
        self._service = RendezvousService(
            MemoryTransport(self.network, RENDEZVOUS_AT.host),
            Credentials(JOB, -1, self.n, RENDEZVOUS, SECRET),
            log=self._log,
            settings=self._settings,
            make_nonce=self._nonce,
        )
        await self._service.start(RENDEZVOUS_AT)

    def make_node(self, rank: int) -> Node:
        """A node of this job that was not started yet."""
        return Node(
            loop=asyncio.get_running_loop(),
            transport=MemoryTransport(self.network, host(rank)),
            credentials=Credentials(JOB, rank, self.n, DAEMON, SECRET),
            rendezvous=self.rendezvous_at,
            place=Place(bind=host(rank)),
            options=self._options,
            rng=random.Random(self._rng.getrandbits(32)),
            nonce=self._nonce,
            log=self._log,
            info=DaemonInfo(2000 + rank, host(rank), "simulated"),
            office=Office(embed=rank == self.embed, majority=self._majority),
        )

    async def kill(self, rank: int, how: Death = "reset") -> None:
        """A rank's host dies, with daemon and trainer."""
        self.network.crash(host(rank), how)
        await self.nodes[rank].stop()

    def crash(self, rank: int, how: Death = "reset") -> None:
        """A rank's host dies with its daemon and trainer, unless it is dead."""
        if self.nodes[rank] not in self._ghosts:
            self.network.crash(host(rank), how)
            self._ghosts.append(self.nodes[rank])

    async def replace(self, rank: int, timeout_s: float) -> None:
        """A rank's daemon is started anew."""
        node = self.nodes[rank] = self.make_node(rank)
        await node.start(asyncio.get_running_loop().time() + timeout_s)

    async def renew(self) -> None:
        """Everything is started anew, the rendezvous too."""
        for node in self.nodes:
            await node.stop()
        await self.kill_rendezvous()
        await self.start()

    async def kill_rendezvous(self, how: Death = "reset") -> None:
        """The rendezvous dies, and its host with it."""
        self.network.crash(RENDEZVOUS_AT.host, how)
        await self.stop_rendezvous()

    async def stop_rendezvous(self) -> None:
        """Only the rendezvous ends; the daemons see that."""
        if self._service is not None:
            await self._service.stop()

    async def stop(self) -> None:
        """End all in order; what is left of daemons that crashed, too."""
        for node in (*self.nodes, *self._ghosts):
            await node.stop()
        await self.stop_rendezvous()
