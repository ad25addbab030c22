"""Channels within one process: the twin of ``tcp`` for simulation, where faults are commands.

Hosts are names. One direction of a channel is a pipe of bounded size:

    send ─▶ backlog ─▶ ║ wire ─▶ inbox ║ ─▶ receiver
            (caller's    (on its    (arrived,
             memory)      way)       not read)

The weather decides how long bytes are on the wire and in what pieces the receiver is told of
them; nothing else here is left to chance, so on a loop with virtual time a run depends on the
weather's seed alone. Room in the pipe comes back when the receiver has read and the way back is
not cut. As with TCP, bytes in the pipe outlive their sender's ``close``, a lost end of stream is
repeated once the path is healed, a lost reset is not: then the peer learns of it when it sends.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal, Protocol

from ringd.errors import AddressInUseError
from ringd.transport.base import Address, Channel
from ringd.transport.pipes import Host, Mark, MemoryChannel, Pipe, State

PIPE_BYTES = 256 * 1024
_FIRST_LISTEN_PORT = 20_000
_FIRST_DIAL_PORT = 50_000

TraceEvent = tuple[float, str, *tuple[str | int | float, ...]]
"""When (loop time), what, and its facts: the channel, a count of bytes, a host."""
Death = Literal["reset", "eof", "silence"]
"""What peers see of a crash: a reset, an end of stream (as of a killed process, whose kernel
still sends what it took), or nothing at all (the machine is gone)."""


class Weather(Protocol):
    """All that chance decides in a network."""

    def delay_s(self, source: str, target: str) -> float:
        """How long the next bytes from host ``source`` to host ``target`` are on the wire."""

    def chop(self, available_bytes: int) -> int:
        """How many of the arrived bytes the receiver is told of at once: at least one."""


class MemoryListener:
    """Accepts channels at one port of one host."""

    def __init__(self, host: Host, port: int, on_channel: Callable[[Channel], None]) -> None:
        self.address = Address(host.name, port)
        self._host = host
        self._on_channel = on_channel
        self._open = True
        host.listeners[port] = self

    def accept(self, channel: MemoryChannel) -> None:
        """Hand over a channel that the host's kernel has accepted, once the host runs."""
        if not self._open or not self._host.alive:
            channel.abort()
        elif self._host.running:
            self._on_channel(channel)
        else:
            self._host.parked.append(partial(self.accept, channel))

    def close(self) -> None:
        """Stop accepting."""
        if self._open:
            self._open = False
            self._host.listeners.pop(self.address.port, None)


class MemoryTransport:
    """What one host sees of the network; made after a crash, it starts the host's next life."""

    name = "memory"

    def __init__(self, network: MemoryNetwork, host: str) -> None:
        self._network = network
        self._host = network.start(host)

    async def dial(self, address: Address, *, deadline: float) -> MemoryChannel:
        """Connect to ``address`` by the loop-time ``deadline``; a lost attempt is repeated."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._network.connect(self._host, address)
        except TimeoutError:
            self._network.note("dial timeout", self._host.name, str(address))
            raise TimeoutError(errno.ETIMEDOUT, f"{address} did not answer in time") from None

    async def listen(
        self, address: Address, on_channel: Callable[[Channel], None]
    ) -> MemoryListener:
        """Accept at ``address``, whose host is this transport's (port 0: any)."""
        host = self._host
        if address.host != host.name:
            raise OSError(errno.EADDRNOTAVAIL, f"can't listen on {address} from host {host.name}")
        port = address.port or self._network.free_port(host.name, _FIRST_LISTEN_PORT)
        if port in host.listeners:
            raise AddressInUseError(f"{address} is in use; choose another", address=str(address))
        return MemoryListener(host, port, on_channel)


