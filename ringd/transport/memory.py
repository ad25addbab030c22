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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Literal, Protocol

from ringd.errors import AddressInUseError
from ringd.transport.base import Address, Buffer, Channel, Receiver

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


class _Mark(Enum):
    """What ends a pipe, in order behind its bytes."""

    END = "end of stream"
    RESET = "reset"


class _State(Enum):
    """Where a channel stands, as its own side knows."""

    OPEN = "open"
    FLUSHING = "closed, its backlog is not taken yet"
    CLOSED = "closed, all is taken"
    OVER = "ended, aborted or crashed"


@dataclass(eq=False, slots=True)
class _Host:
    """One life of a host; after a crash, the next life is another object."""

    name: str
    alive: bool = True
    running: bool = True
    reachable: bool = True
    """Whether a kernel answers for it, be it with a reset."""
    listeners: dict[int, MemoryListener] = field(default_factory=dict)
    parked: list[Callable[[], None]] = field(default_factory=list)
    """Accepts that wait for a stalled host to go on."""


class _Pipe:
    """One direction of a channel, from what ``source`` hands over to what ``target`` reads."""

    def __init__(
        self, network: MemoryNetwork, source: MemoryChannel, target: MemoryChannel
    ) -> None:
        self.source = source
        self.target = target
        self.label = f"{source.local}>{target.local}"
        self.path = (source.host.name, target.host.name)
        self._network = network
        self._loop = network.loop
        self._size_bytes = network.pipe_bytes
        self._held_bytes = 0  # on the wire, in the inbox, or read and not yet given back
        self._read_bytes = 0  # of these, read and not yet given back
        self._wire: deque[tuple[float, bytes | _Mark]] = deque()
        self._inbox: deque[memoryview] = deque()
        self._inbox_bytes = 0
        self._last_arrival = 0.0
        self._arrival: asyncio.Handle | None = None
        self._delivery: asyncio.Handle | None = None
        self._sent_mark: _Mark | None = None
        self._came_mark: _Mark | None = None

    @property
    def room_bytes(self) -> int:
        """How much it takes now."""
        return self._size_bytes - self._held_bytes

    @property
    def busy(self) -> bool:
        """Something waits in it or before it."""
        return self._held_bytes > 0 or self.source.backlog_bytes > 0

    @property
    def idle(self) -> bool:
        """Nothing can come of it unless something new is put in."""
        return not self._wire and self.target.state is not _State.OPEN

    def put(self, item: bytes | _Mark) -> None:
        """Send bytes, or the mark behind the last of them, on their way."""
        if self._sent_mark is _Mark.RESET or self._sent_mark is item:
            return
        if isinstance(item, bytes):
            self._held_bytes += len(item)
            self._network.note("take", self.label, len(item))
        else:
            self._sent_mark = item
        self._network.keep(self)
        # In order, whatever the delays: nothing overtakes what went before.
        delay_s = self._network.travel_s(*self.path)
        self._last_arrival = max(self._last_arrival, self._loop.time() + delay_s)
        self._wire.append((self._last_arrival, item))
        if self._arrival is None:
            self._arrival = self._loop.call_at(self._wire[0][0], self._arrive)

    def _arrive(self) -> None:
        self._arrival = None
        if not self._network.passes(*self.path):
            if self._sent_mark is _Mark.RESET or not self._network.answers(self.path[0]):
                self._lose()
            return  # what is repeated after a loss arrives when the path passes it again
        now = self._loop.time()
        while self._wire and self._wire[0][0] <= now:
            self._land(self._wire.popleft()[1])
        if self._wire:
            self._arrival = self._loop.call_at(self._wire[0][0], self._arrive)
        self._network.drop_idle(self)

    def _lose(self) -> None:
        """What was on the wire met a cut, and nobody is left who would repeat it."""
        self._network.note("lost", self.label)
        self._wire.clear()
        self._sent_mark = None
        self._network.drop_idle(self)

    def _land(self, item: bytes | _Mark) -> None:
        target = self.target
        if target.state is _State.OPEN:
            self._land_open(item)
        elif isinstance(item, bytes):
            if target.state is _State.OVER:
                target.outward.put(_Mark.RESET)
            else:  # it closed, and does not want them
                self._give_back(len(item))
        elif item is _Mark.RESET:
            target.forget()

    def _land_open(self, item: bytes | _Mark) -> None:
        if self._came_mark is _Mark.RESET:
            return
        if isinstance(item, bytes):
            self._inbox.append(memoryview(item))
            self._inbox_bytes += len(item)
        else:
            self._came_mark = item  # what came before it can still be read, as on Linux
        self.deliver_soon()

    def deliver_soon(self) -> None:
        """Tell the receiver, from the loop, of what there is."""
        if self._delivery is None:
            self._delivery = self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        """One callback into the target's host: some bytes, or the end behind the last."""
        self._delivery = None
        target = self.target
        receiver = target.receiver
        if target.state is not _State.OPEN or receiver is None or not target.host.running:
            return
        if self._inbox_bytes:
            self._fill(receiver)
        elif self._came_mark is not None:
            target.end(self._came_mark is _Mark.RESET)

    def _fill(self, receiver: Receiver) -> None:
        chopped = self._network.weather.chop(self._inbox_bytes)
        if not 1 <= chopped <= self._inbox_bytes:
            raise ValueError(f"the weather chopped {chopped} of {self._inbox_bytes} bytes")
        views = [_bytes_view(view) for view in receiver.next_buffers()]
        if not views or not all(views):
            raise ValueError("next_buffers gave no view, or one of zero length")
        count = min(chopped, sum(map(len, views)))
        _copy(_take(self._inbox, count), views)
        self._inbox_bytes -= count
        self.target.received_bytes += count
        self._network.note("deliver", self.label, count)
        self._give_back(count)
        if self._inbox_bytes or self._came_mark is not None:
            self.deliver_soon()
        receiver.received(count)

    def _give_back(self, count: int) -> None:
        self._read_bytes += count
        self._acknowledge()

    def _acknowledge(self) -> None:
        network, (there, back) = self._network, self.path
        if self._read_bytes and network.answers(back) and network.passes(back, there):
            self._held_bytes -= self._read_bytes
            self._read_bytes = 0
            self.source.push_soon()

    def discard(self) -> None:
        """The target reads no more: what has arrived is dropped."""
        self._give_back(self._inbox_bytes)
        self._inbox.clear()
        self._inbox_bytes = 0
        self._network.drop_idle(self)

    def break_off(self) -> None:
        """A reset comes from the middle of the path, at once."""
        self._wire.clear()
        self._sent_mark = _Mark.RESET
        self._land(_Mark.RESET)

    def kick(self) -> None:
        """After a fault is lifted: let go on what can."""
        self._acknowledge()
        if self._wire and self._arrival is None:
            self._arrival = self._loop.call_soon(self._arrive)
        self.deliver_soon()
        self.source.push_soon()

    def __str__(self) -> str:
        wire_bytes = self._held_bytes - self._read_bytes - self._inbox_bytes
        return (
            f"{self.label}: backlog {self.source.backlog_bytes}, wire {wire_bytes}, "
            f"inbox {self._inbox_bytes} bytes"
        )


