"""A rendezvous and its daemons' agents in one process, over loopback TCP or in memory."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Protocol

from ringd.rendezvous.agent import Agent, DaemonInfo
from ringd.rendezvous.agent_events import Presence
from ringd.rendezvous.news import Claim, Lost, Start
from ringd.rendezvous.reach import AgentSettings, RetrySettings
from ringd.rendezvous.service import RendezvousService
from ringd.rendezvous.service_settings import ServiceSettings
from ringd.sim.clock import VirtualLoop, run
from ringd.sim.weather import CalmWeather
from ringd.transport.base import Address, Channel, Listener, Transport
from ringd.transport.memory import MemoryNetwork, MemoryTransport
from ringd.transport.tcp import TcpTransport
from ringd.wire.handshake import DAEMON, RENDEZVOUS, Credentials

JOB, SECRET = "digits", b"the secret of the job"
DATA_PORT = 4000
LOG = logging.getLogger("tests.rendezvous")
PATIENCE_S = 20.0


class Diary:
    """An AgentEvents that writes down what it hears."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []
        self.state: dict[str, Any] = {"fine": True}
        self.claim: Claim | None = None
        self._written = asyncio.Event()

    def _write(self, *entry: Any) -> None:
        self.entries.append(entry)
        self._written.set()

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        """What was heard of that kind."""
        return [entry[1:] for entry in self.entries if entry[0] == kind]

    async def heard(self, kind: str, times: int = 1) -> tuple[Any, ...]:
        """Wait until that kind was heard so often: the last of them."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.of(kind)) < times:
                self._written.clear()
                await self._written.wait()
        return self.of(kind)[times - 1]

    async def wrote(self, *entry: Any) -> None:
        """Wait until exactly this was heard."""
        async with asyncio.timeout(PATIENCE_S):
            while entry not in self.entries:
                self._written.clear()
                await self._written.wait()

    def on_members(self, members: list[tuple[int, Address]]) -> None:
        self._write("members", dict(members))

    def on_waiting(self, presence: Presence) -> None:
        self._write("waiting", presence.joined, presence.attached)

    def on_refused(self, text: str) -> None:
        self._write("refused", text)

    def on_start(self, start: Start) -> None:
        self._write("start", start.epoch)

    def on_changed(self, epoch: int, rank: int) -> None:
        self._write("changed", epoch, rank)

    def on_not_reformed(self, text: str, facts: dict[str, Any]) -> None:
        self._write("not reformed", text, facts)

    def on_left(self, rank: int, epoch: int, next_seqs: dict[int, int]) -> None:
        self._write("left", rank, epoch, next_seqs)

    def on_lost(self, lost: Lost) -> None:
        self._write("lost", lost)

    def on_abort(
        self, epoch: int, group: int, lowest: int, seq: int, error: dict[str, Any]
    ) -> None:
        self._write("abort", epoch, group, lowest, seq, error)

    def on_inquiry(self, inquiry: int, epoch: int, group: int, lowest: int, seq: int) -> None:
        self._write("inquiry", inquiry, epoch, group, lowest, seq)

    def on_dial(self, peer: int) -> None:
        self._write("dial", peer)

    def on_report(self) -> dict[str, Any]:
        return self.state

    def on_coordinator_lost(self, reason: str) -> None:
        self._write("coordinator lost", reason)

    def on_coordinator_back(self) -> None:
        self._write("coordinator back")

    def on_claim(self) -> Claim | None:
        return self.claim

    def on_succession(self, silent: frozenset[int]) -> Address:
        raise AssertionError("nobody succeeds here")


class Recording:
    """A transport that can reset what was dialled through it."""

    def __init__(self, inner: Transport) -> None:
        self.name = inner.name
        self.inner = inner
        self.dialled: list[Channel] = []
        self.failures: list[OSError] = []
        """Raised by the next attempts to dial, in order."""

    async def dial(self, address: Address, *, deadline: float) -> Channel:
        if self.failures:
            raise self.failures.pop(0)
        channel = await self.inner.dial(address, deadline=deadline)
        self.dialled.append(channel)
        return channel

    async def listen(self, address: Address, on_channel: Callable[[Channel], None]) -> Listener:
        return await self.inner.listen(address, on_channel)

    def reset(self) -> None:
        """As if the process had been killed."""
        for channel in self.dialled:
            channel.abort()


class Member:
    """One rank's agent, what it heard, and its transport."""

    def __init__(self, agent: Agent, diary: Diary, transport: Recording, port: int) -> None:
        self.agent = agent
        self.diary = diary
        self.transport = transport
        self._port = port

    async def join(self, timeout_s: float = PATIENCE_S) -> Address:
        deadline = asyncio.get_running_loop().time() + timeout_s
        return await self.agent.join(self.advertise, deadline=deadline)

    async def advertise(self, local: Address) -> Address:
        return Address(local.host, self._port)


