"""Ctrl-C and SIGTERM: the exit code, no stack trace, and nothing that is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processes.harness import MARK, processes_of, until

pytestmark = pytest.mark.serial
ENDS_WITHIN_S = 60.0
BENCH = ("bench", "--quick", "-n", "2", "--sizes", "1M", "--rounds", "1000")
RENDEZVOUS = ("rendezvous", "--world-size", "2", "--bind", "127.0.0.1")
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start commands, each in a process group of its own."""
    started: list[subprocess.Popen[str]] = []

    def begin(*args: str) -> subprocess.Popen[str]:
        env = {**os.environ, "RINGD_SECRET": "a secret of the tests", "TMPDIR": str(tmp_path)}
        env[MARK] = str(tmp_path)
        command = [sys.executable, "-m", "ringd", *args]
        with (tmp_path / "err").open("w") as err:
            process = subprocess.Popen(
                command, stdout=err, stderr=err, text=True, env=env, cwd=tmp_path,
                start_new_session=True,
            )  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


def said(folder: Path) -> str:
    return (folder / "err").read_text()


def at_work(folder: Path, command: str) -> None:
    """Until it has come so far that there is something to end."""
    if command == "bench":
        until(lambda: len(list(folder.glob("ringd-bench-*/*"))) >= 2, "workers run", ENDS_WITHIN_S)
    elif command == "demo":
        until(lambda: list(folder.glob("ringd-demo-*/log")), "a job runs", ENDS_WITHIN_S)
    else:
        until(lambda: "listens on" in said(folder), "it listens", ENDS_WITHIN_S)


AT_IMPORT = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
sys.argv[1:] = {args!r}
from ringd.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("module", "args"),
    [
        ("typer", ["--help"]),
        ("ringd.cli.options", ["--help"]),
        ("ringd.cli.status_cmd", ["status"]),
        ("rich", ["run", "--help"]),
        ("ringd.launch.run", ["run", "-n", "2", "--", "true"]),
        ("ringd.daemon.main", ["daemon", "--rank", "0", "--world-size", "1"]),
    ],
)
def test_an_interrupt_while_a_command_is_loaded_leaves_no_trace(
    tmp_path: Path, module: str, args: list[str]
) -> None:
    code = AT_IMPORT.format(module=module, args=args)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path,
        timeout=ENDS_WITHIN_S, env={**os.environ, "RINGD_SECRET": "a secret of the tests"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr in ("", "ringd: interrupted\n")


@pytest.mark.parametrize(
    ("args", "number", "code"),
    [
        (BENCH, signal.SIGINT, 130),
        (BENCH, signal.SIGTERM, 143),
        (("demo",), signal.SIGINT, 130),
        (RENDEZVOUS, signal.SIGINT, 0),
        (RENDEZVOUS, signal.SIGTERM, 0),
    ],
)
def test_a_command_that_is_told_to_end_does_so_without_a_trace(
    start: Start, tmp_path: Path, args: tuple[str, ...], number: signal.Signals, code: int
) -> None:
    process = start(*args)
    at_work(tmp_path, args[0])
    os.killpg(process.pid, number)
    assert process.wait(ENDS_WITHIN_S) == code, said(tmp_path)
    assert "Traceback" not in said(tmp_path)
    assert "KeyboardInterrupt" not in said(tmp_path)
    assert not [*tmp_path.glob("ringd-bench-*"), *tmp_path.glob("ringd-demo-*")]
    until(lambda: not processes_of(str(tmp_path)), "no process is left", ENDS_WITHIN_S)
    if args == RENDEZVOUS:
        address = said(tmp_path).partition("listens on ")[2].split()[0]
        assert said(tmp_path).count(address) == 1, "it is said once"
