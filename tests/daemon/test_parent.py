"""A daemon that somebody's program started ends after it, but not before who still needs it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ringd.config.settings import Settings
from ringd.daemon import main


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until it is killed."""
    waits = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("looks", [0, 3])
async def test_it_ends_after_its_parent_once_nobody_else_needs_it(
    looks: int, parent: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "PARENT_GRACE_S", 0.0)
    monkeypatch.setattr(main, "LOOK_EVERY_S", 0.01)
    asked: list[bool] = []

    def is_needed() -> bool:
        assert parent.poll() is not None
        asked.append(len(asked) < looks)
        return asked[-1]

    settings = Settings(parent_pid=parent.pid)
    serving = asyncio.create_task(main.until_told(asyncio.Event().wait, settings, is_needed))
    await asyncio.sleep(0)
    assert not serving.done()
    assert asked == []
    parent.kill()
    await asyncio.wait_for(serving, 20.0)
    assert asked == [True] * looks + [False]


async def test_it_ends_at_once_if_its_parent_is_gone_already(
    parent: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "PARENT_GRACE_S", 0.0)
    parent.kill()
    parent.wait()
    settings = Settings(parent_pid=parent.pid)
    await asyncio.wait_for(main.until_told(asyncio.Event().wait, settings), 20.0)
