"""Frames on a blocking socket, and the handshake that opens it."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack

PATIENCE_S = 20.0
PREAMBLE = struct.Struct("!4sBBHIIQQQ")
HELLO, CHALLENGE, PROOF, ACCEPTED, REFUSED, CONTROL = 1, 2, 3, 4, 5, 8
ENVELOPE, DATA, CREDIT, ACK, ABORT, GOODBYE = 16, 17, 18, 19, 20, 21
MESSAGE, OFFER, TAKE, PART, REVOKE, TAKEN, LEFT, IDLE, BUSY = range(24, 33)
RESUME, REST, VOID = 33, 34, 35
ACK_NOW = 4


class Refused(Exception):
    """The other side said REFUSED."""

    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__(fields["text"])
        self.code = fields["code"]


class Failed(Exception):
    """An operation or a message ended with an error, as it travels."""

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
        frame = Frame(kind, flags, stream, number, ack, header, payload)
        self.send_begin(frame, len(payload))

    def send_begin(self, frame: Frame, count: int) -> None:
        """Send a frame up to so many bytes of its payload."""
        head = b"" if frame.header is None else msgpack.packb(frame.header)
        sizes = len(head), frame.stream, len(frame.payload)
        fields = frame.kind, frame.flags, *sizes, frame.number, frame.ack
        self.sock.sendall(PREAMBLE.pack(b"RNGD", 1, *fields) + head + frame.payload[:count])

    def read(self) -> Frame:
        frame, size = self.read_head()
        return replace(frame, payload=self.exactly(size))

    def read_head(self) -> tuple[Frame, int]:
        """A frame without its payload, and how many bytes of payload follow."""
        preamble = PREAMBLE.unpack(self.exactly(PREAMBLE.size))
        magic, version, kind, flags, head_bytes, stream, payload_bytes, number, ack = preamble
        assert (magic, version) == (b"RNGD", 1)
        head = self.exactly(head_bytes)
        header = msgpack.unpackb(head) if head else None
        return Frame(kind, flags, stream, number, ack, header, b""), payload_bytes

    def end(self) -> None:
        """Break the connection, when the other side has all that was sent."""
        self.sock.shutdown(socket.SHUT_WR)
        while self.sock.recv(64 * 1024):
            pass
        self.sock.close()

    def exactly(self, count: int) -> bytes:
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
    """Take a link: the handshake as the acceptor; which rank it was.

    One of a higher rank is turned away: that only wanted to say that it waits.

    Raises:
        EOFError: it gave up meanwhile.
    """
    wire = Wire(listener.accept()[0])
    them = party_in(expect(wire, HELLO))
    assert (them.role, them.job, them.world) == (us.role, us.job, us.world)
    wire.send(CHALLENGE, {**us.fields(), "mac": mac_of(secret, "acceptor", them, us)})
    proof = expect(wire, PROOF)["mac"]
    assert hmac.compare_digest(proof, mac_of(secret, "dialer", them, us))
    if them.rank > us.rank:
        wire.send(REFUSED, {"code": "wrong_direction", "text": "we dial"})
        wire.sock.close()
    else:
        wire.send(ACCEPTED, {})
    return wire, them.rank
