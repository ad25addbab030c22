"""How far a bench is where nobody has a terminal, and what it leaves when it is ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringd.bench.table import PLAIN_EVERY_S, progress
from ringd.errors import DaemonLostError
from ringd.observe import dump_view
from tests.processes.harness import environment, processes_of, until


def test_without_a_terminal_a_line_comes_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with progress(100, clock=lambda: now) as step:
        for _ in range(100):
            now += PLAIN_EVERY_S / 32
            step("ringd all_reduce n=2 1024 B")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "ringd bench: 100 measurements; starting workers"
    assert lines[1] == "ringd bench: 32 of 100: ringd all_reduce n=2 1024 B"
    assert len(lines) == 4


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ringd-test-") as name:
        yield Path(name)


def epoch_of(runtime: Path) -> int:
    """The epoch of the job that runs there; 0: none yet."""
    for path in runtime.glob("run-*/0.sock"):
        try:
            return int(dump_view.ask(path)["epoch"])
        except DaemonLostError:
            return 0
    return 0


@pytest.mark.serial
def test_ended_by_sigterm_it_leaves_the_last_failure_alone(folder: Path) -> None:
    kept = folder / "ringd/last-failure"
    kept.mkdir(parents=True, mode=0o700)
    (kept / "flight-rank0-epoch1.json").write_text("of a failure")
    owner = f"bench-{folder.name}"
    options = ["--sizes", "1K", "-n", "2", "--peers", "none", "--rounds", "100000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ringd", "bench", *options],
        env=environment(owner, XDG_RUNTIME_DIR=folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: epoch_of(folder / "ringd"), "the workers are connected", 30.0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    until(lambda: not processes_of(owner), "nothing is left", 30.0)
    assert [path.read_text() for path in kept.iterdir()] == ["of a failure"]
