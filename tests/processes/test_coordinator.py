"""The rendezvous is killed and comes back, or a daemon that held it is succeeded (ADR 16)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ringd.errors import DaemonLostError
from ringd.observe.status_view import ask
from tests.processes.harness import WIDER, Daemons, until
from tests.processes.job import command_for, start_job
from tests.processes.programs import basics, coordinator, faults

Make = Callable[..., Daemons]
Result = dict[str, Any]
AIM_S = 1.0 * WIDER
"""From the death of a process to the verdict on it."""


def await_progress(group: Daemons, rank: int = 0, operations: int = 20) -> None:
    first = group.status(rank)["completed"]
    until(lambda: group.status(rank)["completed"] >= first + operations, "operations complete")


def await_in_logs(group: Daemons, ranks: Sequence[int], text: str, times: int = 1) -> None:
    for rank in ranks:
        until(
            lambda rank=rank: group.log(f"daemon{rank}").count(text) >= times,  # type: ignore[misc]
            f"rank {rank} says {text!r}",
        )


def one_verdict(told: Sequence[Result], lost: int, since: float, within_s: float = AIM_S) -> str:
    """All have one verdict, with an id, that names the lost rank: the id."""
    for one in told:
        assert one["error"] == "PeerLostError", one
        assert one["fields"]["rank"] == lost, one
        assert one["fields"]["partial"] is False, one
        assert one["at"] - since < within_s, one
    (verdict,) = {one["fields"]["verdict"] for one in told}
    assert verdict
    return str(verdict)


def calls_go_on(group: Daemons, away: Callable[[], Any], back: Callable[[], Any]) -> None:
    """All connect and call, before the rendezvous is away, meanwhile, and when it is back."""
    group.connect()
    group.start(faults.reduce_until_error)
    await_progress(group)
    for happens, text in ((away, "is out of reach"), (back, "is back")):
        happens()
        await_in_logs(group, range(group.n), f"the rendezvous {text}")
        await_progress(group)


def all_sum(group: Daemons, ranks: Sequence[int] | None = None) -> None:
    everyone = list(range(group.n) if ranks is None else ranks)
    absent = [rank for rank in range(group.n) if rank not in everyone]
    group.start(faults.call, but=absent)
    for told in group.results(but=absent):
        assert told["error"] is None, told
        assert told["value"] == len(everyone)


@pytest.mark.parametrize(
    ("n", "victim"),
    [(3, 0), *(pytest.param(n, n - 1, marks=pytest.mark.slow) for n in (3, 4, 5))],
)
def test_no_call_fails_while_the_rendezvous_is_started_anew_and_it_judges_as_before(
    daemons: Make, n: int, victim: int
) -> None:
    group = daemons(n)
    calls_go_on(group, group.kill_rendezvous, group.restart_rendezvous)
    others = [rank for rank in range(n) if rank != victim]
    killed_at = group.kill_trainer(victim)
    verdict = one_verdict(group.results(but=victim), victim, killed_at)
    assert verdict.startswith("1.")
    group.disconnect(but=victim)
    assert others
    group.connect()
    all_sum(group)


def test_status_says_that_the_rendezvous_is_out_of_reach_and_who_could_not_be_asked(
    daemons: Make,
) -> None:
    group = daemons(3)
    group.connect()
    all_sum(group)
    group.kill_rendezvous()
    await_in_logs(group, range(3), "the rendezvous is out of reach")
    status = ask(group.socket(1), "group")
    assert status["self"]["rank"] == 1
    away = status["rendezvous"]
    assert (away["address"], away["in_reach"]) == (group.rendezvous, False)
    assert away["not_asked"] == [0, 2]
    assert away["cause"]
    again = ask(group.socket(1), "group")["rendezvous"]
    assert again["lost_for_s"] >= away["lost_for_s"] >= 0
    group.restart_rendezvous()
    await_in_logs(group, range(3), "the rendezvous is back")
    assert "self" not in ask(group.socket(1), "group")


def test_a_daemon_that_dies_while_the_rendezvous_is_away_is_named_when_it_is_back(
    daemons: Make,
) -> None:
    group = daemons(4)
    group.connect()
    all_sum(group)
    group.kill_rendezvous()
    group.kill_daemon(1)
    group.restart_rendezvous()
    for rank in (0, 2, 3):
        until(lambda rank=rank: group.status(rank)["broken"], f"rank {rank} knows of the loss")  # type: ignore[misc]
    group.start(faults.call, but=1)
    told = group.results(but=1)
    one_verdict(told, 1, told[0]["at"])
    assert "did not come back" in told[0]["text"]
    group.start(coordinator.reform, but=1)
    for change in group.results(but=1):
        assert change["error"] is None, change
        assert change["value"] == {"epoch": 2, "ranks": [0, 2, 3]}
    all_sum(group, [0, 2, 3])


@pytest.mark.parametrize("n", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4, 5))])
def test_a_rendezvous_that_stands_still_and_goes_on_costs_no_call(daemons: Make, n: int) -> None:
    group = daemons(n)
    stop, go_on = (partial(group.rendezvous_signal, s) for s in (signal.SIGSTOP, signal.SIGCONT))
    calls_go_on(group, stop, go_on)
    assert "daemon lost" not in group.log("rendezvous")
    killed_at = group.kill_trainer(n - 1)
    verdict = one_verdict(group.results(but=n - 1), n - 1, killed_at)
    assert verdict.startswith("1.")
    group.start(coordinator.reform, but=n - 1)
    for change in group.results(but=n - 1):
        assert change["error"] is None, change
        assert change["value"] == {"epoch": 2, "ranks": list(range(n - 1))}
    all_sum(group, range(n - 1))


def test_who_dies_while_the_rendezvous_stands_still_is_named_and_nobody_else(
    daemons: Make,
) -> None:
    group = daemons(3)
    group.connect()
    all_sum(group)
    group.rendezvous_signal(signal.SIGSTOP)
    group.kill_daemon(1)
    await_in_logs(group, (0, 2), "the rendezvous is out of reach")
    group.rendezvous_signal(signal.SIGCONT)
    for rank in (0, 2):
        until(lambda rank=rank: group.status(rank)["broken"], f"rank {rank} knows of the loss")  # type: ignore[misc]
    group.start(faults.call, but=1)
    told = group.results(but=1)
    one_verdict(told, 1, told[0]["at"])
    group.start(coordinator.reform, but=1)
    for change in group.results(but=1):
        assert change["value"] == {"epoch": 2, "ranks": [0, 2]}, change
    all_sum(group, [0, 2])


def test_while_the_rendezvous_stands_still_nobody_else_is_called_missing(daemons: Make) -> None:
    group = daemons(2)
    group.rendezvous_signal(signal.SIGSTOP)
    group.start(basics.try_connect, timeout_s=1.6)
    for told in group.results():
        assert told["error"] == "RendezvousError", told
        assert "is out of reach (it " in told["text"], told
    group.rendezvous_signal(signal.SIGCONT)
    group.connect()
    group.rendezvous_signal(signal.SIGSTOP)
    group.start(coordinator.reform, timeout_s=1.6)
    for told in group.results():
        assert told["error"] == "QuorumLostError", told
        assert "can't reach the rendezvous" in told["text"], told
    group.start(coordinator.reform)
    group.rendezvous_signal(signal.SIGCONT)
    for change in group.results():
        assert change["error"] is None, change
        assert change["value"] == {"epoch": 2, "ranks": [0, 1]}
    all_sum(group)


def test_trainers_that_attach_while_it_is_away_wait_for_it(daemons: Make) -> None:
    group = daemons(3)
    group.kill_rendezvous()
    await_in_logs(group, range(3), "the rendezvous is out of reach")
    told = group.trainer(0).do(basics.try_connect, timeout_s=1.0)
    assert told["error"] == "RendezvousError", told
    assert "is out of reach" in told["text"]
    group.start(basics.connect)
    group.restart_rendezvous()
    assert group.results() == [1, 1, 1]
    all_sum(group)


def test_survivors_reform_though_the_rendezvous_was_away_when_they_asked(daemons: Make) -> None:
    group = daemons(3)
    group.connect()
    all_sum(group)
    group.kill_rendezvous()
    await_in_logs(group, range(3), "the rendezvous is out of reach")
    group.start(coordinator.reform)
    group.restart_rendezvous()
    for change in group.results():
        assert change["error"] is None, change
        assert change["value"] == {"epoch": 2, "ranks": [0, 1, 2]}
    all_sum(group)


# A daemon holds it


class Embedded(Daemons):
    """Rank 0's daemon holds the rendezvous."""

    def __init__(self, n: int, folder: Path, owner: str, **settings: object) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self._at = f"127.0.0.1:{sock.getsockname()[1]}"
        super().__init__(n, folder, owner, **settings)

    def _spawn(self, part: str, **settings: object) -> subprocess.Popen[bytes]:
        if part != "rendezvous":
            return super()._spawn(part, **settings)
        more = {"rank": 0, "rendezvous": self._at, "socket": self.socket(0), **settings}
        return super()._spawn("daemon", embed_rendezvous=True, **more)

    def _log_path(self, name: str) -> Path:
        return super()._log_path("daemon0" if name == "rendezvous" else name)

    def _announced(self) -> str:
        assert self._service.poll() is None, self.log("daemon0")
        return self._at if f"listens on {self._at}" in self.log("daemon0") else ""

    def start_daemon(self, rank: int, **settings: object) -> None:
        if rank:
            super().start_daemon(rank, **settings)
        elif 0 not in self._daemons:
            self._daemons[0] = self._service
        else:
            self._daemons[0] = self._service = self._spawn("rendezvous", **settings)


