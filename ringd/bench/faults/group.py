"""A job whose parts can be killed one by one: a rendezvous, daemons that stand, and workers.

``ringd run`` ends a job at its first failure; here it is to go on with the next round.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from ringd.bench.faults.network import Network
from ringd.config import environment
from ringd.config.secret import make_secret_file
from ringd.errors import DaemonLostError, RingdError
from ringd.launch.python import own_module
from ringd.observe.status_view import ask

T = TypeVar("T")
LIMIT_S = 60.0
"""For what has no bound of its own: a start on a busy machine."""
LOOK_EVERY_S = 0.002
LOG_LINES = 5
RENDEZVOUS = "rendezvous"
"""The name of the host that the rendezvous runs on."""


def until(condition: Callable[[], T], what: str, limit_s: float = LIMIT_S) -> T:
    """The first true value of ``condition``.

    Raises:
        RingdError: there was none in time.
    """
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise RingdError(f"bench --faults: not within {limit_s:g} s: {what}")
        time.sleep(LOOK_EVERY_S)
    return value


def host_of(rank: int) -> str:
    """The name of a rank's host, in a network of its own."""
    return f"rank{rank}"


def hosts(n: int) -> list[str]:
    """All hosts of a job of N ranks."""
    return [RENDEZVOUS, *map(host_of, range(n))]


