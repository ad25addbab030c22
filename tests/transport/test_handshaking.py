"""The handshake over channels: in memory with exact times, over TCP with strangers' bytes."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from ringd.errors import HandshakeRefusedError
from ringd.sim.clock import VirtualLoop, run
from ringd.sim.weather import CalmWeather, SeededWeather
from ringd.transport.base import Address, Channel
from ringd.transport.connection import Connection, FrameCollector
from ringd.transport.handshaking import (
    HANDSHAKE_TIMEOUT_S,
    Establish,
    Reception,
    fresh_nonce,
    shake_hands_as_acceptor,
    shake_hands_as_dialer,
)
from ringd.transport.memory import MemoryNetwork, MemoryTransport
from ringd.transport.tcp import TcpTransport
from ringd.wire.frame import PREAMBLE, PREAMBLE_BYTES, Kind, Limits, encode, unpack_header
from ringd.wire.handshake import (
    DAEMON,
    RENDEZVOUS,
    Credentials,
    Expectation,
    Identity,
    Refusal,
)

SERVICE = Credentials("digits", -1, 2, RENDEZVOUS, b"the secret")
DAEMON_1 = Credentials("digits", 1, 2, DAEMON, b"the secret")
LOG = logging.getLogger("tests.handshaking")
FOREVER = 1e9
LOCALHOST = Address("127.0.0.1", 0)


class Ear(FrameCollector):
    """A final handler: keeps what comes, and says ``greeting`` at once."""

    def __init__(self, connection: Connection, greeting: int = 0) -> None:
        self.connection = connection
        self.heard: list[int] = []
        self.ended: list[BaseException | None] = []
        for number in range(greeting):
            connection.send_frame(encode(Kind.CONTROL, {"type": "n", "n": number}))

    def on_message(self, kind: int, header: Any) -> None:
        self.heard.append(header["n"])

    def on_closed(self, error: BaseException | None) -> None:
        self.ended.append(error)


class Raw:
    """A receiver that only sees bytes pass, and the end."""

    def __init__(self, channel: Channel) -> None:
        self.count = 0
        self.ended_with: list[BaseException | None] = []
        self._room = memoryview(bytearray(4096))
        channel.attach(self)

    def next_buffers(self) -> list[memoryview]:
        return [self._room]

    def received(self, count: int) -> None:
        self.count += count

    def drained(self) -> None:
        pass

    def ended(self, error: BaseException | None) -> None:
        self.ended_with.append(error)


class Ears:
    """Makes and keeps final handlers."""

    def __init__(self, greeting: int = 0) -> None:
        self.greeting = greeting
        self.all: list[Ear] = []
        self.peers: list[Identity] = []

    def establish(self, connection: Connection, peer: Identity) -> tuple[Ear, Limits]:
        self.all.append(Ear(connection, self.greeting))
        self.peers.append(peer)
        return self.all[-1], Limits.for_control()


def reception(establish: Establish, **more: Any) -> Reception:
    settings: dict[str, Any] = {
        "roles": frozenset({DAEMON}),
        "admit": lambda peer: None,
        "log": LOG,
        **more,
    }
    return Reception(SERVICE, establish=establish, **settings)


async def dial(
    channel: Channel,
    establish: Establish,
    credentials: Credentials = DAEMON_1,
    *,
    deadline: float = FOREVER,
) -> tuple[Connection, Identity]:
    return await shake_hands_as_dialer(
        channel,
        credentials,
        expect=Expectation(RENDEZVOUS),
        establish=establish,
        deadline=deadline,
        nonce=fresh_nonce(),
    )


class Pair:
    """Two hosts in memory, a listener on one; ``here`` and ``there`` are made by ``connect``."""

    def __init__(self, weather: Any = None) -> None:
        self.loop = VirtualLoop()
        self.network = MemoryNetwork(self.loop, weather or CalmWeather())
        self.accepted: asyncio.Queue[Channel] = asyncio.Queue()

    def run(self, main: Callable[[Pair], Coroutine[Any, Any, None]]) -> None:
        run(main(self), loop=self.loop)
        assert not self.loop.unhandled

    async def listen(self, on_channel: Callable[[Channel], None]) -> Address:
        transport = MemoryTransport(self.network, "b")
        return (await transport.listen(Address("b", 0), on_channel)).address

    async def dial(self, address: Address) -> Channel:
        return await MemoryTransport(self.network, "a").dial(address, deadline=FOREVER)


@pytest.mark.parametrize("seed", range(20))
def test_frames_sent_at_once_after_acceptance_reach_the_final_handlers(seed: int) -> None:
    async def main(pair: Pair) -> None:
        ours, theirs = Ears(greeting=5), Ears(greeting=7)
        door = reception(theirs.establish)
        channel = await pair.dial(await pair.listen(door.on_channel))
        connection, peer = await dial(channel, ours.establish)
        assert peer == SERVICE.identity
        assert theirs.peers == [DAEMON_1.identity]
        assert connection is ours.all[0].connection
        await asyncio.sleep(60)
        assert ours.all[0].heard == list(range(7))
        assert theirs.all[0].heard == list(range(5))
        assert door.pending == 0

    Pair(SeededWeather(random.Random(seed))).run(main)


def test_frames_in_the_same_read_as_the_acceptance_go_to_the_final_handler() -> None:
    """The acceptor's greeting leaves in the very callback that accepts, with no delay at all."""

    async def main(pair: Pair) -> None:
        ours, theirs = Ears(), Ears(greeting=3)
        door = reception(theirs.establish)
        channel = await pair.dial(await pair.listen(door.on_channel))
        await dial(channel, ours.establish)
        assert ours.all[0].heard == [0, 1, 2]  # before we had a chance to wait for them

    Pair(CalmWeather(fixed_delay_s=0.0)).run(main)


