"""Coming together: who is missing, who comes late, who listens and never answers."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processes.harness import PATIENCE_S, WIDER, Daemons, Trainer, environment, until
from tests.processes.programs import basics, faults

Standing = Callable[[int], Daemons]
Make = Callable[..., Daemons]
SLACK_S = 1.0 * WIDER

PROVOKES_COMPLAINTS = True


def test_t5a_a_missing_daemon_is_named_within_the_timeout(daemons: Make) -> None:
    group = daemons(2, start=False)
    group.start_daemons(but=[1])
    told = group.trainer(0).do(basics.try_connect, timeout_s=3.0)
    assert told["error"] == "RendezvousError"
    assert 2.9 < told["took_s"] < 3.0 + SLACK_S
    assert "1 of 2" in told["text"]
    assert "missing rank 1 (no daemon)" in told["text"]
    assert told["fields"]["missing"] == [1]
    assert told["fields"]["missing_daemons"] == [1]


def test_t5a_a_missing_trainer_is_named_within_the_timeout_and_may_still_come(
    daemons: Make,
) -> None:
    group = daemons(2)
    told = group.trainer(0).do(basics.try_connect, timeout_s=1.0)
    assert told["error"] == "RendezvousError"
    assert told["took_s"] < 1.0 + SLACK_S
    assert "1 of 2" in told["text"]
    assert "missing rank 1 (daemon is there, no trainer)" in told["text"]
    assert told["fields"]["missing_trainers"] == [1]
    group.connect()
    assert [told["value"] for told in group.do(faults.call)] == [2.0] * 2


def test_a_trainer_that_comes_late_and_is_not_let_in_hears_who_runs(daemons: Make) -> None:
    group = daemons(2)
    group.connect()
    group.kill_trainer(1)
    told = group.trainer(1).do(basics.try_connect, timeout_s=1.0)
    assert told["error"] == "RendezvousError"
    assert "rank 1 was not let in within 1 s: rank 0 is in epoch 1," in told["text"]
    assert told["fields"] == {"rank": 1, "epoch": 1, "running": [0]}


def test_a_rendezvous_that_serves_once_ends_when_the_job_has_run_and_nobody_is_left(
    daemons: Make,
) -> None:
    group = daemons(2, once=True, heartbeat_s=0.1, dead_after_s=0.5)
    for rank in (0, 1):
        group.end_daemon(rank)
    time.sleep(1.0)  # twice what it would wait for them
    group.start_daemons()  # no epoch had begun: it is still there
    group.connect()
    group.disconnect()
    group.end_daemon(0)
    group.end_daemon(1)
    assert group.rendezvous_exit() == 0


def test_t5a_a_daemon_gives_up_at_its_join_timeout_and_says_who_is_missing(daemons: Make) -> None:
    group = daemons(2, start=False, join_timeout_s=2.0)
    begun = time.monotonic()
    group.start_daemon(0)
    assert group.daemon_exit(0) == 3
    assert time.monotonic() - begun < 2.0 + SLACK_S
    log = group.log("daemon0")
    assert "1 of 2 daemons joined within 2 s: missing rank 1" in log
    assert "Traceback" not in log


@pytest.fixture
def mute() -> Iterator[socket.socket]:
    """Accepts TCP connections (in its queue) and never sends a byte."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:
        yield server


