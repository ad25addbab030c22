"""One peer's connection: numbered frames, cumulative acks, and fair turns for operations.

Memory of a held frame belongs to its operation until the peer acknowledged it; smaller frames
are copied. Operations that share a link take turns segment by segment, and none is sent a
payload that its peer has not asked for, so one that waits never blocks another.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgpack import Packer

from ringd.engine.run_ahead import Budget, RunAhead, allowance_bytes
from ringd.transport.connection import Connection
from ringd.wire.decoder import Sink
from ringd.wire.frame import (
    FLAG_ACK_NOW,
    MAGIC,
    PREAMBLE,
    VERSION,
    FrameError,
    Kind,
    encode,
)

if TYPE_CHECKING:
    from ringd.engine.engine import Engine

ACK_EVERY_FRAMES = 64
ACK_EVERY_BYTES = 4 * 1024 * 1024
LAST_FRAMES = 4
"""Between hosts an ack is asked for so many frames before the last one of a flow, too."""

_DATA, _CREDIT, _ACK = int(Kind.DATA), int(Kind.CREDIT), int(Kind.ACK)
_ENVELOPE, _ABORT, _GOODBYE = int(Kind.ENVELOPE), int(Kind.ABORT), int(Kind.GOODBYE)
_IDLE, _BUSY = int(Kind.IDLE), int(Kind.BUSY)
_PING, _PONG = int(Kind.PING), int(Kind.PONG)
_REST, _VOID = int(Kind.REST), int(Kind.VOID)
_UNNUMBERED = frozenset({_ACK, _REST, _VOID})
_FIRST_OF_MAIL, _LAST_OF_MAIL = int(Kind.MESSAGE), int(Kind.LEFT)


class Holder(Protocol):
    """Whose memory a held frame is."""

    def released(self) -> None:
        """The peer acknowledged one."""


class Turns(Protocol):
    """What sends segments by turns: a flow of a collective, or a message."""

    kind: int
    held: bool
    queued: bool
    send_i: int
    n_sends: int

    @property
    def stream(self) -> int: ...
    @property
    def op(self) -> Any:
        """The holder, which sends the next segment by its ``send_next``."""

    def can_send(self) -> bool:
        """The next segment may go."""


class Sent(NamedTuple):
    """A numbered frame that was not acknowledged.

    ``head`` is the frame without its last ``size_bytes``, the payload, if that is held memory of
    ``holder``'s; the whole frame if it is a copy. Both are empty once the holder failed.
    """

    number: int
    holder: Holder | None
    head: bytes
    payload: memoryview | None
    size_bytes: int


class Link:
    """The data connection to one peer.

    Attributes:
        peer: its rank.
        said_goodbye: the peer told that it leaves; its end of stream is no failure.
        number: names the link over all its connections, at both ends.
        up: it has a connection; while it has none, numbered frames are kept for the next one.
        up_since: when it came.
        far: the peer has another address than we: an ack takes a trip over the network.
        last_epoch: the latest in which something was sent.
        resumed: how often a new connection has taken over.
        users: the streams of the groups that have used it here.
    """

    def __init__(self, engine: Engine, peer: int, connection: Connection, number: bytes) -> None:
        self.engine = engine
        self.peer = peer
        self.connection = connection
        self.number = number
        self.up = True
        self.up_since = engine.now()
        self.far = connection.channel.local.host != connection.channel.peer.host
        self.resumed = 0
        self.last_epoch = 0
        self.said_goodbye = False
        self.sent_bytes = 0
        self.received_bytes = 0
        self._pack = Packer(autoreset=True).pack
        self._sent_no = 0
        self._acked_no = 0
        self._taken_no = 0  # last numbered frame that we took in whole
        self._told_no = 0  # last number that we acknowledged
        self._untold_bytes = 0
        self._unacked: deque[Sent] = deque()
        self._ready: deque[Turns] = deque()
        self._acks_sent = 0
        self._landing: Sink | None = None
        self._landing_bytes = 0
        self._partial = 0
        self._ack_now = False
        self._ahead: dict[int, RunAhead] = {}
        self._budget = Budget(allowance_bytes(engine.world_size))
        self.users: set[int] = set()

    @property
    def sent_frames(self) -> int:
        """How many frames went out, acknowledgements among them."""
        return self._sent_no + self._acks_sent

    def ahead_of(self, stream: int) -> RunAhead:
        """How far eager data of a group may run ahead of this peer's calls."""
        found = self._ahead.get(stream)
        if found is None:
            found = self._ahead[stream] = RunAhead(self._budget)
        return found

    def forget(self, stream: int) -> None:
        """The group of a stream is freed here."""
        self.users.discard(stream)
        found = self._ahead.pop(stream, None)
        if found is not None:
            found.give_back()

    # Sending

    def send_data(self, flow: Turns, header: list[Any], payload: memoryview, hold: bool) -> int:
        """Send one segment; ``hold``: its memory stays in use until acknowledged (large ones).

        Returns:
            The frame's overhead in bytes.
        """
        head = self._pack(header)
        self.last_epoch = self.engine.world.epoch
        self._sent_no = number = self._sent_no + 1
        self._told_no = taken = self._taken_no
        self._untold_bytes = 0
        size = len(payload)
        preamble = PREAMBLE.pack(
            MAGIC,
            VERSION,
            flow.kind,
            FLAG_ACK_NOW if flow.held and self._wants_ack(flow.n_sends - flow.send_i) else 0,
            len(head),
            flow.stream,
            size,
            number,
            taken,
        )
        overhead = len(preamble) + len(head)
        if hold:
            begin = preamble + head
            self._unacked.append(Sent(number, flow.op, begin, payload, size))
            self.connection.send((begin, payload), overhead + size)
        else:
            frame = b"".join((preamble, head, payload))
            self._unacked.append(Sent(number, None, frame, None, size))
            self.connection.send((frame,), overhead + size)
        self.sent_bytes += overhead + size
        return overhead

    def send_note(self, kind: int, stream: int, header: Any) -> int:
        """Send a numbered frame without payload; returns its size."""
        self.last_epoch = self.engine.world.epoch
        self._sent_no = number = self._sent_no + 1
        self._told_no = self._taken_no
        self._untold_bytes = 0
        frame = encode(kind, header, stream=stream, frame_no=number, ack=self._taken_no)
        self._unacked.append(Sent(number, None, frame, None, 0))
        if self.up:
            self.connection.send((frame,), len(frame))
        self.sent_bytes += len(frame)
        return len(frame)

    def _send_ack(self) -> None:
        self._told_no = self._taken_no
        self._untold_bytes = 0
        self._acks_sent += 1
        frame = encode(_ACK, ack=self._taken_no)
        self.connection.send((frame,), len(frame))
        self.sent_bytes += len(frame)

    def enqueue(self, flow: Turns) -> None:
        """Give a flow that can send its turn, now if the socket takes it."""
        if not flow.queued:
            flow.queued = True
            self._ready.append(flow)
        self.pump()

    def pump(self) -> None:
        """Send what may be sent, a segment of each flow in turn, until the socket is full."""
        ready = self._ready
        channel = self.connection.channel
        while ready and self.up and not channel.backlog_bytes:
            flow = ready.popleft()
            if flow.can_send():
                flow.op.send_next(flow)
                if flow.can_send():
                    ready.append(flow)
                    continue
            flow.queued = False

    def _wants_ack(self, left: int) -> bool:
        """Whether to ask for an ack at once, ``left`` frames before the last of a flow.

        Between hosts also where what follows is little enough for :meth:`part_with`.
        """
        return not left or (left == LAST_FRAMES and self.far)

    def part_with(self, op: object, most_bytes: int) -> int:
        """Copy what ``op`` still lends us, so that its memory is its own before the last ack.

        Returns:
            Of how many frames; 0 if they have more than ``most_bytes``, or the link is down.
        """
        unacked = self._unacked
        lent = [(at, entry) for at, entry in enumerate(unacked) if entry.holder is op]
        if not self.up or sum(entry.size_bytes for _, entry in lent) > most_bytes:
            return 0
        if self.connection.channel.backlog_bytes:
            self.connection.channel.own_backlog()
        for at, entry in lent:  # in place: who reads acks may be in the middle of it
            assert entry.payload is not None
            whole = b"".join((entry.head, entry.payload))
            unacked[at] = entry._replace(holder=None, head=whole, payload=None)
        return len(lent)

    def owes_ack(self, op: object) -> bool:
        """Whether the peer has not acknowledged all held memory of ``op``."""
        return any(entry.holder is op for entry in self._unacked)

    def release(self, op: object) -> None:
        """``op`` failed: nothing here may look at its memory any more."""
        self.connection.channel.own_backlog()
        if any(entry.holder is op for entry in self._unacked):
            self._unacked = deque(
                entry._replace(holder=None, head=b"", payload=None) if entry.holder is op else entry
                for entry in self._unacked
            )
        landing = self._landing
        if landing is not None and getattr(landing, "op", None) is op:
            landing.abandon()  # type: ignore[attr-defined]

    # Receiving

    def on_frame(
        self,
        kind: int,
        flags: int,
        stream: int,
        frame_no: int,
        ack: int,
        header: Any,
        payload_bytes: int,
        inline: memoryview | None,
    ) -> Sink | None:
        """A frame came: account for it, then hand it to the group it belongs to."""
        if ack > self._acked_no:
            self._take_ack(ack)
        if frame_no:
            if frame_no != self._taken_no + 1:
                raise FrameError(f"frame {frame_no} follows frame {self._taken_no}")
            self._ack_now = bool(flags & FLAG_ACK_NOW)
        elif kind not in _UNNUMBERED:
            raise FrameError(f"a frame of kind {kind} needs a number")
        self.received_bytes += payload_bytes + self.connection.head_bytes
        if kind == _DATA:
            sink = self.engine.router.on_data(self, stream, header, payload_bytes, inline)
        elif _FIRST_OF_MAIL <= kind <= _LAST_OF_MAIL:
            sink = self.engine.mail.on_frame(self, kind, stream, header, payload_bytes, inline)
        elif kind == _REST:
            return self._on_rest(header, payload_bytes, inline)
        else:
            sink = None
            if kind != _ACK:
                if payload_bytes:
                    raise FrameError(f"a frame of kind {kind} may not carry a payload")
                self._on_note(kind, stream, header)
        if sink is not None:
            self._landing, self._landing_bytes = sink, payload_bytes
            self._untold_bytes += payload_bytes
        elif frame_no:
            self._taken(payload_bytes)
        return sink

    def on_payload_end(self) -> None:
        """A large payload is complete."""
        landing, self._landing = self._landing, None
        self._taken(0)
        landing.complete()  # type: ignore[union-attr]

    def _taken(self, size_bytes: int) -> None:
        if self.connection.closed and self.up:
            return  # its own frame made us end it
        self._taken_no += 1
        self._untold_bytes += size_bytes
        if (
            self._ack_now
            or self._taken_no - self._told_no >= ACK_EVERY_FRAMES
            or self._untold_bytes >= ACK_EVERY_BYTES
        ):
            self._ack_now = False
            self._send_ack()

    def _take_ack(self, ack: int) -> None:
        if ack > self._sent_no:
            raise FrameError(f"ack of frame {ack}, but {self._sent_no} were sent")
        self._acked_no = ack
        unacked = self._unacked
        while unacked and unacked[0][0] <= ack:
            holder = unacked.popleft().holder
            if holder is not None:
                holder.released()

    def _on_note(self, kind: int, stream: int, header: Any) -> None:
        if kind == _CREDIT:
            self.engine.router.on_credit(self, stream, header)
        elif kind == _ENVELOPE:
            self.engine.router.on_envelope(self, stream, header)
        elif kind == _ABORT:
            self.engine.router.on_abort(self, stream, header)
        elif kind == _GOODBYE:
            self.said_goodbye = True
        elif kind == _VOID:
            self._on_void(header)
        elif kind == _IDLE:
            self.engine.leaving.on_idle(self)
        elif kind == _BUSY:
            self.engine.leaving.on_busy(self)
        elif kind == _PING:
            self.engine.probing.on_ping(self, header)
        elif kind == _PONG:
            self.engine.probing.on_pong(self, header)
        else:
            raise FrameError(f"a frame of kind {kind} has no place on a link")

    def on_drained(self) -> None:
        self.pump()

    def on_closed(self, error: BaseException | None) -> None:
        self.broke()
        self.engine.on_link_closed(self, error)

    # Resuming

    def broke(self) -> None:
        """The connection is gone; how much of a payload came is remembered."""
        if self.up:
            self.up = False
            missing = self.connection.missing_bytes
            if missing:  # else what came before counts on: the rest of it has not begun
                self._partial = self._landing_bytes - missing

    def position(self) -> tuple[int, int]:
        """What came: the last whole numbered frame, and payload bytes of the next one."""
        self._told_no = self._taken_no
        return self._taken_no, self._partial

    def resume(self, connection: Connection, taken: int, partial: int) -> None:
        """A new connection takes over; the peer has frames up to ``taken``, and ``partial`` bytes.

        Raises:
            FrameError: the peer claims what can't be.
        """
        if not self._acked_no <= taken <= self._sent_no:
            raise FrameError(f"a resume at frame {taken}, of {self._acked_no} to {self._sent_no}")
        self.connection = connection
        self.up = True
        self.up_since = self.engine.now()
        self.resumed += 1
        self._take_ack(taken)
        for entry in list(self._unacked):
            self._send_again(entry, partial if entry.number == taken + 1 else 0)
        self.pump()

    def _send_again(self, entry: Sent, offset: int) -> None:
        """Send a frame, or what is missing of its payload."""
        if not 0 <= offset <= entry.size_bytes:
            raise FrameError(f"a resume at byte {offset} of a payload of {entry.size_bytes}")
        if not entry.head:
            self._send_raw(encode(_VOID, [entry.number]))
        elif offset:
            header = [entry.number, offset]
            payload = entry.payload
            if payload is None:
                payload = memoryview(entry.head)[len(entry.head) - entry.size_bytes :]
            rest = encode(_REST, header, payload_bytes=entry.size_bytes - offset)
            self._send_raw(rest, payload[offset:])
        elif entry.payload is None:
            self._send_raw(entry.head)
        else:
            self._send_raw(entry.head, entry.payload)

    def _send_raw(self, *parts: bytes | memoryview) -> None:
        self.connection.send(parts, sum(len(part) for part in parts))

    def _on_rest(self, header: Any, size: int, inline: memoryview | None) -> Sink | None:
        """The rest of a payload whose beginning came on the connection before."""
        landing = self._landing
        if landing is None or header != [self._taken_no + 1, self._partial]:
            raise FrameError(f"no payload of ours goes on at {header!r}")
        if size != self._landing_bytes - self._partial:
            raise FrameError(f"a rest of {size} bytes where others were missing")
        self._partial = 0
        if inline is None:
            return landing
        while len(inline):
            room = landing.room(len(inline))
            room[:] = inline[: len(room)]
            landing.filled(len(room))
            inline = inline[len(room) :]
        self.on_payload_end()
        return None

    def _on_void(self, header: Any) -> None:
        """A frame will not come: its operation failed there, and is about to fail here."""
        if header != [self._taken_no + 1]:
            raise FrameError(f"frame {header!r} is said to be void after frame {self._taken_no}")
        landing, self._landing = self._landing, None
        if landing is not None:
            landing.abandon()  # type: ignore[attr-defined]
        self._partial = 0
        self._taken(0)
