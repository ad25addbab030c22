"""The pieces of the in-memory transport: hosts, pipes, channels; see ``memory``."""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from ringd.transport.base import Address, Buffer, Receiver

if TYPE_CHECKING:
    from ringd.transport.memory import MemoryListener, MemoryNetwork


class Mark(Enum):
    """What ends a pipe, in order behind its bytes."""

    END = "end of stream"
    RESET = "reset"


class State(Enum):
    """Where a channel stands, as its own side knows."""

    OPEN = "open"
    FLUSHING = "closed, its backlog is not taken yet"
    CLOSED = "closed, all is taken"
    OVER = "ended, aborted or crashed"


@dataclass(eq=False, slots=True)
class Host:
    """One life of a host; after a crash, the next life is another object."""

    name: str
    alive: bool = True
    running: bool = True
    reachable: bool = True
    """Whether a kernel answers for it, be it with a reset."""
    read_pause_s: float = 0.0
    """A slow reader: how long it takes until it reads again,"""
    read_bytes: int = 0
    """and at most how much at once; 0 is all."""
    listeners: dict[int, MemoryListener] = field(default_factory=dict)
    parked: list[Callable[[], None]] = field(default_factory=list)
    """Accepts that wait for a stalled host to go on."""


class Pipe:
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
        self._wire: deque[tuple[float, bytes | Mark]] = deque()
        self._inbox: deque[memoryview] = deque()
        self._inbox_bytes = 0
        self._last_arrival = 0.0
        self._arrival: asyncio.Handle | None = None
        self._delivery: asyncio.Handle | None = None
        self._sent_mark: Mark | None = None
        self._came_mark: Mark | None = None

    @property
    def room_bytes(self) -> int:
        """How much it takes now."""
        clogged = self._network.is_clogged(*self.path)
        return 0 if clogged else self._size_bytes - self._held_bytes

    @property
    def busy(self) -> bool:
        """Something waits in it or before it."""
        return self._held_bytes > 0 or self.source.backlog_bytes > 0

    @property
    def idle(self) -> bool:
        """Nothing can come of it unless something new is put in."""
        return not self._wire and self.target.state is not State.OPEN

    def put(self, item: bytes | Mark) -> None:
        """Send bytes, or the mark behind the last of them, on their way."""
        if self._sent_mark is Mark.RESET or self._sent_mark is item:
            return
        if isinstance(item, bytes):
            self._held_bytes += len(item)
            self._network.note("take", self.label, len(item))
            self._network.burn(self.path, len(item))
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
            if self._sent_mark is Mark.RESET or not self._network.answers(self.path[0]):
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

    def _land(self, item: bytes | Mark) -> None:
        target = self.target
        if target.state is State.OPEN:
            self._land_open(item)
        elif isinstance(item, bytes):
            if target.state is State.OVER:
                target.outward.put(Mark.RESET)
            else:  # it closed, and does not want them
                self._give_back(len(item))
        elif item is Mark.RESET:
            target.forget()

    def _land_open(self, item: bytes | Mark) -> None:
        if self._came_mark is Mark.RESET:
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
            pause_s = self.target.host.read_pause_s
            if pause_s:
                self._delivery = self._loop.call_later(pause_s, self._deliver)
            else:
                self._delivery = self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        """One callback into the target's host: some bytes, or the end behind the last."""
        self._delivery = None
        target = self.target
        receiver = target.receiver
        if target.state is not State.OPEN or receiver is None or not target.host.running:
            return
        if self._inbox_bytes:
            self._fill(receiver)
        elif self._came_mark is not None:
            target.end(self._came_mark is Mark.RESET)

    def _fill(self, receiver: Receiver) -> None:
        chopped = self._network.weather.chop(self._inbox_bytes)
        if not 1 <= chopped <= self._inbox_bytes:
            raise ValueError(f"the weather chopped {chopped} of {self._inbox_bytes} bytes")
        views = [_bytes_view(view) for view in receiver.next_buffers()]
        if not views or not all(views):
            raise ValueError("next_buffers gave no view, or one of zero length")
        most = self.target.host.read_bytes or chopped
        count = min(chopped, most, sum(map(len, views)))
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
        self._sent_mark = Mark.RESET
        self._land(Mark.RESET)

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

    def __init__(self, network: MemoryNetwork, host: Host, local: Address, peer: Address) -> None:
        self.local = local
        self.peer = peer
        self.backlog_bytes = 0
        self.sent_bytes = 0
        self.received_bytes = 0
        self.host = host
        self.state = State.OPEN
        self.receiver: Receiver | None = None
        self.outward: Pipe
        self.inward: Pipe
        self._network = network
        self._backlog: deque[memoryview] = deque()
        self._pushing: asyncio.Handle | None = None

    def attach(self, receiver: Receiver) -> None:
        """Start to feed ``receiver``, or hand the channel over to it."""
        if self.state is State.OPEN:
            self.receiver = receiver
            self.inward.deliver_soon()

    def send(self, buffers: Sequence[Buffer], size_bytes: int) -> None:
        """Let the pipe take what fits; keep views of the rest, so that early reuse shows."""
        views = [_bytes_view(buffer) for buffer in buffers]
        if sum(map(len, views)) != size_bytes:
            raise ValueError(f"the buffers do not have the {size_bytes} bytes that were announced")
        if self.state is not State.OPEN:
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
        flushing = self.state is State.FLUSHING
        if self._pushing is None and (self.backlog_bytes or flushing):
            self._pushing = self._network.loop.call_soon(self._push_on)

    def _push_on(self) -> None:
        self._pushing = None
        waiting = self.backlog_bytes > 0
        self._push()
        drained = waiting and not self.backlog_bytes
        if drained and self.state is State.OPEN and self.receiver is not None:
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
        if self.state is State.FLUSHING and not self.backlog_bytes:
            self.state = State.CLOSED
            self.outward.put(Mark.END)

    def close(self) -> None:
        """Flush, then end; what still comes in is thrown away."""
        if self.state is State.OPEN:
            self._network.note("close", self.outward.label)
            self.state = State.FLUSHING
            self.receiver = None
            self.inward.discard()
            self._push()

    def abort(self) -> None:
        """End at once; the peer gets a ConnectionResetError."""
        if self.state is not State.OVER:
            self._network.note("abort", self.outward.label)
            self.die(Mark.RESET)

    def die(self, mark: Mark | None) -> None:
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
        self.state = State.OVER
        self.receiver = None
        self._backlog.clear()
        self.backlog_bytes = 0
        self.inward.discard()


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
