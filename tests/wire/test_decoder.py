"""The decoder: frames fed whole, byte by byte, in random pieces, and with trailing bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringd.wire.decoder import STAGING_BYTES, FrameDecoder, Sink
from ringd.wire.frame import PREAMBLE, FrameError, Kind, Limits, encode

INLINE_BYTES = Limits().inline_bytes
Seen = tuple[int, int, int, int, int, Any, bytes]


class _Memory:
    """A sink that offers its room in pieces, as a folding sink does."""

    def __init__(self, piece_bytes: int) -> None:
        self.data = bytearray()
        self._piece = bytearray(piece_bytes)
        self._room = memoryview(b"")

    def room(self, remaining_bytes: int) -> memoryview:
        self._room = memoryview(self._piece)[: min(remaining_bytes, len(self._piece))]
        return self._room

    def filled(self, count: int) -> None:
        assert 0 < count <= len(self._room)
        self.data += self._room[:count]


class _Handler:
    def __init__(self, piece_bytes: int = 1000) -> None:
        self.seen: list[Seen] = []
        self._piece_bytes = piece_bytes
        self._open: tuple[tuple[Any, ...], _Memory] | None = None

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
        head = (kind, flags, stream, frame_no, ack, header)
        if inline is not None:
            assert len(inline) == payload_bytes <= INLINE_BYTES
            self.seen.append((*head, bytes(inline)))
        elif payload_bytes:
            memory = _Memory(self._piece_bytes)
            self._open = (head, memory)
            return memory
        else:
            self.seen.append((*head, b""))
        return None

    def on_payload_end(self) -> None:
        assert self._open is not None
        head, memory = self._open
        self.seen.append((*head, bytes(memory.data)))  # type: ignore[arg-type]
        self._open = None


def _feed(decoder: FrameDecoder, data: bytes, sizes: list[int]) -> None:
    """Give ``data`` in pieces of ``sizes`` (the last size for the rest), as a socket would."""
    at = 0
    sizes = sizes or [1 << 30]
    turn = 0
    while at < len(data):
        want = sizes[min(turn, len(sizes) - 1)]
        turn += 1
        count = 0
        for buffer in decoder.next_buffers():
            assert len(buffer)
            take = min(len(buffer), want - count, len(data) - at)
            buffer[:take] = data[at : at + take]
            at += take
            count += take
            if take < len(buffer):
                break
        decoder.received(count)


def _pattern(size: int) -> bytes:
    return (bytes(range(251)) * (size // 251 + 1))[:size]


_FRAMES = [
    (Kind.ACK, None, b""),
    (Kind.CREDIT, [1, 2, 3], b""),
    (Kind.DATA, [1, 2, 0], _pattern(1)),
    (Kind.DATA, [1, 2, 1, b"spec", 30_000], _pattern(777)),
    (Kind.DATA, [1, 3, 0], _pattern(INLINE_BYTES)),
    (Kind.DATA, [1, 3, 1], _pattern(INLINE_BYTES + 1)),
    (Kind.DATA, [1, 3, 2], _pattern(300_001)),
    (Kind.ABORT, [1, 2, {"code": "timeout", "message": "x" * 5000}], b""),
    (Kind.DATA, [1, 4, 0], _pattern(STAGING_BYTES)),
]


def _encoded(frames: list[tuple[int, Any, bytes]]) -> tuple[bytes, list[Seen]]:
    data, expected = b"", []
    for number, (kind, header, payload) in enumerate(frames, 1):
        data += encode(
            kind, header, stream=7, payload_bytes=len(payload), frame_no=number, ack=number - 1
        )
        data += payload
        expected.append((int(kind), 0, 7, number, number - 1, header, payload))
    return data, expected


@pytest.mark.parametrize("size", [1, 7, 39, 40, 41, 64, 4096, 1 << 30])
def test_frames_come_out_as_they_went_in_whatever_the_pieces(size: int) -> None:
    data, expected = _encoded(_FRAMES)
    handler = _Handler()
    _feed(FrameDecoder(handler, Limits()), data, [size])
    assert handler.seen == expected


def test_a_frame_is_taken_before_the_bytes_that_trail_it_are_complete() -> None:
    data, expected = _encoded(_FRAMES[:4])
    handler = _Handler()
    decoder = FrameDecoder(handler, Limits())
    trailing = encode(Kind.ACK, ack=9)[:20]
    _feed(decoder, data + trailing, [])
    assert handler.seen == expected
    _feed(decoder, encode(Kind.ACK, ack=9)[20:], [])
    assert handler.seen[-1] == (int(Kind.ACK), 0, 0, 0, 9, None, b"")


_frame = st.tuples(
    st.sampled_from([Kind.DATA, Kind.CREDIT, Kind.ABORT]),
    st.one_of(
        st.none(),
        st.lists(st.integers(0, 2**63), max_size=4),
        st.dictionaries(st.text(max_size=8), st.binary(max_size=40), max_size=3),
    ),
    st.integers(0, 200_000),
)


@settings(deadline=None, max_examples=60)
@given(
    frames=st.lists(_frame, max_size=5),
    sizes=st.lists(st.integers(1, 70_000), min_size=1, max_size=20),
    piece=st.integers(100, 100_000),
)
def test_any_frames_in_any_pieces_round_trip(
    frames: list[tuple[int, Any, int]], sizes: list[int], piece: int
) -> None:
    data, expected = _encoded([(kind, header, _pattern(size)) for kind, header, size in frames])
    handler = _Handler(piece)
    _feed(FrameDecoder(handler, Limits()), data, [*sizes, 5000])
    assert handler.seen == expected


def _preamble(**changed: Any) -> bytes:
    fields = {
        "magic": b"RNGD",
        "version": 1,
        "kind": 17,
        "flags": 0,
        "header": 0,
        "stream": 0,
        "payload": 0,
        "number": 0,
        "ack": 0,
    } | changed
    return PREAMBLE.pack(*fields.values())


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"GET / HTTP/1.1\r\nHost: example\r\nAccept: */*\r\n\r\n", "not ringd's protocol"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40), "not ringd's protocol"),
        (_preamble(version=2), "protocol version 2, ours is 1"),
        (_preamble(kind=99), "unknown frame kind 99"),
        (_preamble(flags=1), "unknown flags 0x1"),
        (_preamble(header=2**31), "over the limit 65536"),
        (_preamble(payload=2**63 - 1), "over the limit 16777216"),
        (_preamble(header=1) + b"\xc1", "not msgpack"),
        (_preamble(header=2) + b"\x01\x01", "not msgpack"),
    ],
)
def test_what_is_no_frame_is_refused_before_anything_is_allocated(data: bytes, text: str) -> None:
    decoder = FrameDecoder(_Handler(), Limits())
    with pytest.raises(FrameError, match=text):
        _feed(decoder, data, [])
    with pytest.raises(FrameError, match="lost its position"):
        decoder.next_buffers()


def test_before_the_peer_is_known_no_payload_and_no_large_header_is_taken() -> None:
    for data in (_preamble(payload=1), _preamble(header=1025)):
        with pytest.raises(FrameError, match="over the limit"):
            _feed(FrameDecoder(_Handler(), Limits.for_handshake()), data, [])


def test_a_payload_that_nobody_takes_breaks_the_stream() -> None:
    class Refusing(_Handler):
        def on_frame(self, *args: Any) -> None:
            return None

    data = encode(Kind.DATA, [1, 1, 0], payload_bytes=INLINE_BYTES + 1)
    with pytest.raises(FrameError, match="may not carry a payload"):
        _feed(FrameDecoder(Refusing(), Limits()), data, [])
