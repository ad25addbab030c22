"""The proof of docs/wire-protocol.md: a peer written from it alone joins a real group.

The peer has sockets, struct, hmac, hashlib and msgpack, and neither threads nor asyncio. ringd is
imported in :func:`real_rank_0` only, which holds the other side: a rendezvous and rank 0's node.
"""

from __future__ import annotations

import ast
import asyncio
import hashlib
import hmac
import logging
import os
import random
import select
import socket
import struct
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

JOB, SECRET, LOCALHOST = "foreign", b"a secret between two strangers", "127.0.0.1"
SEGMENT_BYTES, EAGER_BYTES = 1024 * 1024, 64 * 1024
PATIENCE_S = 20.0

PREAMBLE = struct.Struct("!4sBBHIIQQQ")
HELLO, CHALLENGE, PROOF, ACCEPTED, REFUSED, CONTROL = 1, 2, 3, 4, 5, 8
ENVELOPE, DATA, CREDIT, ACK, ABORT, GOODBYE = 16, 17, 18, 19, 20, 21
ACK_NOW = 4
ELEMENT = {"float32": ("f", 4), "float16": ("e", 2)}


# ---------------------------------------------------------------- the peer: frames and handshake


class Refused(Exception):
    """The other side said REFUSED."""

    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__(fields["text"])
        self.code = fields["code"]


class Failed(Exception):
    """An operation ended with an error, as it travels."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code = error["code"]


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    stream: int
    number: int
    ack: int
    header: Any
    payload: bytes


class Wire:
    """Frames on a blocking socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.settimeout(PATIENCE_S)

    def send(
        self,
        kind: int,
        header: Any = None,
        payload: bytes = b"",
        *,
        stream: int = 0,
        number: int = 0,
        ack: int = 0,
        flags: int = 0,
    ) -> None:
        head = b"" if header is None else msgpack.packb(header)
        sizes = len(head), stream, len(payload)
        preamble = PREAMBLE.pack(b"RNGD", 1, kind, flags, *sizes, number, ack)
        self.sock.sendall(preamble + head + payload)

    def read(self) -> Frame:
        preamble = PREAMBLE.unpack(self._exactly(PREAMBLE.size))
        magic, version, kind, flags, head_bytes, stream, payload_bytes, number, ack = preamble
        assert (magic, version) == (b"RNGD", 1)
        head = self._exactly(head_bytes)
        header = msgpack.unpackb(head) if head else None
        return Frame(kind, flags, stream, number, ack, header, self._exactly(payload_bytes))

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = self.sock.recv(count - len(data))
            if not piece:
                raise EOFError("the other side closed the connection")
            data += piece
        return bytes(data)


@dataclass
class Party:
    """What one end says of itself in the handshake."""

    role: str
    job: str
    rank: int
    world: int
    nonce: bytes = field(default_factory=lambda: os.urandom(32))

    def fields(self) -> dict[str, Any]:
        return {"v": 1, **vars(self)}

    def items(self) -> list[bytes]:
        numbers = [str(self.rank).encode(), str(self.world).encode()]
        return [b"1", self.role.encode(), self.job.encode(), *numbers, self.nonce]


def mac_of(secret: bytes, maker: str, dialer: Party, acceptor: Party) -> bytes:
    items = [f"ringd handshake, {maker}".encode(), *dialer.items(), *acceptor.items()]
    transcript = b"".join(struct.pack("!I", len(item)) + item for item in items)
    return hmac.new(secret, transcript, hashlib.sha256).digest()


def party_in(header: dict[str, Any]) -> Party:
    assert header["v"] == 1
    return Party(*(header[name] for name in ("role", "job", "rank", "world", "nonce")))


def expect(wire: Wire, kind: int) -> Any:
    frame = wire.read()
    if frame.kind == REFUSED:
        raise Refused(frame.header)
    assert frame.kind == kind
    return frame.header


