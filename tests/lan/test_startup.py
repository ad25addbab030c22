"""Hosts come together: in any order, twice on the same ports, and without strangers."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from ringd.lab.lab import Lab
from ringd.lab.wiring import ETC
from tests.lan.conftest import MakeGroup, MakeLab
from tests.lan.hosts import LanDaemons
from tests.processes.drills import all_sum
from tests.processes.harness import PATIENCE_S, WIDER, environment, until

PORT = 7000
NAME = "rendezvous.test"


def resolve(lab: Lab, name: str, address: str) -> None:
    """From now on all hosts know a name that they did not know."""
    for host in range(lab.spec.hosts):
        with (ETC / lab.spec.namespace(host) / "hosts").open("a") as file:
            file.write(f"{address} {name}\n")


def waits(job: LanDaemons, rank: int, cause: str) -> None:
    """Until a daemon has said why it can't reach the rendezvous yet."""
    until(lambda: cause in job.log(f"daemon{rank}"), f"rank {rank} says {cause!r}")


def test_d6_daemons_that_come_before_the_rendezvous_and_before_its_name_join_when_it_is_there(
    lab: MakeLab, group: MakeGroup
) -> None:
    made = lab("4")
    job = group(made, start=False, apart=True, port=PORT)
    job.kill_rendezvous()
    where, job.rendezvous = job.rendezvous, f"{NAME}:{PORT}"
    for rank in range(3):
        job.start_daemon(rank)
    for rank in range(3):
        waits(job, rank, "can't reach the rendezvous at rendezvous.test:7000 yet")
    resolve(made, NAME, made.address(3))
    for rank in range(3):
        waits(job, rank, "Connect call failed ('10.213.78.4', 7000)")
    job.rendezvous = where
    job.restart_rendezvous()
    for rank in range(3):
        job.await_daemon(rank)
    job.connect()
    all_sum(job)


def test_d6_a_name_that_is_never_known_is_the_cause_when_the_time_to_join_is_over(
    lab: MakeLab, group: MakeGroup
) -> None:
    job = group(lab("2"), start=False, join_timeout_s=2.0)
    begun = time.monotonic()
    job.rendezvous = f"{NAME}:{PORT}"
    job.start_daemon(0)
    assert job.daemon_exit(0) == 3
    assert time.monotonic() - begun < 2.0 + 1.0 * WIDER
    log = job.log("daemon0")
    assert "could not reach the rendezvous at rendezvous.test:7000 within" in log
    assert "attempts" in log
    assert "Traceback" not in log


def test_a_host_that_is_cut_off_at_the_start_joins_when_it_is_back(
    lab: MakeLab, group: MakeGroup
) -> None:
    made = lab("4")
    job = group(made, start=False, apart=True)
    made.cut([1])
    for rank in range(3):
        job.start_daemon(rank)
    for rank in (0, 2):
        job.await_daemon(rank, formed=False)
    made.heal([1])
    for rank in range(3):
        job.await_daemon(rank)
    job.connect()
    all_sum(job)


def test_a_job_may_be_started_anew_on_the_same_ports_at_once(
    lab: MakeLab, folder: Path, owner: str
) -> None:
    made = lab("4,delay=1ms")
    for number in range(3):
        place = folder / str(number)
        place.mkdir()
        # No pause in between: the ports' connections of before may be in TIME_WAIT.
        job = LanDaemons(made, place, owner, apart=True, port=PORT)
        try:
            job.start_daemons()
            job.connect()
            all_sum(job)
            for rank in range(3):
                assert job.status(rank)["address"] == f"{made.address(rank)}:{PORT}"
        finally:
            job.close()


def intruder(job: LanDaemons, host: int, rank: int, world_size: int) -> str:
    """A further daemon on a host; what it says when it is refused."""
    begun = time.monotonic()
    done = subprocess.run(
        [
            *(*job.lab.enter(host), sys.executable, "-m", "ringd", "daemon", "--rank", str(rank)),
            *("--world-size", str(world_size), "--rendezvous", job.rendezvous),
            *("--job-id", "test", "--secret-file", str(job.folder / "secret")),
            *("--socket", str(job.folder / "intruder"), "--join-timeout", "30"),
        ],
        env=environment(job.owner),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode in (2, 3), done.stderr
    assert time.monotonic() - begun < 15.0, "it is refused at once"
    assert "Traceback" not in done.stderr
    return done.stderr


def test_r5_a_rank_that_is_taken_or_does_not_exist_is_refused_and_the_others_start(
    lab: MakeLab, group: MakeGroup
) -> None:
    made = lab("4")
    job = group(made, start=False, apart=True)
    for rank in range(2):
        job.start_daemon(rank)
    for rank in range(2):
        job.await_daemon(rank, formed=False)
    taken = intruder(job, 2, rank=1, world_size=3)
    assert f"rank 1 already taken by {made.address(1)}:" in taken
    assert "on host1" in taken
    assert "rank is 5, allowed are 0 to 2" in intruder(job, 2, rank=5, world_size=3)
    sizes = "the daemon of rank 2 has 4, the rendezvous has 3"
    assert sizes in intruder(job, 2, 2, world_size=4)
    job.start_daemon(2)
    for rank in range(3):
        job.await_daemon(rank)
    job.connect()
    all_sum(job)
