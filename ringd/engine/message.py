"""One message at either end: the send, the receive, what came and waits, and where it lands.

Small messages travel whole. A larger one is offered and travels in segments by turns with all that
shares the link, straight from the sender's region into the receiver's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ringd.engine.mail_frames import MESSAGE, PART
from ringd.engine.times import NO_TIMES
from ringd.errors import RingdError
from ringd.vocabulary import ANY_SOURCE, OpSpec
from ringd.wire.frame import FrameError

if TYPE_CHECKING:
    from ringd.engine.link import Link
    from ringd.engine.mail_box import Mailbox

OnDone = Callable[[RingdError | None, int | None], None]
_BIN = memoryview(bytearray(64 * 1024))
_NOTHING = memoryview(b"")


class Post:
    """A send or a receive in flight.

    The region is the daemon's until ``on_done``, which is called exactly once, with None or the
    error, and for a receive that succeeded the sender's group rank. After it nothing here reads or
    writes the region.

    Attributes:
        peer: the other side as a rank of the world; ANY_SOURCE: a receive from any.
        link: what its segments travel on, once they do.
        withdrawn: it failed and waits for the verdict; nothing of it moves.
    """

    __slots__ = (
        "box",
        "deadline",
        "link",
        "live",
        "mem",
        "on_done",
        "peer",
        "size_bytes",
        "spec",
        "started",
        "tag",
        "times",
        "withdrawn",
    )

    def __init__(
        self, box: Mailbox, spec: OpSpec, peer: int, tag: int, mem: memoryview, on_done: OnDone
    ) -> None:
        self.box = box
        self.spec = spec
        self.peer = peer
        self.tag = tag
        self.mem = mem
        self.size_bytes = len(mem)
        self.on_done = on_done
        self.live = True
        self.withdrawn = False
        self.link: Link | None = None
        self.times = NO_TIMES
        self.started = self.deadline = 0.0

    @property
    def peers(self) -> list[int]:
        """Who may be the other side."""
        if self.peer != ANY_SOURCE:
            return [self.peer]
        return [rank for rank in self.box.group.ranks if rank != self.box.rank]

    @property
    def at(self) -> tuple[int, int]:
        """The other side, as far as it is known, and the message's number there; or -1."""
        raise NotImplementedError

    @property
    def bytes_done(self) -> int:
        """Bytes that are through: acknowledged of a send, here of a receive."""
        raise NotImplementedError

    def is_too_quiet(self, tick_s: float) -> bool:
        """Whether a peer that owes bytes was silent for too long; asked once a tick."""
        return False

    def withdraw(self) -> None:
        """It failed: the region is out of bounds from now on."""
        self.withdrawn = True
        if self.link is not None:
            self.link.release(self)
        self.link = None
        self.mem = _NOTHING

    def close(self, *, failed: bool) -> None:
        """It is over: the region is out of bounds from now on."""
        self.live = False
        if failed:
            self.withdraw()
        self.link = None
        self.mem = _NOTHING

    def facts(self) -> dict[str, Any]:
        """What it is and how far, as an error's fields or for a status."""
        peer = None if self.peer == ANY_SOURCE else self.peer
        return {
            "op": self.spec.collective,
            "group": self.spec.group,
            "epoch": self.box.epoch,
            "rank": self.box.rank,
            "peer": peer,
            "tag": self.tag,
            "waiting_on": self.peers,
            "bytes_done": self.bytes_done,
            "bytes_total": self.size_bytes,
        }


