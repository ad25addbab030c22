"""The TCP transport passes the suite on asyncio's own loop and on uvloop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
import uvloop

from ringd.transport.base import Address, Transport
from tests.transport.conformance import TransportConformance

tcp = pytest.importorskip("ringd.transport.tcp", exc_type=ModuleNotFoundError)

T = TypeVar("T")
LOCALHOST = "127.0.0.1"


class TcpWorld:
    """Both hosts are this one."""

    def __init__(self, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._loop_factory = loop_factory

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=self._loop_factory) as runner:
            return runner.run(main)

    def transport(self, host: str) -> Transport:
        transport: Transport = tcp.TcpTransport()
        return transport

    def address(self, host: str) -> Address:
        return Address(LOCALHOST, 0)

    def nobody(self) -> Address:
        with socket.socket() as sock:
            sock.bind((LOCALHOST, 0))
            return Address(LOCALHOST, sock.getsockname()[1])

    @asynccontextmanager
    async def silence(self) -> AsyncIterator[Address]:
        """A listener whose queue is seen to be full: the kernel drops further SYNs."""
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            sock = stack.enter_context(socket.socket())
            sock.bind((LOCALHOST, 0))
            sock.listen(0)
            with contextlib.suppress(TimeoutError):
                for _ in range(8):
                    filler = stack.enter_context(socket.socket())
                    filler.setblocking(False)
                    await asyncio.wait_for(loop.sock_connect(filler, sock.getsockname()), 0.2)
            yield Address(LOCALHOST, sock.getsockname()[1])


async def test_keepalive_and_user_timeout_are_set_on_both_ends_of_every_connection() -> None:
    transport = tcp.TcpTransport()
    accepted: list[Any] = []
    listener = await transport.listen(Address(LOCALHOST, 0), accepted.append)
    dialled = await transport.dial(
        listener.address, deadline=asyncio.get_running_loop().time() + 10.0
    )
    while not accepted:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    for channel in (dialled, accepted[0]):
        option = channel._sock.getsockopt
        assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle_s = option(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        every_s = option(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        probes = option(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
        assert idle_s + every_s * probes <= 30, "a path that died without a word shows in 30 s"
        assert option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
        assert option(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        channel.abort()
    listener.close()


@pytest.mark.parametrize("source", [LOCALHOST, "127.0.0.2"])
async def test_a_short_path_has_cubic_and_another_the_systems_choice(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two addresses the kernel's round trip of the handshake decides."""
    if tcp.refused_congestion("cubic"):
        pytest.skip("this kernel does not let us have cubic")
    with socket.socket() as untouched:
        default = _congestion(untouched)
    assert await _congestions(source) == ["cubic", "cubic"]
    monkeypatch.setattr(tcp, "NEAR_RTT_US", 0)
    expected = "cubic" if source == LOCALHOST else default
    assert await _congestions(source) == [expected, expected]


async def _congestions(source: str) -> list[str]:
    """Of both ends of a connection that leaves from ``source``."""
    accepted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    listener = await tcp.TcpTransport().listen(Address(LOCALHOST, 0), accepted.set_result)
    dialled = await tcp.TcpTransport(source=source).dial(
        listener.address, deadline=asyncio.get_running_loop().time() + 5
    )
    channels = [dialled, await asyncio.wait_for(accepted, 5)]
    found = [_congestion(channel._sock) for channel in channels]
    for channel in channels:
        channel.abort()
    listener.close()
    return found


def _congestion(sock: socket.socket) -> str:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


class TestTcp(TransportConformance):
    """Real sockets on loopback."""

    @pytest.fixture(
        params=[asyncio.SelectorEventLoop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
    )
    def world(self, request: pytest.FixtureRequest) -> TcpWorld:
        return TcpWorld(request.param)