def test_both_sides_raise_the_same_refusal() -> None:
    async def main(pair: Pair) -> None:
        taken = Refusal("rank_taken", "rank 1 already taken by 10.0.0.1:4000")
        acceptor = shake_hands_as_acceptor
        channel = await pair.dial(await pair.listen(pair.accepted.put_nowait))
        dialling = asyncio.ensure_future(dial(channel, Ears().establish))
        there = await pair.accepted.get()
        with pytest.raises(HandshakeRefusedError) as ours:
            await acceptor(
                there,
                SERVICE,
                roles=frozenset({DAEMON}),
                admit=lambda peer: taken,
                establish=Ears().establish,
                deadline=FOREVER,
                nonce=fresh_nonce(),
            )
        with pytest.raises(HandshakeRefusedError) as theirs:
            await dialling
        assert str(ours.value) == f"refused {there.peer}: {taken.text}"
        assert str(theirs.value) == (
            f"{channel.peer} refused us: {taken.text}; end that one first, or take another rank"
        )
        for error in (ours.value, theirs.value):
            assert (error.reason, error.refused_by) == ("rank_taken", "acceptor")

    Pair().run(main)


def test_a_dialer_that_refuses_tells_the_acceptor(caplog: pytest.LogCaptureFixture) -> None:
    async def main(pair: Pair) -> None:
        door = reception(Ears().establish)
        channel = await pair.dial(await pair.listen(door.on_channel))
        with pytest.raises(HandshakeRefusedError, match="^refused .*wrong job secret"):
            await dial(channel, Ears().establish, replace(DAEMON_1, secret=b"guessed"))
        await asyncio.sleep(1)
        assert caplog.messages == [f"{channel.local} refused us: wrong job secret"]

    Pair().run(main)


