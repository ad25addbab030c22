"""The loop with virtual time: it jumps, it is exact, and it says when nothing can happen."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ringd.sim.clock import LimitReached, SimulationError, StandStill, VirtualLoop, run


def test_an_hour_of_sleep_takes_no_time() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        await asyncio.sleep(3600)
        return loop.time() - begin

    begin = time.monotonic()
    assert run(main()) == 3600
    assert time.monotonic() - begin < 5


def test_timers_fire_at_their_time_exactly_and_in_order() -> None:
    fired: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        # Neighbouring floats: a resolution above one ulp would merge them.
        times = [1000.1, 1000.1 + 2e-13, 1000.3, 4000.7, 80_000.1]
        for when in reversed(times):
            loop.call_at(when, lambda: fired.append(loop.time()))
        loop.call_at(1000.2, lambda: fired.append(-1)).cancel()
        await asyncio.sleep(79_500)
        assert fired == times

    run(main())


@pytest.mark.parametrize("start_s", [0.0, 1000.0, 1e9])
def test_timeouts_end_at_their_deadline_to_the_bit(start_s: float) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for timeout_s in (0.1, 1 / 3, 7.0):
            deadline = loop.time() + timeout_s
            with pytest.raises(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await asyncio.Event().wait()
            assert loop.time() == deadline

    run(main(), loop=VirtualLoop(start_s=start_s))


def test_the_tools_of_asyncio_work() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(100), 2)
        results = await asyncio.gather(asyncio.sleep(1, "a"), asyncio.sleep(2, "b"))
        assert list(results) == ["a", "b"]
        event, queue, lock = asyncio.Event(), asyncio.Queue[int](), asyncio.Lock()
        loop.call_later(1, event.set)
        await event.wait()
        async with asyncio.TaskGroup() as group, lock:
            group.create_task(queue.put(5))
            assert await queue.get() == 5
        future = loop.create_future()
        loop.call_soon_threadsafe(future.set_result, "from our own thread")
        assert await asyncio.shield(future) == "from our own thread"
        task = asyncio.create_task(asyncio.sleep(50), name="sleeper")
        loop.call_later(1, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.get_name() == "sleeper"
        assert loop.time() == begin + 6

    run(main())


def test_async_generators_are_shut_down() -> None:
    closed: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            for number in range(10):
                yield number
                await asyncio.sleep(1)
        finally:
            await asyncio.sleep(1)
            closed.append("closed")

    held: list[Any] = []

    async def main() -> None:
        held.append(numbers())
        async for number in held[0]:
            if number == 3:
                return

    run(main())
    assert closed == ["closed"]


def test_a_deadlock_is_found_at_once_and_says_who_waits_where() -> None:
    async def wait_for_ever(event: asyncio.Event) -> None:
        await event.wait()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait_for_ever(asyncio.Event()), name="rank-0")
            group.create_task(wait_for_ever(asyncio.Event()), name="rank-1")

    loop = VirtualLoop()
    loop.diagnose.append(lambda: "  and the network is quiet")
    with pytest.raises(StandStill) as caught:
        run(main(), loop=loop)
    text = str(caught.value)
    line = wait_for_ever.__code__.co_firstlineno + 1
    for rank in (0, 1):
        assert f"rank-{rank}: tests/sim/test_clock.py:{line} in wait_for_ever > " in text
    assert "asyncio/locks.py" in text
    assert "3 tasks pending" in text
    assert "and the network is quiet" in text


def test_a_cancelled_timer_does_not_hide_a_deadlock() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(200):
            loop.call_later(10, print).cancel()
        await loop.create_future()

    loop = VirtualLoop()
    with pytest.raises(StandStill):
        run(main(), loop=loop)
    assert loop.time() < 1010


def test_a_loop_goes_on_after_a_stand_still() -> None:
    loop = VirtualLoop()
    future = loop.create_future()
    with pytest.raises(StandStill):
        loop.run_until_complete(future)
    future.set_result(5)
    assert loop.run_until_complete(future) == 5
    loop.close()


def test_virtual_time_is_bounded() -> None:
    async def heartbeat() -> None:
        for _ in itertools.count():
            await asyncio.sleep(1)

    loop = VirtualLoop(time_limit_s=100)
    with pytest.raises(LimitReached, match="past the limit") as caught:
        run(heartbeat(), loop=loop)
    assert "in heartbeat" in str(caught.value)
    assert loop.time() == 1100


def test_steps_are_bounded_where_time_stands() -> None:
    async def spin() -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    with pytest.raises(LimitReached, match="more than 1000 steps") as caught:
        run(spin(), loop=VirtualLoop(step_limit=1000))
    assert "in spin" in str(caught.value)


def test_what_needs_real_time_is_refused_by_name() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(SimulationError, match="no threads"):
            await asyncio.to_thread(time.sleep, 0)
        with pytest.raises(SimulationError, match="no threads"):
            await loop.getaddrinfo("localhost", 80)
        with pytest.raises(SimulationError, match="file 0"):
            loop.add_reader(0, print)
        with pytest.raises(SimulationError, match="file 1"):
            loop.add_writer(1, print)
        with pytest.raises(SimulationError, match="SIGINT"):
            loop.add_signal_handler(2, print)

    run(main())


def test_another_thread_is_refused() -> None:
    errors: list[Exception] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def call() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except SimulationError as exc:
                errors.append(exc)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    run(main())
    assert len(errors) == 1


def test_exceptions_in_callbacks_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        def fail() -> None:
            raise ValueError("in a callback")

        asyncio.get_running_loop().call_soon(fail)
        await asyncio.sleep(1)

    loop = VirtualLoop()
    run(main(), loop=loop)
    assert len(loop.unhandled) == 1
    assert "ValueError('in a callback')" in loop.unhandled[0]


_ORDER_OF_A_SET = """
import asyncio
from ringd.sim.clock import run

async def main():
    ballast = [bytearray(i) for i in range({ballast})]
    tasks = {{asyncio.create_task(asyncio.sleep(0), name=str(i)) for i in range(50)}}
    futures = {{asyncio.get_running_loop().create_future() for i in range(50)}}
    numbered = {{f: i for i, f in enumerate(sorted(futures, key=hash))}}
    print([t.get_name() for t in tasks], [numbered[f] for f in futures])

run(main())
"""


def test_sets_of_tasks_have_the_same_order_in_every_process() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", _ORDER_OF_A_SET.format(ballast=ballast)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for ballast in (0, 777, 5000)
    }
    assert len(outputs) == 1