class MemoryChannel:
    """One end of a channel; made by dialling.

    Attributes:
        sent_bytes: bytes that the pipe has taken from this end.
        received_bytes: bytes that this end's receivers were told of.
    """

    def __init__(self, network: MemoryNetwork, host: _Host, local: Address, peer: Address) -> None:
        self.local = local
        self.peer = peer
        self.backlog_bytes = 0
        self.sent_bytes = 0
        self.received_bytes = 0
        self.host = host
        self.state = _State.OPEN
        self.receiver: Receiver | None = None
        self.outward: _Pipe
        self.inward: _Pipe
        self._network = network
        self._backlog: deque[memoryview] = deque()
        self._pushing: asyncio.Handle | None = None

    def attach(self, receiver: Receiver) -> None:
        """Start to feed ``receiver``, or hand the channel over to it."""
        if self.state is _State.OPEN:
            self.receiver = receiver
            self.inward.deliver_soon()

    def send(self, buffers: Sequence[Buffer], size_bytes: int) -> None:
        """Let the pipe take what fits; keep views of the rest, so that early reuse shows."""
        views = [_bytes_view(buffer) for buffer in buffers]
        if sum(map(len, views)) != size_bytes:
            raise ValueError(f"the buffers do not have the {size_bytes} bytes that were announced")
        if self.state is not _State.OPEN:
            return
        waiting = self.backlog_bytes > 0
        self._backlog.extend(view for view in views if view)
        self.backlog_bytes += size_bytes
        if not waiting:
            self._push()

    def own_backlog(self) -> None:
        """Copy what is queued, so that the caller may reuse its memory."""
        if self._backlog:
            self._backlog = deque([memoryview(b"".join(self._backlog))])

    def push_soon(self) -> None:
        """The pipe has room again."""
        flushing = self.state is _State.FLUSHING
        if self._pushing is None and (self.backlog_bytes or flushing):
            self._pushing = self._network.loop.call_soon(self._push_on)

    def _push_on(self) -> None:
        self._pushing = None
        waiting = self.backlog_bytes > 0
        self._push()
        drained = waiting and not self.backlog_bytes
        if drained and self.state is _State.OPEN and self.receiver is not None:
            self._network.note("drained", self.outward.label)
            self.receiver.drained()

    def _push(self) -> None:
        if not self.host.running:
            return
        count = min(self.outward.room_bytes, self.backlog_bytes)
        if count:
            self.backlog_bytes -= count
            self.sent_bytes += count
            self.outward.put(b"".join(_take(self._backlog, count)))
        if self.state is _State.FLUSHING and not self.backlog_bytes:
            self.state = _State.CLOSED
            self.outward.put(_Mark.END)

    def close(self) -> None:
        """Flush, then end; what still comes in is thrown away."""
        if self.state is _State.OPEN:
            self._network.note("close", self.outward.label)
            self.state = _State.FLUSHING
            self.receiver = None
            self.inward.discard()
            self._push()

    def abort(self) -> None:
        """End at once; the peer gets a ConnectionResetError."""
        if self.state is not _State.OVER:
            self._network.note("abort", self.outward.label)
            self.die(_Mark.RESET)

    def die(self, mark: _Mark | None) -> None:
        """Over, without a word to our own side; ``mark`` is what the peer is told."""
        self.forget()
        if mark is not None:
            self.outward.put(mark)

    def end(self, reset: bool) -> None:
        """Over, as the peer or the network wanted; tells the receiver."""
        receiver = self.receiver
        self._network.note("reset" if reset else "end", self.inward.label)
        self.forget()
        assert receiver is not None
        text = f"connection {self.local} to {self.peer} was reset by the peer"
        receiver.ended(ConnectionResetError(errno.ECONNRESET, text) if reset else None)

    def forget(self) -> None:
        """Over: let go of the receiver and of all memory."""
        self.state = _State.OVER
        self.receiver = None
        self._backlog.clear()
        self.backlog_bytes = 0
        self.inward.discard()


