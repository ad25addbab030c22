"""Strangers at the rendezvous' port: shown out by name while the job forms and starts."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Awaitable, Callable

import pytest

from ringd.wire.frame import PREAMBLE, Kind, encode
from ringd.wire.handshake import DAEMON, RENDEZVOUS, Credentials, Dialer, Expectation
from tests.rendezvous.scene import JOB, Scene, TcpWorld

GARBAGE = {
    "http": b"GET / HTTP/1.1",
    "tls hello": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "magic and a length of 2^63-1": b"RNGD" + (2**63 - 1).to_bytes(8, "big"),
    "a payload of 2^63-1": PREAMBLE.pack(b"RNGD", 1, Kind.HELLO, 0, 0, 0, 2**63 - 1, 0, 0),
}


async def stranger(scene: Scene, data: bytes) -> tuple[str, bytes]:
    """Say ``data`` and listen until the end: our address, and what came."""
    peer, heard = "nobody", b""
    with contextlib.suppress(ConnectionResetError):
        reader, writer = await asyncio.open_connection(scene.address.host, scene.address.port)
        host, port = writer.get_extra_info("sockname")
        peer = f"{host}:{port}"
        writer.write(data)
        try:
            heard = await reader.read()
        finally:
            writer.close()
    return peer, heard


async def start_normally(scene: Scene) -> None:
    members = await scene.running()
    assert scene.service.status()["running"] == list(range(len(members)))


async def shown_out_within(
    limit_s: float, visit: Awaitable[tuple[str, bytes]]
) -> tuple[str, bytes]:
    async with asyncio.timeout(limit_s):
        return await visit


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_is_shown_out_within_a_second(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    scene = await Scene(TcpWorld(), 2).start()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(20):
        caplog.clear()
        peer, _heard = await shown_out_within(1, stranger(scene, GARBAGE[name]))
        assert [peer in m for m in caplog.messages] == [True]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 10 * 1024
    await start_normally(scene)
    await scene.close()


async def test_silence_is_shown_out_at_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    scene = await Scene(TcpWorld(), 2, handshake_timeout_s=0.2).start()
    loop = asyncio.get_running_loop()
    began = loop.time()
    peer, heard = await shown_out_within(5, stranger(scene, b""))
    assert loop.time() - began >= 0.2
    assert heard == b""
    assert [peer in m for m in caplog.messages if "no handshake" in m] == [True]
    await start_normally(scene)
    await scene.close()


async def test_half_a_handshake_is_shown_out_at_the_limit() -> None:
    scene = await Scene(TcpWorld(), 2, handshake_timeout_s=0.2).start()
    await shown_out_within(5, stranger(scene, hello(b"whatever")))
    await start_normally(scene)
    await scene.close()


async def test_a_crowd_of_silent_strangers_does_not_keep_daemons_out() -> None:
    scene = await Scene(TcpWorld(), 2, max_pending=8).start()
    crowd = [asyncio.ensure_future(stranger(scene, b"")) for _ in range(40)]
    await scene.until(lambda: sum(visit.done() for visit in crowd) >= 32)
    await start_normally(scene)
    await scene.close()
    await shown_out_within(5, _last(crowd))


async def _last(crowd: list[asyncio.Task[tuple[str, bytes]]]) -> tuple[str, bytes]:
    return (await asyncio.gather(*crowd))[-1]


def hello(secret: bytes) -> bytes:
    credentials = Credentials(JOB, 1, 2, DAEMON, secret)
    return Dialer(credentials, expect=Expectation(RENDEZVOUS), nonce=bytes(32)).begin()


@pytest.mark.parametrize(
    "behind",
    [
        encode(Kind.DATA, [1, 1, 0], payload_bytes=64) + bytes(64),
        encode(Kind.PROOF, {"mac": bytes(32)}),
        encode(Kind.ACCEPTED, {}),
        encode(Kind.CONTROL, {"type": "join"}),
    ],
)
async def test_rank_1_without_the_secret_gets_nothing_in_and_the_real_one_joins(
    behind: bytes,
) -> None:
    scene = await Scene(TcpWorld(), 2).start()
    await shown_out_within(1, stranger(scene, hello(b"guessed") + behind))
    assert scene.service.status()["joined"] == []
    await start_normally(scene)
    await scene.close()


async def test_a_recorded_handshake_is_refused() -> None:
    scene = await Scene(TcpWorld(), 2).start()
    member = scene.member(1)
    sent: list[bytes] = []
    dial = member.transport.dial

    async def tapped(*args: object, **kw: object) -> object:
        channel = await dial(*args, **kw)  # type: ignore[arg-type]
        send: Callable[..., None] = channel.send

        def tap(buffers: list[bytes], size_bytes: int) -> None:
            sent.extend(map(bytes, buffers))
            send(buffers, size_bytes)

        channel.send = tap  # type: ignore[method-assign,assignment]
        return channel

    member.transport.dial = tapped  # type: ignore[method-assign,assignment]
    await member.join()
    member.agent.leave()
    await scene.until(lambda: scene.service.status()["joined"] == [])
    _, heard = await shown_out_within(1, stranger(scene, b"".join(sent)))
    assert b"wrong job secret" in heard
    assert scene.service.status()["joined"] == []
    await start_normally(scene)
    await scene.close()
