"""Starts the workers of every implementation, and gives them orders in turn."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ringd.bench.places import Place, Start
from ringd.errors import RingdError

START_LIMIT_S = 120.0
ORDER_LIMIT_S = 120.0
END_LIMIT_S = 10.0


class Crew:
    """The workers of some implementations at one world size; a context manager.

    Args:
        impls: "ringd", "gloo".
        n: world size.
        place: where they run.
    """

    def __init__(self, impls: Sequence[str], n: int, place: Place) -> None:
        self.n = n
        self._impls = list(impls)
        self._place = place
        self._services: list[subprocess.Popen[bytes]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._files: dict[tuple[str, int], Any] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="ringd-bench-")

    def __enter__(self) -> Crew:
        folder = Path(self._folder.name)
        control = folder / "control"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(control))
            listener.listen(256)
            listener.settimeout(START_LIMIT_S)
            try:
                for impl in self._impls:
                    for start in self._place.starts(impl, self.n, folder, control):
                        self._spawn(start)
                for _ in range(len(self._impls) * self.n):
                    self._enlist(listener)
            except BaseException:
                self._end(in_order=False)
                raise
        return self

    def _spawn(self, start: Start) -> None:
        process = subprocess.Popen(
            start.command, env=start.env, stdin=subprocess.DEVNULL, start_new_session=True
        )
        (self._services if start.serves else self._processes).append(process)

    def _enlist(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except TimeoutError:
            raise RingdError(f"a worker did not start within {START_LIMIT_S:g} s") from None
        sock.settimeout(ORDER_LIMIT_S)
        file = sock.makefile("rw", encoding="utf-8")
        sock.close()  # the file keeps it
        hello = json.loads(file.readline())
        self._files[hello["impl"], hello["rank"]] = file

    def order(self, impl: str, **what: Any) -> list[dict[str, Any]]:
        """Have all ranks of ``impl`` do something at once; their answers by rank.

        Raises:
            RingdError: a worker ended or did not answer in time.
        """
        files = [self._files[impl, rank] for rank in range(self.n)]
        answers = []
        try:
            for file in files:
                file.write(json.dumps(what) + "\n")
                file.flush()
            for rank, file in enumerate(files):
                line = file.readline()
                if not line:
                    raise RingdError(f"worker {rank} of {impl} ended in the middle of {what}")
                answers.append(json.loads(line))
        except OSError as exc:
            raise RingdError(f"a worker of {impl} failed in the middle of {what}: {exc}") from None
        return answers

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the workers; after an exception (Ctrl-C, for one) nothing they do is waited for."""
        self._end(in_order=kind is None)

    def _end(self, *, in_order: bool) -> None:
        if in_order:
            for file in self._files.values():
                with contextlib.suppress(OSError, ValueError):
                    file.write('{"do": "end"}\n')
                    file.flush()
                    file.close()
        _end_groups(self._processes, END_LIMIT_S if in_order else 0.0)
        for service in reversed(self._services):  # daemons before the rendezvous, which they need
            _end_groups([service], 0.0)
        self._folder.cleanup()


def _end_groups(processes: list[subprocess.Popen[bytes]], patience_s: float) -> None:
    """Wait so long for all; then SIGTERM, and SIGKILL, of what they have started too."""
    running = _left(processes, patience_s)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        running = _left(running, END_LIMIT_S)


def _left(
    processes: list[subprocess.Popen[bytes]], within_s: float
) -> list[subprocess.Popen[bytes]]:
    """Wait for all; those that have not ended in time."""
    until = time.monotonic() + within_s
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
    return [process for process in processes if process.poll() is None]
