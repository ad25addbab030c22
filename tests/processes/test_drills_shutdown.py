"""Programs that end at once: the data arrives, or the exit code is not 0 and says why.

The daemons stand; each round has fresh processes, which run one program and end.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes.harness import PATIENCE_S, ROOT, WIDER, Daemons, Program, environment
from tests.processes.job import command_for, start_job
from tests.processes.programs import drills

ROUNDS = 2
Standing = Callable[[int], Daemons]


@dataclass(frozen=True)
class Ended:
    """How a program's process ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def play(standing: Standing, owner: str) -> Callable[..., list[Ended]]:
    """``play(3, program, argument=…)``: a process for each rank, all at once; how they ended."""

    def run(n: int, program: Program, **arguments: object) -> list[Ended]:
        group = standing(n)
        group.disconnect()
        return _ended([_start(group, rank, owner, program, arguments) for rank in range(n)])

    return run


def _start(
    group: Daemons, rank: int, owner: str, program: Program, arguments: dict[str, object]
) -> subprocess.Popen[str]:
    place = {"RINGD_SOCKET": group.socket(rank), "RINGD_RANK": rank}
    return subprocess.Popen(
        command_for(program, **arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environment(owner, **place),
        text=True,
    )


def _ended(processes: Sequence[subprocess.Popen[str]]) -> list[Ended]:
    try:
        told = [process.communicate(timeout=PATIENCE_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [Ended(p.returncode, out, err) for p, (out, err) in zip(processes, told, strict=True)]


def all_well(ended: Sequence[Ended]) -> None:
    """Every process ended with 0, and in silence."""
    for rank, one in enumerate(ended):
        assert one.code == 0, f"rank {rank}: exit code {one.code}\n{one.out}\n{one.err}"
        assert one.err == "", f"rank {rank}: {one.err}"


@pytest.mark.parametrize("count", [10, 1_000_000])
def test_a_message_sent_just_before_the_end_arrives(
    play: Callable[..., list[Ended]], count: int
) -> None:
    for _ in range(ROUNDS):
        ended = play(3, drills.send_and_exit, count=count)
        all_well(ended)
        assert f"received {count}\n" in ended[1].out


@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_barrier_just_before_the_end_completes_on_every_rank(
    play: Callable[..., list[Ended]], n: int
) -> None:
    for _ in range(ROUNDS):
        all_well(play(n, drills.barrier_and_exit))


@pytest.mark.parametrize("n", [2, 4])
def test_a_rank_that_ends_at_once_is_named_by_those_who_call(
    play: Callable[..., list[Ended]], n: int
) -> None:
    for _ in range(ROUNDS):
        ended = play(n, drills.one_is_gone_at_once)
        all_well(ended)
        for one in ended[1:]:
            error, lost, took_s = one.out.splitlines()[0].split()
            assert (error, lost) == ("PeerLostError", "0")
            assert float(took_s) < 1.0 * WIDER


def test_d4_a_rank_that_comes_a_second_later_finds_the_one_that_ends_at_once(
    play: Callable[..., list[Ended]],
) -> None:
    ended = play(2, drills.late, delay_s=1.0)
    all_well(ended)
    assert ended[0].out == ended[1].out, "both were in the same epoch"


def test_a_rank_that_fails_gives_the_job_its_exit_code_and_its_reason(
    folder: Path, owner: str
) -> None:
    job = start_job(3, command_for(drills.fail_after, calls=5, victim=1), folder, owner)
    assert job.wait(2 * PATIENCE_S) == 1
    said = [line for line in (job.out + job.err).splitlines() if "is lost" in line]
    assert any("the loss is not a number" in line for line in said), job.out + job.err
