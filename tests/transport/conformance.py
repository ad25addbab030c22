"""What every transport must do: one suite, inherited by one test class per transport.

A test is a coroutine that runs between two hosts, "a" and "b", of a ``World``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, TypeVar

import pytest

from ringd.errors import AddressInUseError
from ringd.transport.base import Address, Channel, Transport

T = TypeVar("T")

PATIENCE_S = 10.0
KIB = 1024
MIB = 1024 * KIB
MORE_THAN_PIPES_HOLD = 24 * MIB
"""Above what a kernel buffers on loopback between two sockets (about 10 MiB)."""


class World(Protocol):
    """One kind of network with two hosts, and the loop that it runs on."""

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a test's coroutine to its end on a fresh loop."""

    def transport(self, host: str) -> Transport:
        """The transport of host "a" or "b"."""

    def address(self, host: str) -> Address:
        """Where ``host`` can listen, port 0."""

    def nobody(self) -> Address:
        """An address of host "b" where nothing listens."""

    def silence(self) -> AbstractAsyncContextManager[Address]:
        """An address that never answers."""


class Reader:
    """Collects what comes, in buffers whose sizes the test chooses."""

    def __init__(self, sizes: Iterable[int] = (64 * KIB,), *, limit: int | None = None) -> None:
        self.sizes = tuple(sizes)
        self.limit = limit
        self.data = bytearray()
        self.endings: list[BaseException | None] = []
        self.drains = 0
        self.calls = 0
        self.changed = asyncio.Event()
        self.on_bytes: Callable[[], None] = lambda: None
        self._memory = bytearray(sum(self.sizes))

    def next_buffers(self) -> Sequence[memoryview]:
        self.calls += 1
        self._memory[:] = bytes(len(self._memory))
        rest = memoryview(self._memory)
        if self.limit is not None:
            assert self.limit > len(self.data), "asked for more than the limit"
            rest = rest[: self.limit - len(self.data)]
        views = []
        for size in self.sizes:
            views.append(rest[:size])
            rest = rest[size:]
        return [view for view in views if view]

    def received(self, count: int) -> None:
        self.calls += 1
        assert 1 <= count <= len(self._memory)
        self.data += self._memory[:count]
        self.changed.set()
        self.on_bytes()

    def drained(self) -> None:
        self.calls += 1
        self.drains += 1
        self.changed.set()

    def ended(self, error: BaseException | None) -> None:
        self.calls += 1
        self.endings.append(error)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def until_bytes(self, count: int) -> None:
        await self.until(lambda: len(self.data) >= count)

    async def until_end(self) -> BaseException | None:
        await self.until(lambda: bool(self.endings))
        return self.endings[0]


def pattern(size: int, step: int = 1) -> bytes:
    """Bytes whose order shows: no period that a buffer's size could hide."""
    words = size // 4 + 1
    return b"".join((i * step % 2**32).to_bytes(4, "little") for i in range(words))[:size]


