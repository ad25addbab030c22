"""A daemon follows its trainer from core to core, where cores are scarce."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ringd.daemon.nearness import Nearness

CORES = sorted(os.sched_getaffinity(0))
SPIN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print("there", flush=True)
while os.getppid() == int(sys.argv[2]): pass
"""
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="it takes two cores to move")


def peers(n: int, *, far: bool = False) -> dict[int, Any]:
    return {rank: SimpleNamespace(far=far) for rank in range(n)}


CROWD = peers(len(CORES))


@pytest.fixture
def trainer() -> Iterator[int]:
    """Runs on the last core, and this thread was on the first one."""
    command = [sys.executable, "-c", SPIN, str(CORES[-1]), str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        os.sched_setaffinity(0, {CORES[0]})
        yield process.pid
        os.sched_setaffinity(0, CORES)
        process.kill()


def test_it_moves_to_the_trainers_core_and_may_run_on_all_of_them_still(trainer: int) -> None:
    os.sched_setaffinity(0, CORES)
    near = Nearness(trainer, CROWD)
    moves = 0
    while not moves:  # the scheduler may have done it itself just now
        os.sched_setaffinity(0, {CORES[0]})
        os.sched_setaffinity(0, CORES)
        near._next = 0.0
        near.look()
        moves = near.moves
    assert sorted(os.sched_getaffinity(0)) == CORES
    near.close()


def test_it_looks_again_only_after_a_while(trainer: int) -> None:
    near = Nearness(trainer, CROWD)
    near.look()
    due = near._next
    near.look()
    assert near._next == due
    near.close()


@pytest.mark.parametrize(
    "links", [{}, peers(len(CORES), far=True)], ids=["alone", "each on its own host"]
)
def test_with_two_cores_for_each_rank_it_stays(trainer: int, links: dict[int, Any]) -> None:
    os.sched_setaffinity(0, CORES)
    near = Nearness(trainer, links)
    near.look()
    assert near.moves == 0
    near.close()


def test_a_core_that_is_not_ours_is_left_to_others(trainer: int) -> None:
    near = Nearness(trainer, CROWD)
    near.look()
    assert near.moves == 0
    assert os.sched_getaffinity(0) == {CORES[0]}
    near.close()


def test_a_trainer_that_is_gone_or_out_of_sight_is_not_followed() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        near = Nearness(process.pid, CROWD)
    for one in (near, Nearness(0, CROWD)):
        one.look()
        assert one.moves == 0
        one.close()
        one.look()
