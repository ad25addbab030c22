"""A process's end is seen as such, whatever its children hold open."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator

import pytest

from ringd.daemon.watch import ProcessWatch


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


async def test_the_end_is_told_once_and_only_then(sleeper: subprocess.Popen[bytes]) -> None:
    ended = asyncio.Event()
    watch = ProcessWatch(asyncio.get_running_loop(), sleeper.pid, ended.set)
    assert watch.watching
    await asyncio.sleep(0)
    assert not ended.is_set()
    sleeper.kill()
    await asyncio.wait_for(ended.wait(), 10)
    assert not watch.watching


async def test_a_process_that_was_gone_before_is_told_too(
    sleeper: subprocess.Popen[bytes],
) -> None:
    sleeper.kill()
    sleeper.wait()
    ended = asyncio.Event()
    ProcessWatch(asyncio.get_running_loop(), sleeper.pid, ended.set)
    await asyncio.wait_for(ended.wait(), 10)


async def test_a_watch_that_was_closed_tells_nothing_and_leaves_no_descriptor(
    sleeper: subprocess.Popen[bytes],
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    told = []
    watch = ProcessWatch(asyncio.get_running_loop(), sleeper.pid, lambda: told.append(True))
    watch.close()
    watch.close()
    assert len(os.listdir("/proc/self/fd")) == before
    sleeper.kill()
    sleeper.wait()
    await asyncio.sleep(0)
    assert told == []


async def test_a_process_of_another_namespace_can_not_be_watched() -> None:
    assert not ProcessWatch(asyncio.get_running_loop(), 0, lambda: None).watching