class World(Protocol):
    """Where a scene plays."""

    def transport(self, host: str) -> Transport: ...
    def host(self, name: str) -> str: ...
    def run(self, main: Coroutine[Any, Any, None]) -> None: ...


class TcpWorld:
    """Real sockets, all on this host."""

    def __init__(
        self, new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    ) -> None:
        self._new_loop = new_loop

    def transport(self, host: str) -> Transport:
        return TcpTransport()

    def host(self, name: str) -> str:
        return "127.0.0.1"

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=self._new_loop) as runner:
            runner.run(main)


class MemoryWorld:
    """In memory, each part on its own host, in virtual time."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.network = MemoryNetwork(self.loop, CalmWeather())

    def transport(self, host: str) -> Transport:
        return MemoryTransport(self.network, host)

    def host(self, name: str) -> str:
        return name

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        run(main, loop=self.loop)
        assert not self.loop.unhandled


class Scene:
    """One job. Leave it with ``close``, so that nothing of it goes on.

    Args:
        seat: whose daemon holds the service, if one does.
    """

    def __init__(
        self, world: World, world_size: int, *, seat: int | None = None, **settings: Any
    ) -> None:
        self.world = world
        self.seat = seat
        self.world_size = world_size
        self.settings = ServiceSettings(**settings)
        self.service = self.make_service()
        self.address = Address(world.host("service"), 0)
        self.members: list[Member] = []
        self._rng = random.Random(7)
        self._began = asyncio.get_running_loop().time()

    def elapsed_s(self) -> float:
        """Since the scene was made."""
        return asyncio.get_running_loop().time() - self._began

    def make_service(self) -> RendezvousService:
        credentials = Credentials(JOB, -1, self.world_size, RENDEZVOUS, SECRET)
        transport = self.world.transport("service")
        return RendezvousService(
            transport, credentials, log=LOG, settings=self.settings, seat=self.seat
        )

    async def start(self) -> Scene:
        self.address = await self.service.start(self.address)
        return self

    def member(self, rank: int, *, heartbeat_s: float = 1.0, **changes: Any) -> Member:
        """An agent that has not joined yet; ``changes`` to its credentials."""
        credentials = replace(
            Credentials(JOB, rank, self.world_size, DAEMON, SECRET),
            **{k: v for k, v in changes.items() if k != "sizes"},
        )
        diary = Diary()
        transport = Recording(self.world.transport(f"host{rank}"))
        agent = Agent(
            transport,
            credentials,
            self.address,
            diary,
            diary,
            rng=self._rng,
            log=LOG,
            settings=AgentSettings(heartbeat_s, RetrySettings()),
            info=DaemonInfo(pid=1000 + rank, host=f"host{rank}", version="1"),
            sizes=changes.get("sizes", (1, 1)),
        )
        member = Member(agent, diary, transport, DATA_PORT + rank)
        self.members.append(member)
        return member

    async def formed(self) -> list[Member]:
        """All ranks joined."""
        members = [self.member(rank) for rank in range(self.world_size)]
        await asyncio.gather(*(member.join() for member in members))
        for member in members:
            await member.diary.heard("members")
        return members

    async def running(self) -> list[Member]:
        """Epoch 1 runs."""
        members = await self.formed()
        for member in members:
            member.agent.attach()
        for member in members:
            await member.diary.wrote("start", 1)
        return members

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what no diary tells."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    async def close(self) -> None:
        for member in self.members:
            member.agent.leave()
        await self.service.stop()