@pytest.mark.parametrize(("deadline_s", "expected_s"), [(100.0, 5.0), (2.0, 2.0)])
def test_a_silent_acceptor_is_given_up_in_time(deadline_s: float, expected_s: float) -> None:
    async def main(pair: Pair) -> None:
        channel = await pair.dial(await pair.listen(pair.accepted.put_nowait))
        began = pair.loop.time()
        with pytest.raises(TimeoutError, match=f"{channel.peer} did not complete the handshake"):
            await dial(channel, Ears().establish, deadline=began + deadline_s)
        assert pair.loop.time() - began == pytest.approx(expected_s)

    Pair().run(main)


def test_a_silent_dialer_is_given_up_in_time(caplog: pytest.LogCaptureFixture) -> None:
    async def main(pair: Pair) -> None:
        door = reception(Ears().establish)
        channel = await pair.dial(await pair.listen(door.on_channel))
        raw = Raw(channel)
        await asyncio.sleep(4.9)
        assert (door.pending, raw.ended_with) == (1, [])
        await asyncio.sleep(0.2)
        assert (door.pending, raw.ended_with) == (0, [None])
        assert raw.count == 0
        assert len(caplog.messages) == 1
        assert str(channel.local) in caplog.messages[0]

    Pair().run(main)


def test_an_end_in_mid_handshake_is_a_connection_error() -> None:
    async def main(pair: Pair) -> None:
        for end in (Channel.close, Channel.abort):
            channel = await pair.dial(await pair.listen(pair.accepted.put_nowait))
            dialling = asyncio.ensure_future(dial(channel, Ears().establish))
            getattr(await pair.accepted.get(), end.__name__)()
            with pytest.raises(ConnectionError, match="during the handshake"):
                await dialling

    Pair().run(main)


def test_a_cancelled_handshake_ends_the_connection() -> None:
    async def main(pair: Pair) -> None:
        channel = await pair.dial(await pair.listen(pair.accepted.put_nowait))
        dialling = asyncio.ensure_future(dial(channel, Ears().establish))
        there = await pair.accepted.get()
        raw = Raw(there)
        await asyncio.sleep(1)
        assert raw.count > 0
        dialling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dialling
        await asyncio.sleep(1)
        assert len(raw.ended_with) == 1

    Pair().run(main)


def test_a_failure_to_make_the_handler_ends_the_connection_and_is_raised() -> None:
    def fail(connection: Connection, peer: Identity) -> Any:
        raise LookupError("no room")

    async def main(pair: Pair) -> None:
        theirs = Ears()
        door = reception(theirs.establish)
        channel = await pair.dial(await pair.listen(door.on_channel))
        with pytest.raises(LookupError, match="no room"):
            await dial(channel, fail)
        await asyncio.sleep(1)
        assert len(theirs.all[0].ended) == 1

    Pair().run(main)


def test_strangers_beyond_the_bound_push_out_the_oldest(caplog: pytest.LogCaptureFixture) -> None:
    async def main(pair: Pair) -> None:
        ears = Ears()
        door = reception(ears.establish, max_pending=3)
        address = await pair.listen(door.on_channel)
        channels = [await pair.dial(address) for _ in range(5)]
        assert door.pending == 3
        await dial(channels[-1], ears.establish)
        assert door.pending == 2
        assert [str(c.local) in m for c, m in zip(channels, caplog.messages, strict=False)] == [
            True,
            True,
        ]
        door.close()
        await asyncio.sleep(0)
        assert door.pending == 0

    Pair().run(main)


class Leaver(Ear):
    """Ends the connection at the first message."""

    def on_message(self, kind: int, header: Any) -> None:
        super().on_message(kind, header)
        self.connection.close()


def test_the_rest_of_a_read_in_which_a_handler_ended_the_connection_goes_to_nobody() -> None:
    async def main(pair: Pair) -> None:
        leavers: list[Leaver] = []

        def establish(connection: Connection, peer: Identity) -> tuple[Ear, Limits]:
            leavers.append(Leaver(connection))
            return leavers[0], Limits.for_control()

        channel = await pair.dial(await pair.listen(reception(establish).on_channel))
        await dial(channel, Ears(greeting=3).establish)
        await asyncio.sleep(1)
        assert leavers[0].heard == [0]
        assert leavers[0].ended == []

    Pair().run(main)


