"""Whole jobs by ``ringd run``, as a user starts them: the command, its output, its exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processes.harness import PATIENCE_S, ROOT, Program, environment, until


@dataclass
class Job:
    """``ringd run`` of a command, as a process."""

    process: subprocess.Popen[bytes]
    folder: Path
    n: int

    @property
    def out(self) -> str:
        """Standard output so far."""
        return (self.folder / "out").read_text(errors="replace")

    @property
    def err(self) -> str:
        """Standard error so far."""
        return (self.folder / "err").read_text(errors="replace")

    def of_rank(self, rank: int) -> list[str]:
        """A rank's output so far, without its prefix."""
        prefix = f"[{rank}] "
        return [x.removeprefix(prefix) for x in self.out.splitlines() if x.startswith(prefix)]

    def results(self) -> list[Any]:
        """The last line of each rank's output, as JSON."""
        return [json.loads(self.of_rank(rank)[-1]) for rank in range(self.n)]

    def await_output(self, text: str, times: int = 1) -> None:
        """Until ``text`` stands in the output so often."""
        until(lambda: self.out.count(text) >= times, f"{text!r} in\n{self.out}\n{self.err}")

    def facts(self) -> dict[str, Any]:
        """Who is who: the job.json that the launcher writes."""
        path = until(lambda: next(iter(self.folder.glob("run/ringd/*/job.json")), None), "job.json")
        facts: dict[str, Any] = json.loads(path.read_text())
        return facts

    def wait(self, within_s: float = PATIENCE_S) -> int:
        """The exit code."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the job does not end:\n{self.out}\n{self.err}") from None


def start_job(n: int, command: Sequence[str], folder: Path, owner: str, *flags: str) -> Job:
    """Start ``ringd run -n N``; its runtime folder is in ``folder``."""
    (folder / "run").mkdir(parents=True, exist_ok=True)
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "ringd", "run", "-n", str(n), *flags, "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=ROOT,
            env=environment(owner, XDG_RUNTIME_DIR=folder / "run"),
            process_group=0,
        )
    return Job(process, folder, n)


def run_job(
    n: int, program: Program, folder: Path, owner: str, *flags: str, **arguments: Any
) -> list[Any]:
    """Run a program as a job of its own by ``ringd run``; its result on each rank."""
    job = start_job(n, command_for(program, **arguments), folder, owner, *flags)
    code = job.wait()
    assert code == 0, f"exit code {code}\n{job.out}\n{job.err}"
    return job.results()


def command_for(program: Program, **arguments: Any) -> list[str]:
    """A command line that runs one program and prints its result as JSON."""
    name = f"{program.__module__}:{program.__qualname__}"
    return [sys.executable, "-m", "tests.processes.trainer", name, json.dumps(arguments)]
