"""A job of ``ringd run`` whose ranks take orders: real daemons, real links, real processes."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from ringd.config import environment
from ringd.demo.ledger import Ledger
from ringd.errors import RingdError
from ringd.launch.python import own_module

START_LIMIT_S = 60.0
ORDER_LIMIT_S = 60.0
END_LIMIT_S = 30.0
LOG_LINES = 3
"""How much of a failed job's log its error quotes."""


class Job:
    """N ranks on this machine, over loopback TCP; a context manager.

    Args:
        n: world size.
        exit_code: what the launcher is to end with.

    Attributes:
        folder: of the job's own; gone when the job has ended.
        ledger: what the daemons account for.
        pids: process ids of the ranks.
        sockets: the Unix sockets of their daemons.
    """

    def __init__(self, n: int, *, exit_code: int = 0) -> None:
        self.n = n
        self._exit_code = exit_code
        self._folder = tempfile.TemporaryDirectory(prefix="ringd-demo-")
        self.folder = Path(self._folder.name)
        self.ledger = Ledger(self.folder / "accounting.jsonl")
        self.pids: list[int] = []
        self.sockets: list[Path] = []
        self._launcher: subprocess.Popen[bytes] | None = None
        self._files: dict[int, Any] = {}

    def __enter__(self) -> Job:
        control = self.folder / "control"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(control))
            listener.listen(self.n)
            listener.settimeout(1.0)
            try:
                self._launcher = self._launch(control)
                hellos = [self._enlist(listener) for _ in range(self.n)]
            except BaseException:
                self._end(in_order=False)
                raise
        hellos.sort(key=lambda hello: int(hello["rank"]))
        self.pids = [hello["pid"] for hello in hellos]
        self.sockets = [Path(hello["socket"]) for hello in hellos]
        return self

    def _launch(self, control: Path) -> subprocess.Popen[bytes]:
        # A name of its own, whatever the environment or a settings file calls its jobs.
        options = ["--job-id", f"demo-{secrets.token_hex(4)}", "--log-level", "warning"]
        options += ["--accounting", str(self.ledger.path)]
        run = own_module("ringd", "run", "-n", self.n, *options)
        worker = own_module("ringd.demo.workers", control)
        env = environment.snapshot()
        env.setdefault("OMP_NUM_THREADS", "1")
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a host's own name need not resolve
        with (self.folder / "log").open("wb") as log:
            return subprocess.Popen(
                [*run, "--", *worker],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _enlist(self, listener: socket.socket) -> dict[str, Any]:
        assert self._launcher is not None
        for _ in range(int(START_LIMIT_S)):
            with contextlib.suppress(TimeoutError):
                sock, _ = listener.accept()
                break
            if self._launcher.poll() is not None:
                raise self._failed("ended before it had begun")
        else:
            raise self._failed(f"was not complete within {START_LIMIT_S:g} s")
        sock.settimeout(ORDER_LIMIT_S)
        file = sock.makefile("rw", encoding="utf-8")
        sock.close()  # the file keeps it
        hello: dict[str, Any] = json.loads(file.readline())
        self._files[hello["rank"]] = file
        return hello

    # ------------------------------------------------------------ orders

    def tell(self, order: dict[str, Any]) -> None:
        """Give all ranks an order; :meth:`hear` has the answers.

        Raises:
            RingdError: a rank is gone.
        """
        for rank in self._files:
            self.tell_one(rank, order)

    def tell_one(self, rank: int, order: dict[str, Any]) -> None:
        """Give one rank an order; calls of ringd need all of them.

        Raises:
            RingdError: it is gone.
        """
        file = self._files[rank]
        try:
            file.write(json.dumps(order) + "\n")
            file.flush()
        except OSError as exc:
            raise self._failed(f"lost rank {rank}: {exc}") from None

    def hear(self, rank: int) -> dict[str, Any]:
        """The next answer of a rank.

        Raises:
            RingdError: it ended, was silent for 60 s, or could not do what it was told.
        """
        try:
            line = self._files[rank].readline()
        except OSError as exc:
            raise self._failed(f"has no answer from rank {rank}: {exc}") from None
        if not line:
            raise self._failed(f"lost rank {rank}")
        answer: dict[str, Any] = json.loads(line)
        if "failure" in answer:
            raise RingdError(f"rank {rank} of the demo's {self.n} failed: {answer['failure']}")
        return answer

    def order(self, what: str, **details: Any) -> list[dict[str, Any]]:
        """Have all ranks do something at once; their answers by rank.

        Raises:
            RingdError: see :meth:`hear`.
        """
        self.tell({"do": what, **details})
        return [self.hear(rank) for rank in range(self.n)]

    # ------------------------------------------------------------ the end

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        code = self._end(in_order=kind is None)
        if kind is None and code != self._exit_code:
            raise RingdError(
                f"the demo's job of {self.n} ranks ended with exit code {code}, "
                f"not {self._exit_code}"
            )

    def _end(self, *, in_order: bool) -> int:
        """End the ranks, then whatever of the job is left; the launcher's exit code.

        Args:
            in_order: wait until they have ended by themselves.
        """
        for file in self._files.values():
            with contextlib.suppress(OSError, ValueError):
                file.write('{"do": "end"}\n')
                file.close()
        code = 0 if self._launcher is None else _reap(self._launcher, in_order)
        self._folder.cleanup()
        return code

    def _failed(self, how: str) -> RingdError:
        with contextlib.suppress(OSError):
            log = (self.folder / "log").read_text(errors="replace").strip().splitlines()
            if log:
                how += "; its log ends with: " + " / ".join(log[-LOG_LINES:])
        return RingdError(f"the demo's job of {self.n} ranks {how}")


def _reap(launcher: subprocess.Popen[bytes], in_order: bool) -> int:
    """Wait for a launcher that was told to end, else make it; it takes its children along."""
    if in_order:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return launcher.wait(END_LIMIT_S)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(launcher.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return launcher.wait(END_LIMIT_S)
    return launcher.wait()
