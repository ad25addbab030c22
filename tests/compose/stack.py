"""A stack of containers, driven with ``docker compose`` or docker-compose, whichever is here."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TOP = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
IMAGE = os.environ.get("RINGD_IMAGE", "ringd")
PATIENCE_S = 120.0


def docker(*arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a docker command; what it printed, on both streams, is in ``stdout``."""
    return subprocess.run(
        ["docker", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )


@functools.cache
def compose_command() -> tuple[str, ...]:
    """The plug-in where docker has it, else the program of its own; () where there is neither."""
    if docker("compose", "version").returncode == 0:
        return ("docker", "compose")
    return ("docker-compose",) if shutil.which("docker-compose") else ()


_SIGNAL = """
import os, pathlib, sys
found = []
for entry in pathlib.Path("/proc").glob("[0-9]*"):
    words = (entry / "cmdline").read_bytes().decode().split("\\0")
    # The interpreter; for ringd its script comes first. Not those that only start it.
    if "python" in words[0] and sys.argv[1] in words[1:3]:
        found.append(int(entry.name))
for pid in found:
    os.kill(pid, int(sys.argv[2]))
print(len(found))
"""


class Stack:
    """The services of some compose files, under a project name of their own.

    Args:
        project: the name.
        files: as with ``-f``, seen from the top of the repository.
        environment: what the files' variables are.
    """

    def __init__(self, project: str, *files: str, **environment: str) -> None:
        self.project = project
        self._files = files
        self._environment: Mapping[str, str] = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": project,
            "COMPOSE_IGNORE_ORPHANS": "1",
            "RINGD_IMAGE": IMAGE,
            "PROGRAMS": str(PROGRAMS),
            **environment,
        }

    def compose(self, *arguments: str, timeout_s: float = 120) -> str:
        """Run a command of compose, which must succeed; what it printed."""
        files = [word for file in self._files for word in ("-f", str(TOP / file))]
        files += ["--project-directory", str(TOP)]
        done = subprocess.run(
            [*compose_command(), *files, *arguments],
            cwd=TOP,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
        )
        assert done.returncode == 0, f"compose {' '.join(arguments)}:\n{done.stdout}"
        return done.stdout

    def container(self, service: str) -> str:
        """The id of a service's container, also of one that has ended."""
        return docker(
            "ps", "--all", "--quiet", "--no-trunc",
            "--filter", f"label=com.docker.compose.project={self.project}",
            "--filter", f"label=com.docker.compose.service={service}",
        ).stdout.strip()  # fmt: skip

    def log(self, service: str, *, since: str = "0") -> str:
        """What it has printed so far; since then, in seconds of the epoch."""
        return docker("logs", "--since", since, self.container(service)).stdout

    def run_in(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a container that runs."""
        return docker("exec", self.container(service), *command)

    def signal(self, service: str, command: str, number: int) -> None:
        """Signal the process in it that was started as ``ringd COMMAND``, or ``python COMMAND``."""
        done = self.run_in(service, "python", "-c", _SIGNAL, command, str(int(number)))
        assert done.stdout == "1\n", done.stdout

    def inspect(self, service: str) -> dict[str, Any]:
        """What the engine knows of the container."""
        found: dict[str, Any] = json.loads(docker("inspect", self.container(service)).stdout)[0]
        return found

    def ended(self, service: str) -> int | None:
        """The exit code; None while it runs."""
        state = self.inspect(service)["State"]
        return None if state["Status"] in ("created", "running", "paused") else state["ExitCode"]

    def await_line(self, word: str, *services: str, since: str = "0") -> None:
        """Until each has printed the word, since then."""

        def printed(service: str) -> bool:
            return word in self.log(service, since=since)

        for service in services:
            self._until(printed, service, f"prints {word!r}")

    def await_end(self, *services: str) -> dict[str, int]:
        """Until all have ended; their exit codes."""
        for service in services:
            self._until(lambda service: self.ended(service) is not None, service, "ends")
        return {service: self.inspect(service)["State"]["ExitCode"] for service in services}

    def _until(self, condition: Callable[[str], bool], service: str, does: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition(service):
            late = time.monotonic() > deadline
            assert not late, f"not in time: {service} {does}; its log:\n{self.log(service)[-2000:]}"
            time.sleep(0.2)

    def verdict(self, service: str) -> dict[str, Any]:
        """What the program of ``until_fault.py`` has told at its end."""
        self.await_line("VERDICT ", service)
        line = next(x for x in self.log(service).splitlines() if x.startswith("VERDICT "))
        told: dict[str, Any] = json.loads(line.partition(" ")[2])
        return told

    def down(self) -> None:
        """Remove containers, networks and volumes."""
        self.compose("down", "--volumes", "--timeout", "1")
