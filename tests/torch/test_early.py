"""What happens before the ranks have met: a daemon that is started ahead, a store looked for."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from ringd_client.torch import early
from tests.processes.harness import PATIENCE_S, ROOT, WIDER, environment, processes_of, until

SCRIPTS = Path(__file__).parent / "scripts"
Rank = Callable[[int, str], subprocess.Popen[str]]


@pytest.fixture
def rank(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rank]:
    """``rank(0, "way")``: a process that runs early.py; nothing is left of it after the test."""
    owner = request.node.name
    started: list[subprocess.Popen[str]] = []

    def start(number: int, way: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPTS / "early.py"), str(number), way],
            env=environment(owner, PYTHONPATH=f"{ROOT}:{ROOT / 'client'}"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
    until(lambda: not processes_of(owner), "nothing is left", 10 * WIDER)


def test_the_daemon_starts_before_the_other_ranks_are_there(rank: Rank) -> None:
    ranks = [rank(number, "meet") for number in (0, 1)]
    said = [process.communicate(timeout=PATIENCE_S)[0].split() for process in ranks]
    assert said == [["1", "child:", "[1.0,", "3.0,", "5.0]"]] * 2


def test_no_daemon_is_left_of_a_group_that_did_not_come_to_be(rank: Rank) -> None:
    said, _ = rank(1, "alone").communicate(timeout=PATIENCE_S)
    assert said.split() == ["RendezvousError", "0", "children"]


# ---------------------------------------------------------------- the store of rank 0

TIMEOUT = {"timeout": timedelta(seconds=300)}


def place(**other: str) -> dict[str, str]:
    return {"RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", **other}


def test_a_rank_that_comes_before_rank_0_goes_on_as_soon_as_the_store_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    with socket.socket() as store:
        store.bind(("127.0.0.1", 0))

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                store.listen()

        monkeypatch.setattr(early.time, "sleep", sleep)
        early._await_store(TIMEOUT, place(MASTER_PORT=str(store.getsockname()[1])))
        store.settimeout(10)
        store.accept()[0].close()
    assert len(waits) == 3
    assert max(waits) < 0.1


def test_it_gives_up_long_before_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        now = [0.0]
        monkeypatch.setattr(early.time, "monotonic", lambda: now[0])
        monkeypatch.setattr(early.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
        early._await_store(
            {"timeout": timedelta(seconds=10)}, place(MASTER_PORT=str(closed.getsockname()[1]))
        )
    assert now[0] == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("asked", "environ"),
    [
        ({}, place(RANK="0")),
        ({}, place(MASTER_ADDR="10.0.0.1")),
        ({}, place(TORCHELASTIC_USE_AGENT_STORE="True")),
        ({}, {"RANK": "1"}),
        ({"init_method": "file:///x"}, place()),
        ({"store": object()}, place()),
    ],
)
def test_elsewhere_nothing_is_looked_for(asked: dict[str, object], environ: dict[str, str]) -> None:
    assert early._store_of_rank_0(asked, environ) is None


def test_the_rank_may_be_an_argument() -> None:
    environ = {"MASTER_ADDR": "localhost", "MASTER_PORT": "7", "RANK": "0"}
    assert early._store_of_rank_0({"rank": 2}, environ) == ("localhost", 7)
    assert early._store_of_rank_0({"rank": -1}, environ) is None