@pytest.fixture
def embedded(daemons: Make, folder: Path, owner: str) -> Any:
    made: list[Embedded] = []

    def make(n: int) -> Embedded:
        group = Embedded(n, folder, owner)
        made.append(group)
        group.start_daemons()
        return group

    yield make
    for group in made:
        group.close()


@pytest.mark.parametrize(
    "n", [3, pytest.param(4, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)]
)
def test_when_the_daemon_that_held_it_is_killed_all_survivors_have_one_verdict_and_go_on(
    embedded: Make, n: int
) -> None:
    group = embedded(n)
    group.connect()
    group.start(faults.reduce_until_error)
    await_progress(group, 1)
    killed_at = time.monotonic()
    group.kill_daemon(0)
    assert group.trainers[0].result()["error"] == "DaemonLostError"
    one_verdict(group.results(but=0), 0, killed_at)
    others = list(range(1, n))
    group.start(coordinator.reform, but=0)
    for change in group.results(but=0):
        assert change["error"] is None, change
        assert change["value"] == {"epoch": 2, "ranks": others}
    all_sum(group, others)
    status = group.trainers[n - 1].do(coordinator.group_status)
    assert [report["rank"] for report in status["reports"]] == others
    assert status["epoch"] == 2
    # The daemon is started anew, and has the rendezvous again; its rank comes as a newcomer.
    group.start_daemon(0)
    await_in_logs(group, [1], "leaves the rendezvous to")
    group.kill_trainer(0)
    group.trainer(0).start(basics.connect)
    until(lambda: group.trainers[1].do(coordinator.newcomers) == [0], "rank 0 waits to be let in")
    group.start(coordinator.reform, but=0)
    for change in group.results(but=0):
        assert change["error"] is None, change
        assert change["value"] == {"epoch": 3, "ranks": [*others, 0]}
    assert group.trainers[0].result() == 3
    all_sum(group)