class Worker:
    """One rank's trainer process, and the talk with it."""

    def __init__(self, rank: int, socket: Path, log: Path, env: dict[str, str]) -> None:
        self.rank = rank
        self._log = log
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                own_module("ringd.bench.faults.worker"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment.for_child(env, socket=socket),
            )
        self._rest = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """It has not ended."""
        return self._process.poll() is None

    def tell(self, **order: Any) -> None:
        """Give an order; :meth:`hear` has the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self, limit_s: float = LIMIT_S) -> dict[str, Any]:
        """The next answer.

        Raises:
            RingdError: it ended, was silent too long, or could not do what it was told.
        """
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._rest:
            left_s = max(0.0, deadline - time.monotonic())
            piece = os.read(fd, 1 << 16) if select.select([fd], [], [], left_s)[0] else None
            if not piece:
                how = f"did not answer within {limit_s:g} s" if piece is None else "ended"
                who = f"bench --faults: the trainer of rank {self.rank}"
                raise RingdError(f"{who} {how}: {_end_of(self._log)}")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise RingdError(f"bench --faults: rank {self.rank}: {answer['failed']}")
        return answer

    def await_end(self) -> None:
        """Until a process that was killed is gone: its peers may know sooner."""
        self._process.wait(LIMIT_S)

    def signal(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def end(self) -> None:
        """kill -9; its pipes are closed."""
        _kill(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class Group:
    """A job of N ranks; a context manager.

    Args:
        n: world size.
        network: where each rank and the rendezvous have a host of their own (:func:`hosts`);
            None: loopback.
        settings: of daemons and rendezvous.
    """

    def __init__(self, n: int, network: Network | None = None, **settings: object) -> None:
        self.n = n
        self.network = network
        self.workers: dict[int, Worker] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="ringd-faults-")
        self._path = Path(self._folder.name)
        self._env: dict[str, str] = {}
        self._settings = settings
        self._daemons: dict[int, subprocess.Popen[bytes]] = {}
        self._rendezvous: subprocess.Popen[bytes] | None = None
        self._address = ""

    def __enter__(self) -> Group:
        secret = self._path / "secret"
        make_secret_file(secret)
        clean = {k: v for k, v in environment.snapshot().items() if not k.startswith("RINGD_")}
        clean["OMP_NUM_THREADS"] = "1"
        self._env = environment.for_child(
            clean, job_id="faults", world_size=self.n, secret_file=secret, **self._settings
        )
        try:
            self.restore()
        except BaseException:
            self.__exit__()
            raise
        return self

    def restore(self) -> None:
        """Start what is not there, and have all trainers connected in an epoch of their own.

        Raises:
            RingdError: something does not start.
        """
        for rank, worker in list(self.workers.items()):
            if worker.alive:
                worker.tell(do="close")
                worker.hear()
            else:
                worker.end()
                del self.workers[rank]
        if self._rendezvous is None or self._rendezvous.poll() is not None:
            self._start_anew()
        for rank in range(self.n):
            if self._daemons[rank].poll() is not None:
                self._start_daemon(rank)
            if rank not in self.workers:
                log = self._path / f"trainer{rank}.log"
                self.workers[rank] = Worker(rank, self.socket(rank), log, self._env)
        for rank in range(self.n):
            until(lambda rank=rank: self._answers(rank), f"the daemon of rank {rank} answers")  # type: ignore[misc]
        self.order("connect")

    def _start_anew(self) -> None:
        """A rendezvous, and daemons that know it."""
        for daemon in self._daemons.values():
            _kill(daemon)
        log = self._path / "rendezvous.log"
        log.unlink(missing_ok=True)
        where = {} if self.network is None else {"bind": self.network.address(RENDEZVOUS)}
        self._rendezvous = self._spawn("rendezvous", RENDEZVOUS, log, **where)
        self._address = until(lambda: self._announced(log), "the rendezvous listens")
        for rank in range(self.n):
            self._start_daemon(rank)

    def _announced(self, log: Path) -> str:
        for line in log.read_text(errors="replace").splitlines():
            if "listens on " in line:
                return line.rpartition("listens on ")[2].strip()
        assert self._rendezvous is not None
        if self._rendezvous.poll() is not None:
            raise RingdError(f"bench --faults: the rendezvous ended: {_end_of(log)}")
        return ""

    def _start_daemon(self, rank: int) -> None:
        self._daemons[rank] = self._spawn(
            "daemon",
            host_of(rank),
            self._log_of(rank),
            rank=rank,
            rendezvous=self._address,
            socket=self.socket(rank),
        )

    def _spawn(
        self, part: str, host: str, log: Path, **settings: object
    ) -> subprocess.Popen[bytes]:
        prefix = [] if self.network is None else self.network.enter(host)
        with log.open("ab") as output:
            return subprocess.Popen(
                [*prefix, *own_module("ringd", part)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._path,
                env=environment.for_child(self._env, **settings),
            )

    def _answers(self, rank: int) -> bool:
        if self._daemons[rank].poll() is not None:
            log = self._log_of(rank)
            raise RingdError(f"bench --faults: the daemon of rank {rank} ended: {_end_of(log)}")
        try:
            self.status(rank)
        except DaemonLostError:
            return False
        return True

    def _log_of(self, rank: int) -> Path:
        return self._path / f"daemon{rank}.log"

    def socket(self, rank: int) -> Path:
        """The Unix socket of a rank's daemon."""
        return self._path / f"{rank}.sock"

    def status(self, rank: int) -> dict[str, Any]:
        """What a rank's daemon says of itself.

        Raises:
            DaemonLostError: it does not answer.
        """
        return ask(self.socket(rank), "daemon")

    # Orders

    def order(self, what: str, **details: Any) -> list[dict[str, Any]]:
        """Have all workers do something at once; their answers by rank."""
        self.tell(what, **details)
        return [self.workers[rank].hear() for rank in range(self.n)]

    def tell(self, what: str, *, but: Collection[int] = (), **details: Any) -> None:
        """Give an order to all workers ``but`` some."""
        for rank in range(self.n):
            if rank not in but:
                self.workers[rank].tell(do=what, **details)

    # Faults

    def daemon_pid(self, rank: int) -> int:
        """The process id of a rank's daemon."""
        return self._daemons[rank].pid

    def daemon_signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank's daemon."""
        self._daemons[rank].send_signal(number)

    def await_end_of_daemon(self, rank: int) -> None:
        """Until a daemon that was killed is gone."""
        self._daemons[rank].wait(LIMIT_S)

    def kill_rendezvous(self) -> None:
        """kill -9 of the rendezvous; the next :meth:`restore` starts all but the workers anew."""
        assert self._rendezvous is not None
        self._rendezvous.kill()
        self._rendezvous.wait(LIMIT_S)

    def __exit__(self, *_: object) -> None:
        for worker in self.workers.values():
            worker.end()
        for process in (*self._daemons.values(), self._rendezvous):
            if process is not None:
                _kill(process)
        self._folder.cleanup()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)  # it works on a stopped process too
    process.wait()


def _end_of(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return " / ".join(lines[-LOG_LINES:]) or "its log is empty"
