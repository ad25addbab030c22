"""A session tells what its trainer is doing, from attaching to the end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringd.daemon.session import Session
from ringd.daemon.trainer_state import TrainerState
from tests.daemon.conftest import StandIn


@pytest.fixture
def trainer(tmp_path: Path, node: StandIn) -> Iterator[subprocess.Popen[bytes]]:
    """A program that attaches, and waits for something that nobody else calls."""
    file = tmp_path / "train.py"
    file.write_text(
        "import ringd_client\n"
        "comm = ringd_client.connect()\n"
        "def step():\n"
        "    comm.barrier_async().wait()\n"
        "step()\n"
    )
    paths = os.pathsep.join(p for p in sys.path if p)
    environment = {"RINGD_SOCKET": str(tmp_path / "0.sock"), "PYTHONPATH": paths}
    process = subprocess.Popen([sys.executable, str(file)], env={**os.environ, **environment})
    yield process
    process.kill()
    process.wait()


async def look(session: Session) -> TrainerState:
    told: asyncio.Future[TrainerState] = asyncio.get_running_loop().create_future()
    session.inspect(told.set_result)
    return await asyncio.wait_for(told, 10)


async def test_a_trainer_that_waits_for_its_daemon_is_said_to(
    node: StandIn, trainer: subprocess.Popen[bytes]
) -> None:
    session, _ = await asyncio.wait_for(node.attached, 60)
    waiting = ("ringd_client.wait (waiting)",)
    async with asyncio.timeout(10):
        while (seen := await look(session)).stack[:1] != waiting or seen.state != "sleeping":
            assert seen.pid == trainer.pid
    assert [frame.rpartition("/")[2] for frame in seen.stack[1:]] == [
        "train.py:4 in step",
        "train.py:5 in <module>",
    ]


async def test_a_trainer_that_is_killed_is_gone_also_for_who_asked_before(
    node: StandIn, trainer: subprocess.Popen[bytes]
) -> None:
    session, _ = await asyncio.wait_for(node.attached, 60)
    told: list[TrainerState] = []
    session.inspect(told.append)
    trainer.kill()
    assert (await asyncio.wait_for(node.ended, 10))[0] == "died"
    async with asyncio.timeout(10):  # its socket is closed a moment before it is gone
        while (seen := await look(session)).state != "gone":
            assert seen.pid == trainer.pid
    assert seen == TrainerState(trainer.pid, "gone", ())
    assert [early.pid for early in told] == [trainer.pid]