@pytest.mark.slow
def test_a_fresh_daemon_finds_the_successor_through_the_one_that_has_yielded(
    embedded: Make,
) -> None:
    """Rank 0's daemon stands still for so long that it is succeeded; then rank 3's is replaced."""
    group = embedded(4)
    group.connect()
    group.daemon_signal(0, signal.SIGSTOP)
    await_in_logs(group, [1], "holds the rendezvous from now on")
    # More than half of them are with rank 1: with as many each, rank 0 would keep it.
    for rank in (2, 3):
        await_in_logs(group, [1], f"rank {rank} joined")
    group.daemon_signal(0, signal.SIGCONT)
    await_in_logs(group, [0], "leaves the rendezvous to")
    group.kill_daemon(3)
    group.start_daemon(3)
    await_in_logs(group, [0], "the rendezvous has moved to")
    where = group.trainers[1]
    until(lambda: 3 in where.do(coordinator.group_status)["joined"], "rank 3 has joined")


def test_a_job_of_ringd_run_outlives_the_daemon_that_holds_its_rendezvous(
    folder: Path, owner: str
) -> None:
    command = command_for(coordinator.connect_and_reduce)
    job = start_job(3, command, folder, owner, "--embed-rendezvous", "--min-size", "2")
    facts = job.facts()
    sockets = [Path(rank["socket"]) for rank in facts["ranks"]]

    def at_work() -> bool:
        try:
            return bool(ask(sockets[1], "daemon")["completed"] > 20)
        except DaemonLostError:
            return False

    until(at_work, "operations complete")
    os.kill(facts["ranks"][0]["daemon_pid"], signal.SIGKILL)
    assert job.wait() == 0, job.err
    for rank in (1, 2):
        told = json.loads(job.of_rank(rank)[-1])
        assert told["error"] == "PeerLostError", told
        assert told["fields"]["rank"] == 0
        assert told["fields"]["partial"] is False