def test_t5c_a_rendezvous_that_accepts_and_never_answers_is_given_up_in_time(
    mute: socket.socket, folder: Path, owner: str
) -> None:
    port = mute.getsockname()[1]
    begun = time.monotonic()
    daemon = subprocess.run(
        [
            *(sys.executable, "-m", "ringd", "daemon", "--rank", "0", "--world-size", "2"),
            *("--rendezvous", f"127.0.0.1:{port}", "--join-timeout", "2"),
        ],
        env=environment(owner, RINGD_SECRET="s" * 32, RINGD_SOCKET=folder / "0.sock"),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert daemon.returncode == 3, daemon.stderr
    assert time.monotonic() - begun < 2.0 + SLACK_S
    assert f"127.0.0.1:{port}" in daemon.stderr
    assert "Traceback" not in daemon.stderr


def test_t5c_a_peer_that_accepts_and_never_answers_ends_the_call_at_its_deadline(
    mute: socket.socket, daemons: Make
) -> None:
    # Rank 1 tells the others the mute socket's address instead of its own.
    port = mute.getsockname()[1]
    group = daemons(2, start=False)
    group.start_daemon(0)
    group.start_daemon(1, advertise=f"127.0.0.1:{port}")
    for rank in range(2):
        group.await_daemon(rank)
    group.connect()
    group.start(faults.call, timeout_s=2.0)
    for told in group.results():
        assert told["error"] in ("CollectiveTimeoutError", "PeerLostError")
        assert told["took_s"] < 2.0 + SLACK_S


def test_d4_connect_returns_only_when_all_are_there_so_a_late_rank_succeeds_too(
    standing: Standing,
) -> None:
    group = standing(2)
    group.disconnect()
    group.trainer(0).start(faults.connect_and_leave, timeout_s=60.0)
    until(lambda: group.status(0)["trainer"], "rank 0 waits in connect")
    late = group.trainer(1).do(faults.connect_and_leave, timeout_s=60.0)
    early = group.trainer(0).result()
    assert early["error"] is None
    assert late["error"] is None
    assert early["value"] == late["value"], "the same epoch"


def test_d4_a_rank_whose_peer_gave_up_waits_for_the_next_attempt(standing: Standing) -> None:
    group = standing(2)
    group.disconnect()
    assert group.trainer(0).do(basics.try_connect, timeout_s=0.3)["error"] == "RendezvousError"
    assert group.trainer(1).do(basics.try_connect, timeout_s=0.3)["error"] == "RendezvousError"
    epochs = group.do(basics.one_round)
    assert epochs[0] == epochs[1]


def test_a_trainer_that_comes_early_waits_for_the_next_epoch(standing: Standing) -> None:
    group = standing(2)
    group.start(basics.disconnect, but=1)
    group.results(but=1)
    group.trainer(0).start(basics.one_round)
    until(lambda: group.status(0)["trainer"], "rank 0 waits for the next epoch")
    old = group.status(1)["epoch"]
    group.trainer(1).do(basics.disconnect)
    assert group.trainer(1).do(basics.one_round) == old + 1
    assert group.trainer(0).result() == old + 1


def test_a_second_trainer_of_a_rank_is_refused_and_the_first_is_not_disturbed(
    standing: Standing, tmp_path: Path, owner: str
) -> None:
    group = standing(2)
    second = Trainer(0, tmp_path / "log", owner, RINGD_SOCKET=group.socket(0))
    told = second.do(basics.try_connect, timeout_s=30.0)
    assert told["error"] == "RendezvousError"
    assert told["took_s"] < SLACK_S
    assert f"rank 0 has a trainer already, process {group.trainer(0).pid}" in told["text"]
    assert second.end() == 0
    assert [told["value"] for told in group.do(faults.call)] == [2.0] * 2


def test_a_trainer_without_a_daemon_is_told_in_time(tmp_path: Path, owner: str) -> None:
    nobody = Trainer(0, tmp_path / "log", owner, RINGD_SOCKET=tmp_path / "nobody.sock")
    told = nobody.do(basics.try_connect, timeout_s=0.5)
    assert told["error"] == "DaemonLostError"
    assert told["took_s"] < 0.5 + SLACK_S
    assert "nobody.sock" in told["text"]
    nobody.end()


def test_d1_three_hundred_rounds_of_connect_barrier_and_close_on_standing_daemons(
    standing: Standing,
) -> None:
    group = standing(4)
    group.disconnect()
    epoch = group.status(0)["epoch"]
    for told in group.do(basics.come_and_go, rounds=300, within_s=110):
        assert told["after"] == told["before"], "no descriptor and no thread is left"
    assert group.status(0)["epoch"] == epoch + 301


def test_d1_eight_rounds_with_fresh_processes_that_all_exit_with_zero(standing: Standing) -> None:
    group = standing(4)
    group.disconnect()
    for _ in range(8):
        for rank in list(group.trainers):
            assert group.dismiss(rank) == 0
        assert len(set(group.do(basics.one_round))) == 1
    for rank in range(4):
        log = group.trainer(rank).log
        assert group.dismiss(rank) == 0
        assert "Traceback" not in log


@pytest.mark.parametrize("part", ["daemon", "rendezvous"])
def test_a_port_in_use_is_named_and_the_exit_code_is_two(
    mute: socket.socket, standing: Standing, folder: Path, owner: str, part: str
) -> None:
    group = standing(2)
    port = mute.getsockname()[1]
    run = subprocess.run(
        [
            *(sys.executable, "-m", "ringd", part, "--world-size", "2"),
            *("--bind", "127.0.0.1", "--port", str(port)),
            *(("--rank", "0", "--rendezvous", group.rendezvous) if part == "daemon" else ()),
        ],
        env=environment(
            owner,
            RINGD_SECRET_FILE=group.folder / "secret",
            RINGD_JOB_ID="test",
            RINGD_SOCKET=folder / "0.sock",
        ),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert run.returncode == 2, run.stderr
    assert f"127.0.0.1:{port} is in use" in run.stderr
    assert "Traceback" not in run.stderr