def dial(address: tuple[str, int], us: Party, secret: bytes, *, role: str) -> Wire:
    """Connect, and shake hands as the dialer."""
    wire = Wire(socket.create_connection(address, PATIENCE_S))
    wire.send(HELLO, us.fields())
    header = expect(wire, CHALLENGE)
    them = party_in(header)
    assert (them.role, them.job, them.world) == (role, us.job, us.world)
    assert hmac.compare_digest(header["mac"], mac_of(secret, "acceptor", us, them))
    wire.send(PROOF, {"mac": mac_of(secret, "dialer", us, them)})
    expect(wire, ACCEPTED)
    return wire


def accept(listener: socket.socket, us: Party, secret: bytes) -> tuple[Wire, int]:
    """Take a link: the handshake as the acceptor; which rank it was."""
    wire = Wire(listener.accept()[0])
    them = party_in(expect(wire, HELLO))
    assert (them.role, them.job, them.world) == (us.role, us.job, us.world)
    wire.send(CHALLENGE, {**us.fields(), "mac": mac_of(secret, "acceptor", them, us)})
    proof = expect(wire, PROOF)["mac"]
    assert hmac.compare_digest(proof, mac_of(secret, "dialer", them, us))
    wire.send(ACCEPTED, {})
    return wire, them.rank


# ---------------------------------------------------------------- the peer: what an operation sends


@dataclass(frozen=True)
class Segment:
    """Elements [start, start + count); ``cell`` numbers segments of all chunks."""

    cell: int
    start: int
    count: int
    wide: bool
    adds: bool = False  # received: folded into ours, else copied
    finishes: bool = False  # received: the last contribution, at the rank that owns the chunk
    needs: int = 0  # sent: so many receives of its cell come before


@dataclass(frozen=True)
class Move:
    chunk: int
    wide: bool = False
    adds: bool = False
    finishes: bool = False
    needs: int = 0


def moves(algorithm: str, rank: int) -> tuple[int, list[Move], list[Move]]:
    """An all_reduce of two ranks: the number of chunks, our sends, our receives, in order."""
    peer = 1 - rank
    if algorithm == "exchange":
        return 1, [Move(0)], [Move(0, adds=True, finishes=True)]
    if algorithm == "direct":
        contributions = Move(peer), Move(rank, adds=True, finishes=True)
        results = Move(rank, needs=1), Move(peer)
        return 2, [contributions[0], results[0]], [contributions[1], results[1]]
    assert algorithm == "ring"
    sends = [Move(rank, wide=True), Move(peer, needs=1)]
    return 2, sends, [Move(peer, wide=True, adds=True, finishes=True), Move(rank)]


def segments(all_moves: list[Move], elements: int, chunks: int, itemsize: int) -> list[Segment]:
    """The moves of one direction, cut into segments: a flow."""
    step = SEGMENT_BYTES // itemsize
    length, longer = divmod(elements, chunks)
    cells: list[list[tuple[int, int, int]]] = []
    start = number = 0
    for chunk in range(chunks):
        end = start + length + (chunk < longer)
        spans = [(at, min(step, end - at)) for at in range(start, end, step)] or [(start, 0)]
        cells.append([(number + i, *span) for i, span in enumerate(spans)])
        number, start = number + len(spans), end
    return [
        Segment(cell, at, count, m.wide, m.adds, m.finishes, m.needs)
        for m in all_moves
        for cell, at, count in cells[m.chunk]
    ]


class Region:
    """The values of one operation, as Python floats that the dtype can hold."""

    def __init__(self, dtype: str, data: bytes) -> None:
        self.letter, self.itemsize = ELEMENT[dtype]
        self.count = len(data) // self.itemsize
        self.values = list(self._unpack(self.letter, data))

    def _unpack(self, letter: str, data: bytes) -> tuple[float, ...]:
        return struct.unpack(f"<{len(data) // struct.calcsize(letter)}{letter}", data)

    def data(self, start: int = 0, count: int | None = None, *, wide: bool = False) -> bytes:
        part = self.values[start : self.count if count is None else start + count]
        return struct.pack(f"<{len(part)}{'f' if wide else self.letter}", *part)

    def size_bytes(self, segment: Segment) -> int:
        return segment.count * (4 if segment.wide else self.itemsize)

    def take(self, segment: Segment, payload: bytes) -> None:
        assert len(payload) == self.size_bytes(segment)
        here = slice(segment.start, segment.start + segment.count)
        came = self._unpack("f" if segment.wide else self.letter, payload)
        if segment.adds:
            # A sum of two float32 in double precision, rounded once, is their float32 sum.
            sums = [a + b for a, b in zip(came, self.values[here], strict=True)]
            came = self._unpack("f", struct.pack(f"<{len(sums)}f", *sums))
            if segment.finishes:
                came = self._unpack(self.letter, struct.pack(f"<{len(sums)}{self.letter}", *came))
        self.values[here] = came