class MemoryListener:
    """Accepts channels at one port of one host."""

    def __init__(self, host: _Host, port: int, on_channel: Callable[[Channel], None]) -> None:
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
        self._hosts: dict[str, _Host] = {}
        self._pipes: dict[_Pipe, None] = {}
        self._ports: dict[tuple[str, int], Iterator[int]] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._delays_s: dict[tuple[str, str], float] = {}
        self._refusing: set[tuple[str, int]] = set()
        self._watchers: list[asyncio.Future[None]] = []

    # Hosts and channels

    def start(self, name: str) -> _Host:
        """The host of that name: as it lives, or begins its first or next life."""
        host = self._hosts.get(name)
        if host is None or not host.alive:
            host = self._hosts[name] = _Host(name)
            self.note("start", name)
            self._kick({name})
        return host

    def channels(self, host: str, peer: str | None = None) -> list[MemoryChannel]:
        """The living channel ends at ``host`` (with their other end at ``peer``)."""
        ends = {end: None for pipe in self._pipes for end in (pipe.source, pipe.target)}
        return [
            end
            for end in ends
            if end.state is not _State.OVER
            and end.local.host == host
            and peer in (None, end.peer.host)
        ]

    async def connect(self, host: _Host, address: Address) -> MemoryChannel:
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

    def _make_channel(self, host: _Host, target: _Host, address: Address) -> MemoryChannel:
        local = Address(host.name, self.free_port(host.name, _FIRST_DIAL_PORT))
        near = MemoryChannel(self, host, local, address)
        far = MemoryChannel(self, target, address, local)
        near.outward = far.inward = _Pipe(self, near, far)
        near.inward = far.outward = _Pipe(self, far, near)
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

    def keep(self, pipe: _Pipe) -> None:
        """Something may come of this pipe."""
        self._pipes[pipe] = None

    def drop_idle(self, pipe: _Pipe) -> None:
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

    def note(self, event: str, *facts: str | int | float) -> None:
        """Add an event to the trace."""
        if self.trace is not None:
            self.trace.append((self.loop.time(), event, *facts))

    def describe(self) -> str:
        """Faults in force and pipes that hold bytes, for a report of a stand-still."""
        lines = [f"cut {source} to {target}" for source, target in sorted(self._cuts)]
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
        mark = {"reset": _Mark.RESET, "eof": _Mark.END, "silence": None}[how]
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

    def _kick(self, hosts: set[str]) -> None:
        for pipe in list(self._pipes):
            if not hosts.isdisjoint(pipe.path):
                pipe.kick()
        self._wake()


def _paths(source: str, target: str, both: bool) -> list[tuple[str, str]]:
    return [(source, target), (target, source)] if both else [(source, target)]


def _bytes_view(buffer: Buffer) -> memoryview:
    view = memoryview(buffer)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _take(queue: deque[memoryview], count: int) -> list[memoryview]:
    """Remove the first ``count`` bytes from a queue of views."""
    taken = []
    while count:
        view = queue.popleft()
        if len(view) > count:
            queue.appendleft(view[count:])
            view = view[:count]
        taken.append(view)
        count -= len(view)
    return taken


def _copy(pieces: Sequence[memoryview], views: Sequence[memoryview]) -> None:
    """Fill ``views`` in order from ``pieces``, which hold no more than they."""
    targets = iter(views)
    target = next(targets)
    for piece in pieces:
        while piece:
            if not target:
                target = next(targets)
            count = min(len(piece), len(target))
            target[:count] = piece[:count]
            piece, target = piece[count:], target[count:]
