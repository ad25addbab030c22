"""Runs torch's own tests, each in processes of its own and with a limit."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from tests.foreign import suites
from tests.foreign.outcome import Outcome, executed_in, judged
from tests.processes.harness import MARK, processes_of

LEAVING_S = 10.0
"""How long daemons may outlive their ranks."""

_fork = multiprocessing.get_context("fork")


@dataclass(slots=True)
class _Running:
    test: str
    backend: str
    ranks: int
    process: Any
    folder: Path
    began: float
    deadline: float


def run_all(
    wanted: Sequence[tuple[str, str]], jobs: int, limit_s: float, keep: Path
) -> Iterator[Outcome]:
    """Run tests, and yield what became of each as it ends.

    Args:
        wanted: names of tests and of backends.
        jobs: how many at a time.
        limit_s: for each; then its processes are killed.
        keep: where to keep the logs of tests that failed.
    """
    known = suites.cases()
    waiting = list(reversed(wanted))
    running: list[_Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                test, backend = waiting.pop()
                running.append(_begin(test, backend, known[test], limit_s))
            left_s = min(one.deadline for one in running) - time.monotonic()
            wait([one.process.sentinel for one in running], max(left_s, 0.0))
            for one in list(running):
                if not one.process.is_alive() or time.monotonic() >= one.deadline:
                    running.remove(one)
                    yield _end(one, keep)
    finally:
        for one in running:
            _end(one, keep)


def _begin(test: str, backend: str, case: unittest.TestCase, limit_s: float) -> _Running:
    folder = Path(tempfile.mkdtemp(prefix="ringd-foreign-"))
    (folder / "records").mkdir()
    process = _fork.Process(target=_main, args=(case, backend, folder))
    process.start()
    began = time.monotonic()
    ranks = suites.size_of(case)
    return _Running(test, backend, ranks, process, folder, began, began + limit_s)


def _end(one: _Running, keep: Path) -> Outcome:
    """Judge a test that is over, or kill it; nothing of it is left."""
    hung = one.process.is_alive()
    seconds = time.monotonic() - one.began
    with contextlib.suppress(ProcessLookupError):  # its ranks, too
        os.killpg(one.process.pid, signal.SIGKILL)
    one.process.join()
    ranks = _records(one.folder)
    result = one.folder / "result"
    told = json.loads(result.read_text()) if result.exists() else {}
    if not hung and not told:
        told = {"skipped": None, "error": f"its process ended with {one.process.exitcode}"}
    outcome, reason = judged(told, ranks, one.ranks, one.backend)
    if hung:
        reason += _left_behind(one.folder.name)
    if outcome in ("failed", "hung"):
        log = (one.folder / "log").read_text(errors="replace")
        (keep / f"{one.test}.{one.backend}.log").write_text(f"{log}\n{told.get('error', '')}")
    shutil.rmtree(one.folder)
    reason, seconds = " ".join(reason.split()), round(seconds, 1)
    executed = executed_in(ranks)
    return Outcome(one.test, one.backend, one.ranks, executed, outcome, reason, seconds)


def _records(folder: Path) -> list[dict[str, Any]]:
    """What the ranks have written."""
    return [json.loads(path.read_text()) for path in sorted((folder / "records").glob("[0-9]"))]


def _left_behind(owner: str) -> str:
    """Which daemons do not end after their ranks."""
    deadline = time.monotonic() + LEAVING_S
    while others := processes_of(owner):
        if time.monotonic() > deadline:
            return f" left behind: {', '.join(others.values())}"
        time.sleep(0.05)
    return ""


def _main(case: unittest.TestCase, backend: str, folder: Path) -> None:
    """The process of one test; its ranks are its children."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for name in [name for name in os.environ if name.startswith("RINGD_")]:
        del os.environ[name]
    os.environ |= {"TMPDIR": str(folder), MARK: folder.name}
    tempfile.tempdir = str(folder)
    result = suites.run(case, backend, folder / "records")
    skips = [reason for _, reason in result.skipped]
    if skips and skips[0].startswith("Test skipped at subprocess level"):
        skips = [rank["reason"] for rank in _records(folder)]
    errors = [text for _, text in result.errors + result.failures]
    if left := _left_behind(folder.name):
        errors.append(left)
    told = {"skipped": skips[0] if skips else None, "error": "\n".join(errors)}
    (folder / "result").write_text(json.dumps(told))
    sys.stdout.flush()
    os._exit(0)
