"""The in-memory transport passes the suite in several weathers, and does what only it can do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from ringd.sim.clock import VirtualLoop, run
from ringd.sim.weather import CalmWeather, SeededWeather
from ringd.transport.base import Address, Channel, Listener, Receiver, Transport
from ringd.transport.memory import MemoryNetwork, MemoryTransport, TraceEvent, Weather
from tests.transport.conformance import (
    KIB,
    MORE_THAN_PIPES_HOLD,
    Reader,
    TransportConformance,
    connected,
    pattern,
    send,
)

T = TypeVar("T")
WEATHERS: dict[str, Callable[[], Weather]] = {
    "calm": CalmWeather,
    "no delay": lambda: CalmWeather(fixed_delay_s=0.0),
    **{f"seed {n}": lambda n=n: SeededWeather(random.Random(n)) for n in range(4)},  # type: ignore[misc]
}


class MemoryWorld:
    """Two hosts on a fresh network, on a loop with virtual time."""

    def __init__(self, weather: Weather, **options: Any) -> None:
        self.loop = VirtualLoop()
        self.network = MemoryNetwork(self.loop, weather, **options)
        self.loop.diagnose.append(self.network.describe)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        result = run(main, loop=self.loop)
        assert not self.loop.unhandled
        return result

    def transport(self, host: str) -> Transport:
        return MemoryTransport(self.network, host)

    def address(self, host: str) -> Address:
        return Address(host, 0)

    def nobody(self) -> Address:
        return Address("b", 7)

    @asynccontextmanager
    async def silence(self) -> AsyncIterator[Address]:
        self.transport("nowhere")
        self.network.crash("nowhere", "silence")
        yield Address("nowhere", 7)


@pytest.fixture
def calm() -> MemoryWorld:
    return MemoryWorld(CalmWeather())


class TestMemory(TransportConformance):
    """Pipes in process memory."""

    @pytest.fixture(params=WEATHERS, ids=str)
    def world(self, request: pytest.FixtureRequest) -> MemoryWorld:
        return MemoryWorld(WEATHERS[request.param]())


def test_the_classes_are_what_the_interface_asks_for(calm: MemoryWorld) -> None:
    async def main() -> None:
        async with connected(calm) as (near, _):
            channel: Channel = near
            receiver: Receiver = Reader()
            channel.attach(receiver)
        transport: Transport = MemoryTransport(calm.network, "a")
        listener: Listener = await transport.listen(Address("a", 0), lambda channel: None)
        assert (transport.name, listener.address.host) == ("memory", "a")

    calm.run(main())


@pytest.mark.parametrize("pipe_bytes", [1, 2, 100])
def test_a_tiny_pipe_takes_no_more_than_it_holds(pipe_bytes: int) -> None:
    async def main() -> None:
        async with connected(world) as (near, far):
            sender, reader = Reader(), Reader((10,))
            near.attach(sender)
            send(near, pattern(1000))
            assert near.backlog_bytes == 1000 - pipe_bytes
            far.attach(reader)
            await reader.until_bytes(1000)
            assert reader.data == pattern(1000)
            assert sender.drains == 1

    world = MemoryWorld(CalmWeather(), pipe_bytes=pipe_bytes)
    world.run(main())


def test_memory_that_is_reused_too_early_arrives_as_garbage(calm: MemoryWorld) -> None:
    async def main() -> bytes:
        async with connected(calm) as (near, far):
            memory = bytearray(b"x" * MORE_THAN_PIPES_HOLD)
            send(near, memory)
            memory[:] = b"y" * len(memory)
            reader = Reader()
            far.attach(reader)
            await reader.until_bytes(len(memory))
            return bytes(reader.data)

    data = calm.run(main())
    taken = calm.network.pipe_bytes
    assert data == b"x" * taken + b"y" * (MORE_THAN_PIPES_HOLD - taken)


def test_each_channel_counts_its_bytes(calm: MemoryWorld) -> None:
    async def main() -> None:
        async with connected(calm) as (near, far):
            reader = Reader()
            far.attach(reader)
            send(near, pattern(5000))
            await reader.until_bytes(5000)
            (a,), (b,) = calm.network.channels("a"), calm.network.channels("b", "a")
            assert (a.sent_bytes, a.received_bytes) == (5000, 0)
            assert (b.sent_bytes, b.received_bytes) == (0, 5000)

    calm.run(main())


class _Unwilling(Reader):
    """A receiver with a bug, that stops reading."""

    def next_buffers(self) -> list[memoryview]:
        raise RuntimeError("not now")


def test_the_pipe_gives_room_back_only_for_what_was_read(calm: MemoryWorld) -> None:
    async def main() -> None:
        async with connected(calm) as (near, far):
            reader = Reader((KIB,), limit=10 * KIB)

            def stop_reading() -> None:
                if len(reader.data) == 10 * KIB:
                    far.attach(_Unwilling())

            reader.on_bytes = stop_reading
            far.attach(reader)
            send(near, pattern(300 * KIB))
            await reader.until_bytes(10 * KIB)
            await asyncio.sleep(1)
            assert near.backlog_bytes == (300 - 256 - 10) * KIB

    run(main(), loop=calm.loop)
    assert all("not now" in text for text in calm.loop.unhandled)
    assert calm.loop.unhandled


def test_misuse_of_the_interface_is_told(calm: MemoryWorld) -> None:
    async def main() -> None:
        async with connected(calm) as (near, _):
            with pytest.raises(ValueError, match="announced"):
                near.send([b"four"], 5)
        with pytest.raises(OSError, match="can't listen"):
            await calm.transport("a").listen(Address("b", 0), lambda channel: None)

    calm.run(main())
    with pytest.raises(ValueError, match="passes nothing"):
        MemoryNetwork(calm.loop, CalmWeather(), pipe_bytes=0)


def _story(seed: int) -> list[TraceEvent]:
    """Traffic among three hosts in a seed's weather, with faults; its trace."""
    trace: list[TraceEvent] = []
    loop = VirtualLoop()
    weather = SeededWeather(random.Random(seed))
    network = MemoryNetwork(loop, weather, pipe_bytes=999, trace=trace)
    hosts = ("a", "b", "c")

    async def talk(host: str, peer: str) -> None:
        deadline = loop.time() + 60
        channel = await MemoryTransport(network, host).dial(Address(peer, 1), deadline=deadline)
        reader = Reader()
        channel.attach(reader)
        send(channel, pattern(5000))
        await reader.until(lambda: len(reader.data) >= 5000 or bool(reader.endings))

    def echo(channel: Channel) -> None:
        reader = Reader((300,))
        told = 0

        def answer() -> None:
            nonlocal told
            send(channel, bytes(reader.data[told:]))
            told = len(reader.data)

        reader.on_bytes = answer
        channel.attach(reader)

    async def main() -> None:
        for host in hosts:
            await MemoryTransport(network, host).listen(Address(host, 1), echo)
        async with asyncio.TaskGroup() as group:
            for host in hosts:
                for peer in hosts:
                    group.create_task(talk(host, peer))
            await asyncio.sleep(0.001)
            network.reset(("a", "b"))
            network.stall("c")
            await asyncio.sleep(0.5)
            network.resume("c")

    run(main(), loop=loop)
    return trace


@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    assert _story(seed) == _story(seed)


def test_other_seeds_give_other_traces() -> None:
    assert _story(1) != _story(2)
