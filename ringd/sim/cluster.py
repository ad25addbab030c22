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
from ringd.rendezvous.service import RendezvousService
from ringd.transport.base import Address
from ringd.transport.memory import Death, MemoryNetwork, MemoryTransport
from ringd.vocabulary import OpSpec
from ringd.wire.handshake import DAEMON, NONCE_BYTES, RENDEZVOUS, Credentials

JOB = "simulation"
SECRET = b"a secret of the simulation"
RENDEZVOUS_AT = Address("rendezvous", 7000)
JOIN_LIMIT_S = 120.0


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
        state, stack: what ``inspect`` finds; who sets "stopped" makes no calls meanwhile.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.pid = 1000 + node.rank
        self.epoch = 0
        self.state: State = "running"
        self.stack: tuple[str, ...] = ("train.py:1 in main",)
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
        self._welcome.set_result(epoch)

    def refuse(self, error: RingdError) -> None:
        """Called by the node."""
        assert self._welcome is not None
        self._welcome.set_exception(error)

    def call(
        self, spec: OpSpec, region: memoryview, timeout_s: float, local: Local = None
    ) -> asyncio.Future[tuple[RingdError | None, int | None]]:
        """Begin a call; the future has its error, if any, and who sent what was received."""
        future: asyncio.Future[tuple[RingdError | None, int | None]]
        future = asyncio.get_running_loop().create_future()
        self.node.engine.submit(
            spec.packed,
            lambda _size: region,
            lambda error, result: future.set_result((error, result)),
            timeout_s=timeout_s,
            local=local,
        )
        return future

    def inspect(self, callback: Callable[[TrainerState], None]) -> None:
        """Called by the node: what a debugger would see."""
        stack = () if self.state == "stopped" else self.stack
        callback(TrainerState(self.pid, self.state, stack))

    def goodbye(self) -> None:
        """Leave in order."""
        self.node.detach(self, "goodbye", "")

    def die(self) -> None:
        """Leave as a killed process does."""
        self.node.detach(self, "died", f"process {self.pid} ended")


class Cluster:
    """N ranks on a simulated network.

    Args:
        embed: the rank whose daemon holds the rendezvous; None: it has a host of its own.
    """

    def __init__(
        self,
        network: MemoryNetwork,
        n: int,
        rng: random.Random,
        options: EngineOptions | None = None,
        *,
        embed: int | None = None,
    ) -> None:
        self.network = network
        self.embed = embed
        self.rendezvous_at = RENDEZVOUS_AT
        if embed is not None:
            self.rendezvous_at = Address(host(embed), RENDEZVOUS_AT.port)
        self.n = n
        self._rng = rng
        self._options = options or EngineOptions()
        self._service: RendezvousService | None = None
        self._watch = _Violations()
        self._log = logging.Logger("ringd.sim.cluster")  # noqa: LOG001 - each its own
        self._log.addHandler(self._watch)
        self.nodes: list[Node] = []
        self.trainers: list[SimTrainer] = []

    @property
    def violations(self) -> list[str]:
        """Breaches of the protocol that any part has logged."""
        return self._watch.found

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
            office=Office(embed=rank == self.embed),
        )

    async def kill(self, rank: int, how: Death = "reset") -> None:
        """A rank's host dies, with daemon and trainer."""
        self.network.crash(host(rank), how)
        await self.nodes[rank].stop()

    async def start_rendezvous(self) -> None:
        """A rendezvous that knows nothing, at its address."""
        self._service = RendezvousService(
            MemoryTransport(self.network, RENDEZVOUS_AT.host),
            Credentials(JOB, -1, self.n, RENDEZVOUS, SECRET),
            log=self._log,
            make_nonce=self._nonce,
        )
        await self._service.start(RENDEZVOUS_AT)

    async def kill_rendezvous(self, how: Death = "reset") -> None:
        """The rendezvous dies, and its host with it."""
        assert self._service is not None
        self.network.crash(RENDEZVOUS_AT.host, how)
        await self._service.stop()

    async def stop_rendezvous(self) -> None:
        """Only the rendezvous ends; the daemons see that."""
        if self._service is not None:
            await self._service.stop()

    async def stop(self) -> None:
        """End all in order."""
        for node in self.nodes:
            await node.stop()
        await self.stop_rendezvous()
