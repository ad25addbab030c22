"""Time that a process could not use does not count against it, within a bound."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from ringd.launch.starving import MAX_SHARE, left_s, parse_schedstat, wait_fairly
from ringd.sim.clock import VirtualLoop, run

PID = 17


@pytest.mark.parametrize(
    ("text", "kept_s"),
    [("5000 2500000000 7\n", 2.5), ("0 0 0", 0.0), ("", 0.0), ("1 2", 0.0), ("a b c", 0.0)],
)
def test_what_the_kernel_says_is_read(text: str, kept_s: float) -> None:
    assert parse_schedstat(text) == kept_s


@pytest.mark.parametrize(
    ("spent_s", "kept_s", "left"),
    [(0.5, 0.0, 1.5), (2.0, 0.0, 0.0), (2.0, 1.5, 1.5), (9.0, 60.0, 1.0), (10.0, 60.0, 0.0)],
)
def test_what_is_left_of_two_seconds(spent_s: float, kept_s: float, left: float) -> None:
    assert MAX_SHARE == 5.0
    assert left_s(2.0, spent_s, kept_s) == left


def waited_s(ends_after_s: float, kept_share: float) -> tuple[float, bool]:
    """How long ``wait_fairly`` waits for a process with 2 s of grace, and whether that ended."""
    loop = VirtualLoop(start_s=0.0)

    async def main() -> tuple[float, bool]:
        task = asyncio.ensure_future(asyncio.sleep(ends_after_s))
        await wait_fairly({task: PID}, 2.0, lambda _pid: loop.time() * kept_share)
        ended, at = task.done(), loop.time()
        task.cancel()
        return at, ended

    return run(main(), loop=loop)


@pytest.mark.parametrize(
    ("ends_after_s", "kept_share", "at_s", "ended"),
    [
        (1.0, 0.0, 1.0, True),
        (3.0, 0.0, 2.0, False),
        (3.0, 0.5, 3.0, True),  # half of the time is its own: 4 s are 2
        (5.0, 0.5, 4.0, False),
        (60.0, 1.0, 10.0, False),
    ],
)
def test_a_process_has_its_time_where_others_have_the_cpus(
    ends_after_s: float, kept_share: float, at_s: float, ended: bool
) -> None:
    at, done = waited_s(ends_after_s, kept_share)
    assert (pytest.approx(at, abs=0.05), done) == (at_s, ended)


def test_of_several_the_one_that_was_kept_longest_counts() -> None:
    loop = VirtualLoop(start_s=0.0)
    told = count()

    async def main() -> None:
        tasks = {asyncio.ensure_future(asyncio.sleep(s)): pid for s, pid in ((1.0, 1), (3.0, 2))}
        await wait_fairly(tasks, 2.0, lambda pid: 2.0 * next(told) if pid == 2 else 0.0)
        assert all(task.done() for task in tasks)

    run(main(), loop=loop)
