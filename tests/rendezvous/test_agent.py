"""An agent on its way to the rendezvous: patience, its end, and what can't be mended."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ringd.errors import AddressInUseError, RendezvousError
from ringd.transport.base import Address, Channel
from tests.rendezvous.scene import MemoryWorld, Recording, Scene, TcpWorld


def in_memory(act: Callable[[Scene], Awaitable[None]], world_size: int = 2) -> None:
    world = MemoryWorld()

    async def main() -> None:
        scene = Scene(world, world_size)
        try:
            await act(scene)
        finally:
            await scene.close()

    world.run(main())


def test_daemons_wait_for_a_rendezvous_that_comes_ten_seconds_late() -> None:
    async def act(scene: Scene) -> None:
        scene.address = Address("service", 7000)
        members = [scene.member(rank) for rank in range(2)]
        joining = asyncio.gather(*(member.join(30) for member in members))
        await asyncio.sleep(10)
        assert not joining.done()
        await scene.start()
        came = scene.elapsed_s()
        await joining
        assert scene.elapsed_s() - came < 2.1  # the longest pause between attempts
        await members[0].diary.heard("members")

    in_memory(act)


async def test_daemons_wait_for_a_late_rendezvous_over_tcp() -> None:
    scene = await Scene(TcpWorld(), 2).start()
    await scene.service.stop()
    joining = asyncio.gather(*(scene.member(rank).join() for rank in range(2)))
    await scene.until(lambda: not joining.done())
    scene.service = scene.make_service()
    await scene.start()
    await joining
    await scene.close()


def test_name_refusal_reset_and_silence_are_tried_again() -> None:
    async def act(scene: Scene) -> None:
        await scene.start()
        member = scene.member(0)
        member.transport.failures = [
            socket.gaierror(-2, "Name or service not known"),
            ConnectionRefusedError(111, "Connection refused"),
            ConnectionResetError(104, "Connection reset by peer"),
            TimeoutError(),
        ]
        assert await member.join() == Address("host0", 4000)
        assert member.agent.connected
        assert scene.elapsed_s() < 0.05 + 0.1 + 0.2 + 0.4 + 0.01

    in_memory(act)


def test_a_connection_that_ends_in_mid_handshake_is_tried_again() -> None:
    async def act(scene: Scene) -> None:
        cut: list[Channel] = []

        def hang_up(channel: Channel) -> None:
            cut.append(channel)
            channel.close()

        transport = scene.world.transport("service")
        listener = await transport.listen(Address("service", 7000), hang_up)
        scene.address = listener.address
        member = scene.member(0)
        joining = asyncio.ensure_future(member.join())
        await scene.until(lambda: len(cut) >= 3)
        listener.close()
        await scene.start()
        await joining

    in_memory(act)


@pytest.mark.parametrize("timeout_s", [0.01, 3.0, 12.0])
def test_at_the_deadline_the_last_cause_is_told(timeout_s: float) -> None:
    async def act(scene: Scene) -> None:
        scene.address = Address("service", 7000)
        member = scene.member(0)
        with pytest.raises(RendezvousError) as info:
            await member.join(timeout_s)
        assert timeout_s - 0.021 <= scene.elapsed_s() <= timeout_s
        error = info.value
        assert str(error).startswith(
            "rank 0 could not reach the rendezvous at service:7000 within "
        )
        assert "refused" in error.cause
        assert error.cause in str(error)
        assert error.attempts >= 1
        assert not member.agent.connected

    in_memory(act)


def test_a_rendezvous_that_never_says_a_word_is_an_error_at_the_deadline() -> None:
    async def act(scene: Scene) -> None:
        transport = scene.world.transport("service")
        listener = await transport.listen(Address("service", 7000), lambda channel: None)
        scene.address = listener.address
        with pytest.raises(RendezvousError, match="did not complete the handshake in time"):
            await scene.member(0).join(7)
        assert scene.elapsed_s() <= 7
        listener.close()

    in_memory(act)


def test_attempts_come_with_growing_and_jittered_pauses() -> None:
    async def act(scene: Scene) -> None:
        scene.address = Address("service", 7000)
        member = scene.member(0)
        times: list[float] = []
        dial = member.transport.dial

        async def timed(address: Address, *, deadline: float) -> Channel:
            times.append(scene.elapsed_s())
            return await dial(address, deadline=deadline)

        member.transport.dial = timed  # type: ignore[method-assign]
        with pytest.raises(RendezvousError):
            await member.join(20)
        pauses = [b - a for a, b in itertools.pairwise(times)]
        for number, pause in enumerate(pauses[:10]):
            longest = min(0.05 * 2**number, 2.0)
            assert longest / 2 <= pause <= longest + 0.001
        assert len({round(p / min(0.05 * 2**n, 2.0), 6) for n, p in enumerate(pauses[:10])}) > 5

    in_memory(act)


def test_advertising_loopback_to_another_host_is_refused_at_once() -> None:
    async def loopback(local: Address) -> Address:
        return Address("127.0.1.1", 4000)

    async def act(scene: Scene) -> None:
        await scene.start()
        member = scene.member(1)
        member.advertise = loopback  # type: ignore[method-assign]
        with pytest.raises(RendezvousError, match=r"rank 1 advertises loopback \(127.0.1.1:4000\)"):
            await member.join()
        assert scene.elapsed_s() < 2
        assert len(member.transport.dialled) == 1
        assert scene.service.status()["joined"] == []

    in_memory(act)


@pytest.mark.parametrize(
    ("failure", "expected", "text"),
    [
        (AddressInUseError("host0:4000 is in use"), AddressInUseError, "host0:4000 is in use"),
        (OSError(99, "no such address"), RendezvousError, "rank 0 can't listen .*no such address"),
    ],
)
def test_a_failure_to_listen_is_not_taken_for_an_unreachable_rendezvous(
    failure: Exception, expected: type[Exception], text: str
) -> None:
    async def fail(local: Address) -> Address:
        raise failure

    async def act(scene: Scene) -> None:
        await scene.start()
        member = scene.member(0)
        member.advertise = fail  # type: ignore[method-assign]
        with pytest.raises(expected, match=text):
            await member.join()
        assert scene.elapsed_s() < 1

    in_memory(act)


@pytest.mark.parametrize("after_s", [0.0, 0.00005, 0.0002, 0.0004, 0.0006, 0.001, 0.5])
def test_a_cancelled_join_leaves_no_connection_and_frees_the_place(after_s: float) -> None:
    async def act(scene: Scene) -> None:
        await scene.start()
        member = scene.member(0)
        joining = asyncio.ensure_future(member.join())
        await asyncio.sleep(after_s)
        if joining.cancel():
            with pytest.raises(asyncio.CancelledError):
                await joining
            assert not member.agent.connected
            await asyncio.sleep(1)
            assert scene.service.status()["joined"] == []
        else:
            assert member.agent.connected

    in_memory(act)


async def test_the_local_end_of_the_connection_is_what_is_advertised() -> None:
    scene = await Scene(TcpWorld(), 1).start()
    member = scene.member(0)
    assert await member.join() == Address("127.0.0.1", 4000)
    assert isinstance(member.transport, Recording)
    await scene.close()


def test_an_exception_of_the_daemon_ends_the_connection_and_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*args: Any) -> None:
        raise LookupError("a bug")

    async def act(scene: Scene) -> None:
        await scene.start()
        member = scene.member(0)
        member.diary.on_waiting = fail  # type: ignore[method-assign,assignment]
        await member.join()
        reason, *_ = await member.diary.heard("coordinator lost")
        assert reason == "a bug"
        assert any(record.exc_info for record in caplog.records)

    in_memory(act)


def test_a_connection_that_ends_as_soon_as_it_was_made_is_not_taken_for_a_return() -> None:
    async def act(scene: Scene) -> None:
        await scene.start()
        member = scene.member(0)
        await member.join()
        loop, claims = asyncio.get_running_loop(), 0

        def lose() -> None:
            member.transport.reset()
            member.agent.lose(ConnectionResetError("at once"))

        def claim() -> None:
            nonlocal claims
            claims += 1
            if claims == 1:  # before whoever dialled goes on
                loop.call_soon(lose)

        member.diary.on_claim = claim  # type: ignore[method-assign]
        lose()
        await member.diary.heard("coordinator back")
        assert member.agent.connected
        assert claims == 2

    in_memory(act)