# ---------------------------------------------------------------- the peer: a rank


class ForeignRank:
    """Rank 1 of 2."""

    def __init__(self, *, rank: int = 1, world: int = 2, job: str = JOB) -> None:
        self.rank, self.world, self.job = rank, world, job
        self.epoch = self.seq = self.sent = self.taken = self.acked = 0
        self.control: Wire | None = None
        self.link: Wire | None = None
        self.started = False
        self.frames: dict[tuple[int, int], deque[Frame]] = defaultdict(deque)
        self.failures: dict[tuple[int, int], dict[str, Any]] = {}
        self.said_goodbye = False
        self._listener = socket.create_server((LOCALHOST, 0))
        self._beat_at = 0.0

    def _party(self, role: str) -> Party:
        return Party(role, self.job, self.rank, self.world)

    def join(self, rendezvous: tuple[str, int]) -> None:
        """Take part: returns when the epoch has begun and the link is there."""
        self.control = dial(rendezvous, self._party("daemon"), SECRET, role="rendezvous")
        address = list(self._listener.getsockname()[:2])
        sizes = [SEGMENT_BYTES, EAGER_BYTES]
        who = {"version": "foreign", "pid": os.getpid(), "host": "elsewhere"}
        self._tell("join", address=address, sizes=sizes, **who)
        self._tell("attach", attempt=1)
        while not (self.started and self.link):
            self.turn()

    def leave(self) -> None:
        self._tell("detach", how="goodbye", detail="", epoch=self.epoch, next_seq=self.seq)
        self.note(GOODBYE, [self.epoch], stream=0)
        self._tell("leave")
        self.close()

    def close(self) -> None:
        self._listener.close()
        for wire in (self.control, self.link):
            if wire is not None:
                wire.sock.close()

    def _tell(self, kind: str, **fields: Any) -> None:
        assert self.control is not None
        self.control.send(CONTROL, {"type": kind, **fields})
        self._beat_at = time.monotonic() + 1.0

    def note(self, kind: int, header: Any, payload: bytes = b"", **more: int) -> int:
        """Send a numbered frame on the link."""
        assert self.link is not None
        self.sent += 1
        numbers = {"number": self.sent, "ack": self.taken}
        self.link.send(kind, header, payload, **{"stream": 1, **numbers, **more})
        return self.sent

    # What comes

    def turn(self) -> None:
        """Wait for what comes on any connection, and take one thing."""
        wires = {w.sock: w for w in (self.control, self.link) if w is not None}
        wait_s = max(0.0, self._beat_at - time.monotonic())
        ready = select.select([*wires, self._listener], [], [], wait_s)[0]
        if time.monotonic() >= self._beat_at:
            self._tell("heartbeat")
        if self._listener in ready:
            self.link, rank = accept(self._listener, self._party("link"), SECRET)
            assert rank == 0
        elif ready and wires[ready[0]] is self.control:
            self._hear(self.control.read())
        elif ready:
            assert self.link is not None
            self._take(self.link.read())

    def _hear(self, frame: Frame) -> None:
        assert (frame.kind, frame.number) == (CONTROL, 0)
        said = frame.header
        if said["type"] == "start" and said["attempt"] == 1:
            self.epoch, self.seq, self.started = said["epoch"], 0, True
        elif said["type"] == "report":
            self._tell("state", request=said["request"], state={})
        elif said["type"] == "abort":
            self.failures.setdefault((said["epoch"], said["seq"]), said["error"])

    def _take(self, frame: Frame) -> None:
        assert self.link is not None
        self.acked = max(self.acked, frame.ack)
        if frame.kind == ACK:
            assert (frame.number, frame.header, frame.payload) == (0, None, b"")
            return
        self.taken += 1
        assert frame.number == self.taken
        if frame.flags & ACK_NOW:
            self.link.send(ACK, ack=self.taken)
        if frame.kind == GOODBYE:
            self.said_goodbye = True
        elif frame.kind == ABORT:
            epoch, seq, error = frame.header
            self.failures.setdefault((epoch, seq), error)
        else:
            self.frames[frame.header[0], frame.header[1]].append(frame)

    # An operation

    def begin(self, dtype: str, data: bytes, algorithm: str) -> Call:
        """An all_reduce, sum; ``algorithm`` is a name, not "auto"."""
        shape = [len(data) // ELEMENT[dtype][1]]
        fields = [0, "all_reduce", dtype, "sum", shape, -1, algorithm, False, ""]
        call = Call(self, msgpack.packb(fields), Region(dtype, data), algorithm)
        self.seq += 1
        return call

    def all_reduce(self, dtype: str, data: bytes, algorithm: str) -> bytes:
        return self.begin(dtype, data, algorithm).run()

    def fail(self, op: tuple[int, int], code: str, message: str) -> None:
        """An operation failed here: tell everybody."""
        error = {"code": code, "message": message, "fields": {}}
        self.failures.setdefault(op, error)
        self.note(ABORT, [*op, error])
        self._tell("op_failed", epoch=op[0], group=0, seq=op[1], error=error)


class Call:
    """One operation of the peer."""

    WINDOW = 2
    """Segments that we take in advance, to see that nobody sends more."""

    def __init__(self, me: ForeignRank, spec: bytes, region: Region, algorithm: str) -> None:
        self.me, self.spec, self.region = me, spec, region
        self.op = (me.epoch, me.seq)
        chunks, sends, recvs = moves(algorithm, me.rank)
        self.sends = segments(sends, region.count, chunks, region.itemsize)
        self.recvs = segments(recvs, region.count, chunks, region.itemsize)
        self.send_eager = sum(map(region.size_bytes, self.sends)) <= EAGER_BYTES
        self.recv_eager = sum(map(region.size_bytes, self.recvs)) <= EAGER_BYTES
        self.credit = len(self.sends) if self.send_eager else 0
        self.granted = len(self.recvs) if self.recv_eager else 0
        self.sent = self.came = 0
        self.introduced = False
        self.changes: dict[int, int] = defaultdict(int)
        self.last_number = 0

    def run(self) -> bytes:
        while True:
            self._grant()
            self._send()
            if self._complete():
                return self.region.data()
            self._next()

    def send_ahead(self) -> None:
        """Send what is eager, and return when the peer says that it has it."""
        self._send()
        while self.me.acked < self.last_number:
            self.me.turn()

    def _complete(self) -> bool:
        whole = self.sent == len(self.sends) and self.came == len(self.recvs)
        return whole and self.me.acked >= self.last_number

    def _introduction(self) -> list[Any]:
        if self.introduced:
            return []
        self.introduced = True
        return [self.spec, int(PATIENCE_S * 1000)]

    def _grant(self) -> None:
        allowed = min(len(self.recvs), self.came + self.WINDOW)
        if allowed > self.granted:
            self.granted = allowed
            self.me.note(CREDIT, [*self.op, allowed, *self._introduction()])

    def _send(self) -> None:
        while self.sent < min(self.credit, len(self.sends)):
            segment = self.sends[self.sent]
            if self.changes[segment.cell] < segment.needs:
                return
            payload = self.region.data(segment.start, segment.count, wide=segment.wide)
            header = [*self.op, self.sent, *self._introduction()]
            self.sent += 1
            last = self.sent == len(self.sends)
            number = self.me.note(DATA, header, payload, flags=ACK_NOW if last else 0)
            if last:
                self.last_number = number

    def _next(self) -> None:
        """Take one frame of this operation, or wait for what comes."""
        frames = self.me.frames[self.op]
        if frames:
            self._take(frames.popleft())
        elif self.op in self.me.failures:
            raise Failed(self.me.failures[self.op])
        else:
            self.me.turn()

    def _take(self, frame: Frame) -> None:
        fields = frame.header[2:]
        number, *introduction = [0, *fields] if frame.kind == ENVELOPE else fields
        if introduction and introduction[0] != self.spec:
            self.me.fail(self.op, "mismatch", "the foreign rank called something else")
            raise Failed(self.me.failures[self.op])
        if frame.kind == CREDIT:
            self.credit = max(self.credit, number)
        elif frame.kind == DATA:
            assert number == self.came < self.granted
            segment = self.recvs[number]
            self.came += 1
            self.region.take(segment, frame.payload)
            self.changes[segment.cell] += 1


# ---------------------------------------------------------------- the real side


@dataclass
class Real:
    """A real rendezvous, and a real rank 0 beside it."""

    address: tuple[str, int]
    begun: asyncio.Future[int]
    call: Callable[..., asyncio.Future[Any]]


@asynccontextmanager
async def real_rank_0() -> AsyncIterator[Real]:
    """The only place where ringd is imported."""
    from ringd.daemon.mesh import Place
    from ringd.daemon.node import Node
    from ringd.engine.engine import EngineOptions
    from ringd.rendezvous.service import RendezvousService
    from ringd.transport.base import Address
    from ringd.transport.handshaking import fresh_nonce
    from ringd.transport.tcp import TcpTransport
    from ringd.vocabulary import OpSpec
    from ringd.wire.handshake import Credentials

    loop = asyncio.get_running_loop()
    log = logging.getLogger("tests.foreign")
    service = RendezvousService(
        TcpTransport(), Credentials(JOB, -1, 2, "rendezvous", SECRET), log=log
    )
    address = await service.start(Address(LOCALHOST, 0))
    node = Node(
        loop=loop,
        transport=TcpTransport(),
        credentials=Credentials(JOB, 0, 2, "daemon", SECRET),
        rendezvous=address,
        place=Place(bind=LOCALHOST),
        options=EngineOptions(segment_bytes=SEGMENT_BYTES, eager_bytes=EAGER_BYTES),
        rng=random.Random(0),
        nonce=fresh_nonce,
        log=log,
    )
    begun: asyncio.Future[int] = loop.create_future()

    class Trainer:
        pid = os.getpid()

        def welcome(self, epoch: int, facts: dict[str, Any]) -> None:
            begun.set_result(epoch)

        def refuse(self, error: Exception) -> None:
            begun.set_exception(error)

    def call(region: np.ndarray[Any, Any], algorithm: str) -> asyncio.Future[Any]:
        ended = loop.create_future()
        spec = OpSpec("all_reduce", str(region.dtype), "sum", region.shape, algorithm=algorithm)
        memory = memoryview(region).cast("B")
        node.engine.submit(
            spec.packed, lambda _size: memory, ended.set_result, timeout_s=PATIENCE_S
        )
        return ended

    try:
        await node.start(loop.time() + PATIENCE_S)
        trainer = Trainer()
        node.attach(trainer, PATIENCE_S)
        yield Real((address.host, address.port), begun, call)
        node.detach(trainer, "goodbye", "")
    finally:
        await node.stop()
        await service.stop()


@asynccontextmanager
async def both() -> AsyncIterator[tuple[Real, ForeignRank]]:
    """Rank 0 is ringd's, rank 1 is foreign; the epoch has begun on both."""
    async with real_rank_0() as real:
        peer = ForeignRank()
        try:
            await asyncio.gather(real.begun, asyncio.to_thread(peer.join, real.address))
            yield real, peer
        finally:
            peer.close()


def two_inputs(dtype: str, count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(count)
    first, second = (rng.standard_normal(count).astype(dtype) for _ in range(2))
    return first, second


# ---------------------------------------------------------------- the proof


@pytest.mark.parametrize(
    ("dtype", "count", "algorithm"),
    [
        pytest.param("float32", 1001, "exchange", id="eager, one segment"),
        pytest.param("float32", 0, "exchange", id="empty"),
        pytest.param("float32", 1_310_723, "direct", id="by credit, segments, unequal chunks"),
        pytest.param("float32", 600_001, "ring", id="a ring of two"),
        pytest.param("float16", 600_001, "ring", id="wide partial sums of a 16-bit type"),
    ],
)
async def test_an_all_reduce_with_a_foreign_peer_is_right_on_both_sides(
    dtype: str, count: int, algorithm: str
) -> None:
    ours, theirs = two_inputs(dtype, count)
    expected = (ours.astype(np.float32) + theirs.astype(np.float32)).astype(dtype).tobytes()
    async with both() as (real, peer):
        ended = real.call(ours, algorithm)
        got = await asyncio.to_thread(peer.all_reduce, dtype, theirs.tobytes(), algorithm)
        assert await ended is None
        assert got == expected
        assert ours.tobytes() == expected


async def test_calls_follow_each_other_whoever_is_first() -> None:
    async with both() as (real, peer):
        for turn in range(20):
            ours, theirs = two_inputs("float32", 100 + turn)
            expected = (ours + theirs).tobytes()
            call = peer.begin("float32", theirs.tobytes(), "exchange")
            if turn % 2:  # rank 0 has the peer's segment before its own call
                await asyncio.to_thread(call.send_ahead)
            ended = real.call(ours, "exchange")
            assert await asyncio.to_thread(call.run) == expected
            assert await ended is None
            assert ours.tobytes() == expected


async def test_different_calls_fail_on_both_sides_and_the_next_one_works() -> None:
    async with both() as (real, peer):
        ours, theirs = two_inputs("float32", 12)
        ended = real.call(ours[:11], "exchange")
        with pytest.raises(Failed) as failed:
            await asyncio.to_thread(peer.all_reduce, "float32", theirs.tobytes(), "exchange")
        assert failed.value.code == "mismatch"
        assert (await ended).code == "mismatch"
        ended = real.call(ours, "exchange")
        got = await asyncio.to_thread(peer.all_reduce, "float32", theirs.tobytes(), "exchange")
        assert await ended is None
        assert got == ours.tobytes()


async def test_a_goodbye_is_understood() -> None:
    async with both() as (real, peer):
        await asyncio.to_thread(peer.leave)
        error = await real.call(np.ones(3, np.float32), "exchange")
        assert (error.code, error.rank, error.case) == ("peer_lost", 1, "it left the job")


@pytest.mark.parametrize(
    ("who", "code"),
    [
        ({"job": "another"}, "job"),
        ({"world": 3}, "world_size"),
        ({"rank": 2}, "rank"),
        ({"rank": 0}, "rank_taken"),
    ],
)
async def test_a_stranger_is_refused_by_name(who: dict[str, Any], code: str) -> None:
    async with real_rank_0() as real:
        stranger = ForeignRank(**who)
        try:
            with pytest.raises(Refused) as refused:
                await asyncio.to_thread(stranger.join, real.address)
        finally:
            stranger.close()
        assert refused.value.code == code


async def test_another_version_is_refused_at_its_fifth_byte() -> None:
    def knock(address: tuple[str, int]) -> Frame:
        with socket.create_connection(address, PATIENCE_S) as sock:
            sock.sendall(b"RNGD\x02")
            return Wire(sock).read()

    async with real_rank_0() as real:
        frame = await asyncio.to_thread(knock, real.address)
        assert (frame.kind, frame.header["code"]) == (REFUSED, "version")


async def test_what_is_not_ringd_is_cut_off_without_an_answer() -> None:
    def knock(address: tuple[str, int]) -> bytes:
        with socket.create_connection(address, PATIENCE_S) as sock, suppress(ConnectionError):
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            return sock.recv(100)
        return b""

    async with real_rank_0() as real:
        assert await asyncio.to_thread(knock, real.address) == b""


def test_the_peer_uses_nothing_of_ringd() -> None:
    """Only the real side imports it, so its names are nowhere in the peer's reach."""
    tree = ast.parse(Path(__file__).read_text())
    for node in tree.body:
        if isinstance(node, ast.AsyncFunctionDef) and node.name == real_rank_0.__name__:
            continue
        for inner in ast.walk(node):
            names = [a.name for a in inner.names] if isinstance(inner, ast.Import) else []
            names += [inner.module or ""] if isinstance(inner, ast.ImportFrom) else []
            assert not any(name.partition(".")[0].startswith("ringd") for name in names)