class MemoryNetwork:
    """All hosts and the paths between them, and the faults that a test commands.

    A stalled or crashed host gets no callback from here; tasks and timers that belong to it are
    the test's to stop. What a stalled host sends stays in its backlogs.

    Args:
        loop: the loop that all hosts share.
        weather: decides delays and pieces.
        pipe_bytes: how much each direction of a new channel takes before its sender has a
            backlog; may be as low as one byte.
        trace: a list that gets an event for all that happens.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        weather: Weather,
        *,
        pipe_bytes: int = PIPE_BYTES,
        trace: list[TraceEvent] | None = None,
    ) -> None:
        if pipe_bytes < 1:
            raise ValueError(f"a pipe of {pipe_bytes} bytes passes nothing")
        self.loop = loop
        self.weather = weather
        self.pipe_bytes = pipe_bytes
        self.trace = trace
        self._hosts: dict[str, Host] = {}
        self._pipes: dict[Pipe, None] = {}
        self._ports: dict[tuple[str, int], Iterator[int]] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._clogs: set[tuple[str, str]] = set()
        self._delays_s: dict[tuple[str, str], float] = {}
        self._fuses: dict[tuple[str, str], int] = {}
        self._refusing: set[tuple[str, int]] = set()
        self._watchers: list[asyncio.Future[None]] = []

    # Hosts and channels

    def start(self, name: str) -> Host:
        """The host of that name: as it lives, or begins its first or next life."""
        host = self._hosts.get(name)
        if host is None or not host.alive:
            host = self._hosts[name] = Host(name)
            self.note("start", name)
            self._kick({name})
        return host

    def channels(self, host: str, peer: str | None = None) -> list[MemoryChannel]:
        """The living channel ends at ``host`` (with their other end at ``peer``)."""
        ends = {end: None for pipe in self._pipes for end in (pipe.source, pipe.target)}
        return [
            end
            for end in ends
            if end.state is not State.OVER
            and end.local.host == host
            and peer in (None, end.peer.host)
        ]

    def open_channels(self) -> list[str]:
        """Labels of the pipes of living hosts that something may still come through."""
        return [pipe.label for pipe in self._pipes if pipe.source.host.alive and not pipe.idle]

    async def connect(self, host: Host, address: Address) -> MemoryChannel:
        """The handshake of ``dial``, without its deadline."""
        there = address.host
        await self._until(lambda: host.alive and host.running)
        self.note("dial", host.name, str(address))
        await self._travel(host.name, there)
        await self._until(lambda: host.alive)
        target = self._hosts.get(there)
        listener = target.listeners.get(address.port) if target is not None else None
        if target is None or listener is None or (there, address.port) in self._refusing:
            await self._travel(there, host.name)
            self.note("refuse", host.name, str(address))
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{address} refused the connection")
        channel = self._make_channel(host, target, address)
        self.loop.call_soon(listener.accept, channel.inward.source)
        try:
            await self._travel(there, host.name)
            await self._until(lambda: host.alive and host.running)
        except BaseException:
            channel.abort()
            raise
        return channel

    def _make_channel(self, host: Host, target: Host, address: Address) -> MemoryChannel:
        local = Address(host.name, self.free_port(host.name, _FIRST_DIAL_PORT))
        near = MemoryChannel(self, host, local, address)
        far = MemoryChannel(self, target, address, local)
        near.outward = far.inward = Pipe(self, near, far)
        near.inward = far.outward = Pipe(self, far, near)
        self.keep(near.outward)
        self.keep(near.inward)
        self.note("connect", near.outward.label)
        return near

    async def _travel(self, source: str, target: str) -> None:
        """One packet of a handshake, repeated while it is lost."""
        await asyncio.sleep(self.travel_s(source, target))
        await self._until(lambda: self.passes(source, target))

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for commands that make the condition true."""
        while not condition():
            future: asyncio.Future[None] = self.loop.create_future()
            self._watchers.append(future)
            await future

    def _wake(self) -> None:
        watchers, self._watchers = self._watchers, []
        for future in watchers:
            if not future.done():
                future.set_result(None)

    def free_port(self, host: str, first: int) -> int:
        """A port that nothing has listened at, not in this host's earlier lives either."""
        ports = self._ports.setdefault((host, first), itertools.count(first))
        listening = self._hosts[host].listeners
        return next(port for port in ports if port not in listening)

    def keep(self, pipe: Pipe) -> None:
        """Something may come of this pipe."""
        self._pipes[pipe] = None

    def drop_idle(self, pipe: Pipe) -> None:
        """Nothing may come of this pipe any more, if it is idle."""
        if pipe.idle:
            self._pipes.pop(pipe, None)

    def travel_s(self, source: str, target: str) -> float:
        """How long what is sent now is on the wire."""
        return self.weather.delay_s(source, target) + self._delays_s.get((source, target), 0.0)

    def passes(self, source: str, target: str) -> bool:
        """Whether what ``source`` sent reaches a kernel at ``target``."""
        return (source, target) not in self._cuts and self.answers(target)

    def answers(self, host: str) -> bool:
        """Whether the host has a kernel that sends and repeats; an unknown one's refuses."""
        return host not in self._hosts or self._hosts[host].reachable

    def is_clogged(self, source: str, target: str) -> bool:
        """Whether the path takes nothing."""
        return (source, target) in self._clogs

    def burn(self, path: tuple[str, str], count: int) -> None:
        """So many bytes went on their way: a fuse on the path is so much shorter."""
        if path in self._fuses:
            self._fuses[path] -= count
            if self._fuses[path] <= 0:
                del self._fuses[path]
                self.loop.call_soon(self.reset, path)

    def note(self, event: str, *facts: str | int | float) -> None:
        """Add an event to the trace."""
        if self.trace is not None:
            self.trace.append((self.loop.time(), event, *facts))

    def describe(self) -> str:
        """Faults in force and pipes that hold bytes, for a report of a stand-still."""
        lines = [f"cut {source} to {target}" for source, target in sorted(self._cuts)]
        lines += [f"clogged {source} to {target}" for source, target in sorted(self._clogs)]
        lines += [f"host {host.name} is dead" for host in self._hosts.values() if not host.alive]
        lines += [f"host {h.name} is stalled" for h in self._hosts.values() if not h.running]
        lines += [str(pipe) for pipe in self._pipes if pipe.busy]
        return "\n".join(f"  {line}" for line in lines)

    # Faults

    def cut(self, source: str, target: str, *, both: bool = True) -> None:
        """Bytes from ``source`` to ``target`` (and back) get lost until ``heal``."""
        self._cuts.update(_paths(source, target, both))
        self.note("cut", source, target, "both" if both else "one way")

    def heal(self, source: str, target: str, *, both: bool = True) -> None:
        """Undo ``cut``; what TCP would repeat arrives now."""
        self._cuts.difference_update(_paths(source, target, both))
        self.note("heal", source, target, "both" if both else "one way")
        self._kick({source, target})

    def clog(self, source: str, target: str, *, both: bool = False) -> None:
        """The path takes nothing more until ``unclog``; what it took arrives. Senders back up."""
        self._clogs.update(_paths(source, target, both))
        self.note("clog", source, target, "both" if both else "one way")

    def unclog(self, source: str, target: str) -> None:
        """Undo ``clog``, both ways."""
        self._clogs.difference_update(_paths(source, target, both=True))
        self.note("unclog", source, target)
        self._kick({source, target})

    def slow(self, host: str, pause_s: float, most_bytes: int = 0) -> None:
        """The host reads at most so much at once, and again after a pause; (host, 0) undoes it."""
        reader = self._hosts[host]
        reader.read_pause_s, reader.read_bytes = pause_s, most_bytes
        self.note("slow", host, pause_s, most_bytes)

    def delay(self, source: str, target: str, delay_s: float, *, both: bool = True) -> None:
        """What is sent from now on takes ``delay_s`` longer; 0 undoes it."""
        for path in _paths(source, target, both):
            self._delays_s[path] = delay_s
        self.note("delay", source, target, delay_s)

    def reset(self, what: MemoryChannel | tuple[str, str]) -> None:
        """Something on the path resets one channel, or all between two hosts: both ends see it."""
        found = [what] if isinstance(what, MemoryChannel) else self.channels(*what)
        for channel in found:
            self.note("break", channel.outward.label)
            channel.outward.break_off()
            channel.inward.break_off()

    def fuse(self, source: str, target: str, after_bytes: int) -> None:
        """Reset all between two hosts when so many more bytes went from one to the other."""
        self._fuses[source, target] = after_bytes
        self.note("fuse", source, target, after_bytes)

    def crash(self, host: str, how: Death = "reset") -> None:
        """The host dies: no callback into it any more, its listeners are gone, peers see ``how``.

        Later dials to it are refused, after "silence" they time out.
        """
        dead = self._hosts[host]
        self.note("crash", host, how)
        dead.alive = False
        dead.reachable = how != "silence"
        dead.listeners.clear()
        dead.parked.clear()
        mark = {"reset": Mark.RESET, "eof": Mark.END, "silence": None}[how]
        for channel in self.channels(host):
            channel.die(mark)

    def stall(self, host: str) -> None:
        """No callback into the host until ``resume``, as by SIGSTOP: its pipes fill up."""
        self._hosts[host].running = False
        self.note("stall", host)

    def resume(self, host: str) -> None:
        """Undo ``stall``."""
        resumed = self._hosts[host]
        resumed.running = True
        self.note("resume", host)
        parked, resumed.parked = resumed.parked, []
        for accept in parked:
            self.loop.call_soon(accept)
        self._kick({host})

    def refuse(self, host: str, port: int, *, refused: bool = True) -> None:
        """Dials to that port are refused though something may listen; False undoes it."""
        (self._refusing.add if refused else self._refusing.discard)((host, port))
        self.note("refuse port" if refused else "accept port", host, port)

    def lift(self) -> None:
        """Undo every fault but crashes: cuts, clogs, delays, stalls, slow readers, refusals."""
        self._cuts.clear()
        self._clogs.clear()
        self._delays_s.clear()
        self._fuses.clear()
        self._refusing.clear()
        for host in self._hosts.values():
            host.read_pause_s, host.read_bytes = 0.0, 0
            if not host.running:
                self.resume(host.name)
        self._kick(set(self._hosts))

    def _kick(self, hosts: set[str]) -> None:
        for pipe in list(self._pipes):
            if not hosts.isdisjoint(pipe.path):
                pipe.kick()
        self._wake()


def _paths(source: str, target: str, both: bool) -> list[tuple[str, str]]:
    return [(source, target), (target, source)] if both else [(source, target)]
