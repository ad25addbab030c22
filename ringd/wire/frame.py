"""A frame: a fixed preamble, a msgpack header, raw payload bytes.

Preamble, 40 bytes, network byte order::

    offset  size  field
    0       4     magic "RNGD"
    4       1     protocol version
    5       1     kind
    6       2     flags
    8       4     header length in bytes
    12      4     stream (0: the connection itself; 1 + group number: operations of a group)
    16      8     payload length in bytes
    24      8     frame number on this connection, from 1 on (0: not numbered, never resent)
    32      8     cumulative ack: all numbered frames up to this one were taken in

Magic, version, kind and both lengths are checked before anything is allocated.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import msgpack

MAGIC = b"RNGD"
VERSION = 1
PREAMBLE = struct.Struct("!4sBBHIIQQQ")
PREAMBLE_BYTES = PREAMBLE.size
assert PREAMBLE_BYTES == 40

FLAG_CHECKSUM = 1
"""Reserved: the header's last field is a checksum of the payload."""
FLAG_COMPRESSED = 2
"""Reserved: the payload is a compressed form of the segment."""
FLAG_ACK_NOW = 4
"""The sender holds memory until this frame is acknowledged: answer without waiting."""
KNOWN_FLAGS = FLAG_ACK_NOW
"""Flags that this version understands; a frame with another one is refused."""

CONNECTION_STREAM = 0

# Made once: msgpack.packb takes a buffer of 1 MiB from the system each time.
_pack = msgpack.Packer(autoreset=True).pack


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    ACCEPTED = 4
    REFUSED = 5
    CONTROL = 8
    """Between a daemon and the rendezvous: a msgpack map with "type"."""
    ENVELOPE = 16
    """Announces an operation, without payload: [epoch, seq, *introduction].

    An introduction is spec, remaining_ms and, for all_to_all, [to you, from you] in rows.
    """
    DATA = 17
    """A segment: [epoch, seq, index] or [epoch, seq, index, *introduction]."""
    CREDIT = 18
    """The receiver has room: [epoch, seq, items] or [epoch, seq, items, *introduction]."""
    ACK = 19
    """Only the preamble's ack."""
    ABORT = 20
    """An operation ended with an error: [epoch, seq, error map]."""
    GOODBYE = 21
    """The peer leaves on purpose: [epoch]."""
    PING = 22
    """Answer with a PONG: [number]."""
    PONG = 23
    """The answer to a PING, with its [number]."""
    MESSAGE = 24
    """A small point-to-point message: [epoch, number, tag, spec, remaining_ms], and its payload."""
    OFFER = 25
    """A larger one, without its payload: [epoch, number, tag, spec, remaining_ms]."""
    TAKE = 26
    """The receiver of an offer has a place for it: [epoch, number]."""
    PART = 27
    """A segment of an offered message: [epoch, number, index]."""
    REVOKE = 28
    """A message ends with an error: [epoch, number, by_sender, error map]."""
    TAKEN = 29
    """How much of what was sent as MESSAGE has been received, in all: [epoch, messages, bytes]."""
    LEFT = 30
    """The trainer said goodbye: no message follows in [epoch]."""
    IDLE = 31
    """No group of ours needs this link any more, and nothing follows until you answer: []."""
    BUSY = 32
    """The answer to IDLE where the link is needed: []. Otherwise it is a goodbye."""
    RESUME = 33
    """The first frame on a link, by both: [link id, fresh, taken, partial].

    ``taken``: the last numbered frame that came whole, -1: the link is not known here; ``partial``:
    how many payload bytes of the next one came.
    """
    REST = 34
    """After a resume, the rest of a payload that was cut: [frame number, offset]."""
    VOID = 35
    """After a resume, in place of a numbered frame whose operation failed: [frame number]."""


_KINDS = frozenset(int(k) for k in Kind)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that a receiver checks before it allocates."""

    header_bytes: int = 64 * 1024
    payload_bytes: int = 16 * 1024 * 1024
    inline_bytes: int = 64 * 1024
    """Payloads up to this size are handed over from the staging buffer; larger ones need a sink."""

    @classmethod
    def for_handshake(cls) -> Limits:
        """Before the peer has proved who it is: small headers, no payload at all."""
        return cls(header_bytes=1024, payload_bytes=0)

    @classmethod
    def for_control(cls) -> Limits:
        """Control connections carry maps only."""
        return cls(header_bytes=4 * 1024 * 1024, payload_bytes=0)


class FrameError(Exception):
    """The bytes are not a frame that may be taken; the connection's position is lost."""


def encode(
    kind: int,
    header: Any = None,
    *,
    stream: int = CONNECTION_STREAM,
    payload_bytes: int = 0,
    frame_no: int = 0,
    ack: int = 0,
    flags: int = 0,
) -> bytes:
    """Preamble and header of a frame; the payload, if any, follows as it is."""
    head = b"" if header is None else _pack(header)
    return (
        PREAMBLE.pack(MAGIC, VERSION, kind, flags, len(head), stream, payload_bytes, frame_no, ack)
        + head
    )


def check_preamble(fields: tuple[Any, ...], limits: Limits) -> None:
    """Refuse a preamble (as ``PREAMBLE.unpack`` gave it) that breaks the protocol or a limit.

    Raises:
        FrameError: says which field, its value, and the bound.
    """
    magic, version, kind, flags, header_bytes, _stream, payload_bytes, _no, _ack = fields
    if magic != MAGIC:
        raise FrameError(f"not ringd's protocol: the first bytes are {magic!r}")
    if version != VERSION:
        raise FrameError(f"protocol version {version}, ours is {VERSION}")
    if kind not in _KINDS:
        raise FrameError(f"unknown frame kind {kind}")
    if flags & ~KNOWN_FLAGS:
        raise FrameError(f"unknown flags {flags:#x}")
    if header_bytes > limits.header_bytes:
        raise FrameError(
            f"a header of {header_bytes} bytes is over the limit {limits.header_bytes}"
        )
    if payload_bytes > limits.payload_bytes:
        raise FrameError(
            f"a payload of {payload_bytes} bytes is over the limit {limits.payload_bytes}"
        )


def unpack_header(data: bytes | memoryview) -> Any:
    """The header's value; None for an empty one.

    Raises:
        FrameError: not one well-formed msgpack value.
    """
    if not len(data):
        return None
    try:
        return msgpack.unpackb(data)
    except Exception as exc:  # msgpack raises several unrelated classes
        raise FrameError(f"a header is not msgpack: {exc}") from None