class Send(Post):
    """A message of ours; for the link also the flow of its segments (see ``Link.enqueue``).

    Attributes:
        number: its place among our messages to this peer in this group; -1: it has none yet.
        taken: the peer has a place for it.
    """

    __slots__ = ("acked", "held", "kind", "n_sends", "number", "queued", "send_i", "taken")

    def __init__(
        self, box: Mailbox, spec: OpSpec, peer: int, tag: int, mem: memoryview, on_done: OnDone
    ) -> None:
        super().__init__(box, spec, peer, tag, mem, on_done)
        self.number = -1
        self.taken = self.queued = self.held = False
        self.kind = MESSAGE
        self.n_sends = -(-self.size_bytes // box.segment_bytes)
        self.send_i = self.acked = 0

    @property
    def op(self) -> Send:
        return self

    @property
    def at(self) -> tuple[int, int]:
        return self.peer, self.number

    @property
    def stream(self) -> int:
        return self.box.group.stream

    @property
    def bytes_done(self) -> int:
        return min(self.acked * self.box.segment_bytes, self.size_bytes)

    def send_whole(self, link: Link, header: list[Any]) -> None:
        """Send a copy of all of it in one frame."""
        link.send_data(self, header, self.mem, hold=False)

    def begin(self, link: Link) -> None:
        """The peer took it: its segments may go."""
        self.taken = self.held = True
        self.kind = PART
        self.link = link
        link.enqueue(self)

    def can_send(self) -> bool:
        """There is a segment to send."""
        return self.live and not self.withdrawn and self.send_i < self.n_sends

    def send_next(self, flow: Send) -> None:
        """Send the next segment; its memory stays in use until it is acknowledged."""
        index = self.send_i
        self.send_i = index + 1
        start = index * self.box.segment_bytes
        assert self.link is not None
        self.link.send_data(
            self,
            [self.box.epoch, self.number, index],
            self.mem[start : start + self.box.segment_bytes],
            hold=True,
        )

    def released(self) -> None:
        """The peer acknowledged a segment."""
        self.acked += 1
        if self.acked == self.n_sends and self.live and not self.withdrawn:
            self.box.finish(self)


class Recv(Post):
    """A receive of ours.

    Attributes:
        order: its place among this rank's receives in the group.
        waits: for a message that fits.
        source: whose message it took, -1 before; ``number``: that message's.
        quiet_s: for how long nothing of it came.
    """

    __slots__ = ("_done", "_part", "_seen", "number", "order", "quiet_s", "source", "waits")

    def __init__(
        self, box: Mailbox, spec: OpSpec, peer: int, tag: int, mem: memoryview, on_done: OnDone
    ) -> None:
        super().__init__(box, spec, peer, tag, mem, on_done)
        self.order = self.source = self.number = -1
        self._part = self._done = self._seen = 0
        self.waits = False
        self.quiet_s = 0.0

    @property
    def peers(self) -> list[int]:
        return [self.source] if self.source >= 0 else super().peers

    @property
    def at(self) -> tuple[int, int]:
        return self.source, self.number

    @property
    def bytes_done(self) -> int:
        return self._done

    @property
    def untouched(self) -> bool:
        """Nothing of the message that it took has come."""
        return not self._part

    def put_back(self) -> None:
        """The message that it took was given up: it takes another."""
        self.source = self.number = -1
        self.link = None
        self.quiet_s = 0.0

    def fill(self, payload: memoryview | bytes) -> None:
        """All of the message at once."""
        if len(payload):
            self.mem[:] = payload
        self._done = self.size_bytes

    def take_part(self, index: int, size_bytes: int, inline: memoryview | None) -> Landing | None:
        """A segment came: copy it, or say where its bytes go.

        Raises:
            FrameError: it is not the next one, or of another size.
        """
        start = self._part * self.box.segment_bytes
        expected_bytes = min(self.box.segment_bytes, self.size_bytes - start)
        if index != self._part or size_bytes != expected_bytes or not size_bytes:
            raise FrameError(
                f"segment {index} of {size_bytes} bytes of a message where segment {self._part} "
                f"of {expected_bytes} was due"
            )
        self._part += 1
        target = self.mem[start : start + size_bytes]
        if inline is None:
            return Landing(self, target)
        target[:] = inline
        self.came(size_bytes)
        self.landed()
        return None

    def came(self, count: int) -> None:
        """So many bytes more are in their place."""
        self._done += count

    def landed(self) -> None:
        """A segment is complete."""
        if self._done == self.size_bytes:
            self.box.finish(self)

    def is_too_quiet(self, tick_s: float) -> bool:
        limit_s = self.times.recv_timeout_s
        if self.source < 0 or not limit_s:
            return False
        if self._done != self._seen:
            self._seen = self._done
            self.quiet_s = 0.0
            return False
        self.quiet_s += tick_s
        return self.quiet_s >= limit_s


class Arrival:
    """A message, or the offer of one, that waits for a receive.

    Attributes:
        order: its place among all that came for the group, while it waits.
        data: a copy of the payload; None: it is an offer.
    """

    __slots__ = ("data", "number", "order", "source", "spec", "tag")

    def __init__(self, source: int, number: int, tag: int, spec: OpSpec) -> None:
        self.source = source
        self.number = number
        self.tag = tag
        self.spec = spec
        self.order = -1
        self.data: bytes | None = None


class Landing:
    """A segment on its way into the region of a receive; the rest of an abandoned one is lost."""

    __slots__ = ("_at", "_target", "op")

    def __init__(self, recv: Recv, target: memoryview) -> None:
        self.op: Recv | None = recv
        self._target = target
        self._at = 0

    def room(self, remaining_bytes: int) -> memoryview:
        if self.op is None:
            return _BIN[: min(remaining_bytes, len(_BIN))]
        return self._target[self._at :]

    def filled(self, count: int) -> None:
        if self.op is not None:
            self._at += count
            self.op.came(count)

    def complete(self) -> None:
        """All of it is there."""
        if self.op is not None:
            self.op.landed()

    def abandon(self) -> None:
        """The receive is over: its memory is out of bounds from now on."""
        self.op = None
        self._target = _NOTHING


class WholeLanding:
    """A message that travels whole and is too large to be handed over inline."""

    __slots__ = ("_at", "_buffer", "_then", "op")

    def __init__(self, size_bytes: int, then: Callable[[memoryview], None]) -> None:
        self.op = None
        self._buffer = memoryview(bytearray(size_bytes))
        self._then = then
        self._at = 0

    def room(self, remaining_bytes: int) -> memoryview:
        return self._buffer[self._at :]

    def filled(self, count: int) -> None:
        self._at += count

    def complete(self) -> None:
        """All of it is there."""
        self._then(self._buffer)

    def abandon(self) -> None:
        """It belongs to no receive yet."""