# Over TCP, with bytes that no machine of ours would send


async def say(port: int, data: bytes) -> tuple[bytes, float]:
    """What a stranger who says ``data`` hears until the end, and how long it took."""
    loop = asyncio.get_running_loop()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = loop.time()
    writer.write(data)
    try:
        heard = await reader.read()
    except ConnectionResetError:
        heard = b""
    writer.close()
    return heard, loop.time() - began


STRANGERS = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "http, long": b"GET / HTTP/1.1\r\nHost: " + b"x" * 200_000,
    "tls hello": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "one byte": b"\x00",
    "magic, then a length": b"RNGD" + (2**63 - 1).to_bytes(8, "big"),
    "a payload of 2^63-1": PREAMBLE.pack(b"RNGD", 1, Kind.HELLO, 0, 0, 0, 2**63 - 1, 0, 0),
    "a header of 2^32-1": PREAMBLE.pack(b"RNGD", 1, Kind.HELLO, 0, 2**32 - 1, 0, 0, 0, 0),
    "another version": PREAMBLE.pack(b"RNGD", 2, Kind.HELLO, 0, 0, 0, 0, 0, 0),
    "an unknown kind": PREAMBLE.pack(b"RNGD", 1, 99, 0, 0, 0, 0, 0, 0),
    "not msgpack": PREAMBLE.pack(b"RNGD", 1, Kind.HELLO, 0, 4, 0, 0, 0, 0) + b"\xc1\xc1\xc1\xc1",
    "a data frame": encode(Kind.DATA, [1, 2, 3]),
}


@pytest.mark.parametrize("name", STRANGERS)
async def test_a_stranger_is_closed_at_once_with_one_line(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    ears = Ears()
    door = reception(ears.establish)
    listener = await TcpTransport().listen(LOCALHOST, door.on_channel)
    heard, took_s = await say(listener.address.port, STRANGERS[name])
    assert took_s < HANDSHAKE_TIMEOUT_S
    listener.close()
    assert ears.all == []
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("refused 127.0.0.1:")
    if STRANGERS[name].startswith(b"RNGD"):
        text = unpack_header(heard[PREAMBLE_BYTES:])["text"]
        assert caplog.messages[0].endswith(text)
    else:
        assert heard == b""


async def test_another_version_is_named_to_the_peer() -> None:
    listener = await TcpTransport().listen(LOCALHOST, reception(Ears().establish).on_channel)
    heard, _ = await say(listener.address.port, STRANGERS["another version"])
    listener.close()
    refusal = {"code": "version", "text": "protocol version 2, this side's is 1"}
    assert unpack_header(heard[PREAMBLE_BYTES:]) == refusal


async def test_a_dialer_names_the_version_of_an_acceptor_that_is_ahead() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STRANGERS["another version"])
        heard.append(await reader.read())
        writer.close()
        done.set()

    heard: list[bytes] = []
    done = asyncio.Event()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    channel = await TcpTransport().dial(Address("127.0.0.1", port), deadline=FOREVER)
    with pytest.raises(HandshakeRefusedError, match="protocol version 2, this side's is 1") as info:
        await dial(channel, Ears().establish)
    assert (info.value.reason, info.value.refused_by) == ("version", "dialer")
    await done.wait()
    assert b"protocol version 2" in heard[0]
    server.close()


async def test_an_http_server_is_refused_by_the_dialer() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    channel = await TcpTransport().dial(Address("127.0.0.1", port), deadline=FOREVER)
    with pytest.raises(HandshakeRefusedError, match="not ringd's protocol: the first bytes are"):
        await dial(channel, Ears().establish)
    server.close()