def big_pattern(size: int) -> bytes:
    """The same for large sizes: a block of a prime size, over and over."""
    block = pattern(65_521)
    return (block * (size // len(block) + 1))[:size]


def send(channel: Channel, *buffers: bytes | bytearray | memoryview) -> None:
    channel.send(buffers, sum(map(len, buffers)))


@asynccontextmanager
async def connected(world: World) -> AsyncIterator[tuple[Channel, Channel]]:
    """The two ends of a channel: host a's, which dialled, and host b's."""
    accepted: asyncio.Queue[Channel] = asyncio.Queue()
    listener = await world.transport("b").listen(world.address("b"), accepted.put_nowait)
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    near = await world.transport("a").dial(listener.address, deadline=deadline)
    async with asyncio.timeout(PATIENCE_S):
        far = await accepted.get()
    listener.close()
    try:
        yield near, far
    finally:
        near.abort()
        far.abort()


async def settle() -> None:
    """Long enough for what is on its way to arrive."""
    await asyncio.sleep(0.1)


class TransportConformance:
    """The suite; a subclass gives the fixture ``world``."""

    def test_bytes_arrive_in_order_and_whole(self, world: World) -> None:
        async def main() -> None:
            async with connected(world) as (near, far):
                reader = Reader()
                far.attach(reader)
                pieces = [pattern(size, step=size) for size in (1, 2, 3, 1000, 70_000, 5)]
                for piece in pieces:
                    send(near, piece)
                expected = b"".join(pieces)
                await reader.until_bytes(len(expected))
                assert reader.data == expected

        world.run(main())

    def test_addresses_name_both_ends(self, world: World) -> None:
        async def main() -> None:
            async with connected(world) as (near, far):
                assert (near.local, near.peer) == (far.peer, far.local)
                assert near.peer.host == world.address("b").host
                assert near.peer.port > 0

        world.run(main())

    def test_gathered_buffers_of_all_kinds_arrive_as_one_stream(self, world: World) -> None:
        async def main() -> None:
            async with connected(world) as (near, far):
                reader = Reader()
                far.attach(reader)
                send(near, b"head", bytearray(b"-body"), memoryview(b"..-tail")[2:])
                await reader.until_bytes(14)
                assert reader.data == b"head-body-tail"

        world.run(main())

    def test_bytes_sent_before_anybody_attached_are_not_lost(self, world: World) -> None:
        async def main() -> None:
            async with connected(world) as (near, far):
                send(near, b"early")
                await settle()
                reader = Reader()
                far.attach(reader)
                await reader.until_bytes(5)
                assert reader.data == b"early"

        world.run(main())

    def test_several_views_are_filled_in_their_order(self, world: World) -> None:
        async def main() -> None:
            async with connected(world) as (near, far):
                reader = Reader((3, 1, 5, 2))
                expected = pattern(2000)
                send(near, expected)
                await settle()
                far.attach(reader)
                await reader.until_bytes(len(expected))
                assert reader.data == expected

        world.run(main())

    def test_a_big_transfer_passes_small_buffers(self, world: World) -> None:
        async def main() -> None:
            async with connected(world) as (near, far):
                reader = Reader((7, 13))
                expected = pattern(200 * KIB)
                far.attach(reader)
                send(near, expected)
                await reader.until_bytes(len(expected))
                assert reader.data == expected

        world.run(main())

    def test_both_directions_run_at_once(self, world: World) -> None:
        async def main() -> None:
            async with connected(world) as (near, far):
                readers = Reader(), Reader()
                there, back = big_pattern(6 * MIB), big_pattern(5 * MIB)[::-1]
                near.attach(readers[0])
                far.attach(readers[1])
                send(near, there)
                send(far, back)
                await readers[1].until_bytes(len(there))
                await readers[0].until_bytes(len(back))
                assert readers[0].data == back
                assert readers[1].data == there

        world.run(main())

    def test_what_the_transport_took_at_once_is_no_backlog(self, world: World) -> None:
        async def main() -> None:
            async with connected(world) as (near, far):
                far.attach(Reader())
                reader = Reader()
                near.attach(reader)
                memory = bytearray(b"small")
                send(near, memory)
                assert near.backlog_bytes == 0
                await settle()
                assert reader.drains == 0, "there was no backlog to drain"

        world.run(main())

    def test_a_slow_reader_makes_a_backlog_that_drains(self, world: World) -> None:
        async def main() -> None:
            async with connected(world) as (near, far):
                sender, reader = Reader(), Reader((MIB,))
                near.attach(sender)
                expected = big_pattern(MORE_THAN_PIPES_HOLD)
                send(near, expected)
                await settle()
                assert 0 < near.backlog_bytes < len(expected)
                assert sender.drains == 0
                far.attach(reader)
                await sender.until(lambda: sender.drains > 0)
                assert near.backlog_bytes == 0
                await reader.until_bytes(len(expected))
                assert reader.data == expected
                assert sender.drains == 1

        world.run(main())

    def test_sends_behind_a_backlog_keep_their_order(self, world: World) -> None:
        async def main() -> None:
            async with connected(world) as (near, far):
                near.attach(Reader())
                big = big_pattern(MORE_THAN_PIPES_HOLD)
                send(near, big)
                send(near, b"second")
                send(near, b"-", b"third")
                reader = Reader((MIB,))
                far.attach(reader)
                expected = big + b"second-third"
                await reader.until_bytes(len(expected))
                assert reader.data == expected

        world.run(main())

    def test_an_owned_backlog_frees_the_callers_memory(self, world: World) -> None:
        async def main() -> None:
            async with connected(world) as (near, far):
                near.attach(Reader())
                expected = big_pattern(MORE_THAN_PIPES_HOLD)
                memory = bytearray(expected)
                send(near, memoryview(memory))
                assert near.backlog_bytes > 0
                near.own_backlog()
                memory[:] = bytes(len(memory))
                reader = Reader((MIB,))
                far.attach(reader)
                await reader.until_bytes(len(expected))
                assert reader.data == expected

        world.run(main())

    def test_close_flushes_and_then_ends_the_stream_once(self, world: World) -> None:
        async def main() -> None:
            async with connected(world) as (near, far):
                expected = big_pattern(MORE_THAN_PIPES_HOLD)
                send(near, expected)
                near.close()
                reader = Reader((MIB,))
                far.attach(reader)
                assert await reader.until_end() is None
                assert reader.data == expected
                await settle()
                assert reader.endings == [None]

        world.run(main())

    def test_close_flushes_though_the_peer_still_sends(self, world: World) -> None:
        async def main() -> None:
            async with connected(world) as (near, far):
                expected = big_pattern(2 * MIB)
                send(near, expected)
                near.close()
                await settle()
                send(far, b"this crosses the goodbye")
                await settle()
                reader = Reader((MIB,))
                far.attach(reader)
                await reader.until_end()
                assert reader.data == expected
                assert reader.endings == [None]

        world.run(main())

    def test_abort_resets_the_peer_once(self, world: World) -> None:
        async def main() -> None:
            async with connected(world) as (near, far):
                reader = Reader()
                far.attach(reader)
                send(near, b"a few bytes")
                await reader.until_bytes(11)
                near.abort()
                assert isinstance(await reader.until_end(), ConnectionResetError)
                await settle()
                assert len(reader.endings) == 1

        world.run(main())

    def test_an_end_that_came_before_anybody_attached_is_told(self, world: World) -> None:
        async def main() -> None:
            async with connected(world) as (near, far):
                near.abort()
                await settle()
                reader = Reader()
                far.attach(reader)
                assert isinstance(await reader.until_end(), ConnectionResetError)

        world.run(main())

    def test_a_send_into_a_reset_channel_raises_nothing_and_tells_the_end(
        self, world: World
    ) -> None:
        async def main() -> None:
            async with connected(world) as (near, far):
                near.abort()
                await settle()
                send(far, b"into the void")
                reader = Reader()
                far.attach(reader)
                assert isinstance(await reader.until_end(), ConnectionError)
                send(far, b"again")
                assert far.backlog_bytes == 0

        world.run(main())

    def test_an_end_that_a_send_met_before_anybody_attached_is_told(self, world: World) -> None:
        async def main() -> None:
            async with connected(world) as (near, far):
                near.abort()
                await settle()
                send(far, b"into the void")
                await settle()
                reader = Reader()
                far.attach(reader)
                assert isinstance(await reader.until_end(), ConnectionError)
                await settle()
                assert len(reader.endings) == 1

        world.run(main())

    @pytest.mark.parametrize("how", ["close", "abort"])
    def test_no_callback_comes_after_close_or_abort(self, world: World, how: str) -> None:
        async def main() -> None:
            async with connected(world) as (near, far):
                reader = Reader((16,))
                near.attach(reader)
                reader.on_bytes = getattr(near, how)
                send(far, pattern(1000))
                await reader.until_bytes(1)
                calls = reader.calls
                send(far, pattern(1000))
                await settle()
                far.abort()
                await settle()
                assert reader.calls == calls

        world.run(main())

    def test_no_callback_comes_after_a_close_with_a_backlog(self, world: World) -> None:
        async def main() -> None:
            async with connected(world) as (near, far):
                reader = Reader((16,))
                near.attach(reader)
                expected = big_pattern(MORE_THAN_PIPES_HOLD)
                send(near, expected)
                reader.on_bytes = near.close
                send(far, pattern(1000))
                await reader.until_bytes(1)
                calls = reader.calls
                peer = Reader((MIB,))
                far.attach(peer)
                await peer.until_end()
                assert peer.data == expected
                assert reader.calls == calls

        world.run(main())

    def test_attach_hands_over_between_two_bytes(self, world: World) -> None:
        async def main() -> None:
            async with connected(world) as (near, far):
                first, second = Reader((10, 20), limit=1234), Reader()

                def hand_over() -> None:
                    if len(first.data) == 1234:
                        far.attach(second)

                first.on_bytes = hand_over
                far.attach(first)
                expected = pattern(50_000)
                send(near, expected)
                await second.until_bytes(len(expected) - 1234)
                near.close()
                await second.until_end()
                assert first.data + second.data == expected
                assert first.endings == []

        world.run(main())

    def test_a_closed_listener_refuses_and_its_channels_live_on(self, world: World) -> None:
        async def main() -> None:
            deadline = asyncio.get_running_loop().time() + PATIENCE_S
            async with connected(world) as (near, far):
                with pytest.raises(ConnectionRefusedError):
                    await world.transport("a").dial(near.peer, deadline=deadline)
                reader = Reader()
                far.attach(reader)
                send(near, b"alive")
                await reader.until_bytes(5)

        world.run(main())

    def test_a_dial_to_where_nothing_listens_is_refused(self, world: World) -> None:
        async def main() -> None:
            deadline = asyncio.get_running_loop().time() + PATIENCE_S
            with pytest.raises(ConnectionRefusedError):
                await world.transport("a").dial(world.nobody(), deadline=deadline)

        world.run(main())

    def test_a_dial_to_silence_ends_at_its_deadline(self, world: World) -> None:
        async def main() -> None:
            async with world.silence() as address:
                loop = asyncio.get_running_loop()
                deadline = loop.time() + 0.3
                with pytest.raises(TimeoutError):
                    await world.transport("a").dial(address, deadline=deadline)
                # uvloop rounds timers to milliseconds, so one may fire just before its time.
                assert -0.002 < loop.time() - deadline < 1.0

        world.run(main())

    def test_a_dial_after_its_deadline_times_out(self, world: World) -> None:
        async def main() -> None:
            async with world.silence() as address:
                deadline = asyncio.get_running_loop().time() - 1.0
                with pytest.raises(TimeoutError):
                    await world.transport("a").dial(address, deadline=deadline)

        world.run(main())

    def test_a_port_in_use_is_told_with_host_and_port(self, world: World) -> None:
        async def main() -> None:
            transport = world.transport("b")
            listener = await transport.listen(world.address("b"), lambda channel: None)
            assert listener.address.port > 0
            with pytest.raises(AddressInUseError, match=str(listener.address)):
                await transport.listen(listener.address, lambda channel: None)
            listener.close()
            listener.close()
            again = await transport.listen(listener.address, lambda channel: None)
            again.close()

        world.run(main())

    def test_close_and_abort_may_be_repeated(self, world: World) -> None:
        async def main() -> None:
            async with connected(world) as (near, far):
                reader = Reader()
                far.attach(reader)
                near.close()
                near.close()
                assert await reader.until_end() is None
                near.abort()
                near.close()
                far.close()
                far.abort()

        world.run(main())
