"""Real processes for tests: daemons that stand, and trainers that do as they are told.

A test that kills a rank should read like a sentence::

    group.connect()
    group.start(faults.reduce_until_error)
    group.kill_trainer(2)
    survivors = group.results(but=2)

A trainer is one process that runs *programs* (see :mod:`tests.processes.trainer`): functions of
``tests.processes.programs``, named here by the function itself, so that a reader can go to them.
Nothing waits for a fixed time: everything is awaited by its condition, up to a deadline.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ringd.errors import DaemonLostError
from ringd.observe.status_view import ask

T = TypeVar("T")
Program = Callable[..., Any]

ROOT = Path(__file__).parents[2]
MARK = "TEST_PROCESSES_OF"
"""In the environment of every process that a test starts: whose it is, also when it is orphaned."""
PATIENCE_S = 60.0
"""For what has no bound of its own: a start on a crowded machine."""
WIDER = 5
"""The product's bounds hold in virtual time; real processes may take so many times as long."""


# ---------------------------------------------------------------- waiting


def until(condition: Callable[[], T], what: str, within_s: float = PATIENCE_S) -> T:
    """The first true value of ``condition``; AssertionError when there is none in time."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.005)
    return value


def nothing_is_wrong(results: Sequence[dict[str, Any]]) -> None:
    """No rank has noted anything that is ``wrong``."""
    wrong = [f"rank {rank}: {text}" for rank, told in enumerate(results) for text in told["wrong"]]
    assert not wrong, "\n".join(wrong)


# ---------------------------------------------------------------- processes


def environment(owner: str, **more: object) -> dict[str, str]:
    """What a process sees: nothing of the caller's settings, and who it belongs to."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("RINGD_")}
    env |= {MARK: owner, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    return env | {name: str(value) for name, value in more.items()}


def processes_of(owner: str) -> dict[int, str]:
    """Living processes that ``owner`` started, directly or not: pid to command line."""
    found = {}
    wanted = f"{MARK}={owner}".encode()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if wanted in Path(entry, "environ").read_bytes().split(b"\0"):
                words = Path(entry, "cmdline").read_bytes().split(b"\0")
                if state_of(int(entry.name)) not in ("Z", ""):
                    found[int(entry.name)] = b" ".join(words).decode()
    return found


def state_of(pid: int) -> str:
    """R, S, T (stopped), Z …; "" when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


# ---------------------------------------------------------------- one rank's trainer


class ProgramFailed(AssertionError):
    """A program raised what it did not expect; the text is the trainer's traceback."""


class Trainer:
    """A process that runs programs, one after another, until it is told to end."""

    def __init__(
        self, rank: int, log: Path, owner: str, prefix: Sequence[str] = (), **settings: object
    ) -> None:
        self.rank = rank
        self._log = log
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "tests.processes.trainer"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=ROOT,
                env=environment(owner, **settings),
            )
        self._replies = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, program: Program, **arguments: Any) -> None:
        """Begin a program; its result is for :meth:`result`."""
        order = {"program": f"{program.__module__}:{program.__qualname__}", "with": arguments}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def result(self, within_s: float = PATIENCE_S) -> Any:
        """What the program that was begun first returned."""
        reply = json.loads(self._line(within_s))
        if "failed" in reply:
            raise ProgramFailed(f"rank {self.rank}:\n{reply['failed']}")
        return reply["result"]

    def do(self, program: Program, **arguments: Any) -> Any:
        """Begin a program and await its result."""
        self.start(program, **arguments)
        return self.result()

    def _line(self, within_s: float) -> bytes:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        deadline = time.monotonic() + within_s
        while b"\n" not in self._replies:
            left_s = deadline - time.monotonic()
            readable = select.select([pipe], [], [], max(0.0, left_s))[0]
            piece = os.read(pipe, 1 << 20) if readable else b""
            if not piece:
                why = "ended" if readable else f"did not answer within {within_s:g} s"
                raise ProgramFailed(f"the trainer of rank {self.rank} {why}:\n{self.log}")
            self._replies += piece
        line, _, self._replies = self._replies.partition(b"\n")
        return line

    @property
    def log(self) -> str:
        """What it wrote to its standard error, the end of it."""
        return self._log.read_text(errors="replace")[-4000:]

    def signal(self, number: int) -> None:
        """Send a signal to this process."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self._process.kill()
        self._close()

    def end(self) -> int:
        """Let it end by itself; its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ProgramFailed(f"the trainer of rank {self.rank} does not end") from None
        finally:
            self._close()

    def _close(self) -> None:
        self._process.wait(PATIENCE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


# ---------------------------------------------------------------- standing daemons


COMPLAINT = re.compile(r": (warning|error): (?!epoch \d+ is over)")


class Daemons:
    """A rendezvous and N daemons that stand, and trainers that come and go.

    Args:
        n: how many ranks.
        folder: for sockets, logs, the secret and the accounting; short, since sockets lie there.
        owner: who is to blame for what is left over (see MARK).
        settings: of all processes, as RINGD_* would be: ``segment_bytes="64K"``.
    """

    def __init__(self, n: int, folder: Path, owner: str, **settings: object) -> None:
        self.n = n
        self.folder = folder
        self.owner = owner
        self.trainers: dict[int, Trainer] = {}
        self._settings = settings
        self._secret = folder / "secret"
        self._secret.touch(mode=0o600)
        self._secret.write_text(os.urandom(16).hex())
        self._daemons: dict[int, subprocess.Popen[bytes]] = {}
        self._read: dict[str, int] = {}
        self._service = self._spawn("rendezvous", **self._where_it_listens())
        self.rendezvous = until(self._announced, "the rendezvous says where it listens")

    def start_daemons(self, *, but: Sequence[int] = ()) -> None:
        """Start every rank's daemon, and await that each answers."""
        for rank in range(self.n):
            if rank not in but:
                self.start_daemon(rank)
        for rank in self._daemons:
            self.await_daemon(rank, formed=not but)

    def start_daemon(self, rank: int, **settings: object) -> None:
        """Start one rank's daemon, with settings of its own."""
        self._daemons[rank] = self._spawn(
            "daemon",
            rank=rank,
            rendezvous=self.rendezvous,
            socket=self.socket(rank),
            accounting=self.folder / f"bytes{rank}.jsonl",
            **settings,
        )

    def await_daemon(self, rank: int, *, formed: bool = True) -> None:
        """Until it answers, and (if ``formed``) knows that the group is complete."""

        def ready() -> bool:
            assert self._daemons[rank].poll() is None, self.log(f"daemon{rank}")
            try:
                ask(self.socket(rank), "daemon")
            except DaemonLostError:
                return False
            return not formed or "is complete" in self.log(f"daemon{rank}")

        until(ready, f"the daemon of rank {rank} is ready")

    def _spawn(self, part: str, **settings: object) -> subprocess.Popen[bytes]:
        log = self._log_path(part + str(settings.get("rank", "")))
        with log.open("ab") as output:
            return subprocess.Popen(
                [*self._prefix(settings.get("rank")), sys.executable, "-m", "ringd", part],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                env=environment(self.owner, **self._as_environment(**settings)),
            )

    def _prefix(self, rank: object) -> list[str]:
        """What the command of a rank's daemon, or (None) of the rendezvous, begins with."""
        return []

    def _where_it_listens(self) -> dict[str, object]:
        """Settings of the rendezvous only."""
        return {}

    def _as_environment(self, **more: object) -> dict[str, object]:
        settings: dict[str, object] = {
            "job_id": "test",
            "world_size": self.n,
            "secret_file": self._secret,
            **self._settings,
            **more,
        }
        return {f"RINGD_{name.upper()}": value for name, value in settings.items()}

    def _announced(self) -> str:
        assert self._service.poll() is None, self.log("rendezvous")
        for line in self.log("rendezvous").splitlines():
            if "listens on " in line:
                return line.rpartition("listens on ")[2].strip()
        return ""

    def socket(self, rank: int) -> Path:
        """A daemon's Unix socket."""
        return self.folder / f"{rank}.sock"

    def _log_path(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def log(self, name: str) -> str:
        """What "rendezvous", "daemon0" … has logged."""
        return self._log_path(name).read_text(errors="replace")

    def complaints(self) -> list[str]:
        """What daemons and rendezvous have warned of since this was asked last.

        A link that broke, a frame or a message that was none, a handshake that failed: as long
        as no daemon dies and no stranger dials, there is nothing. That an epoch is over, which is
        news and no complaint, does not count.
        """
        found = []
        for name in (*(f"daemon{rank}" for rank in self._daemons), "rendezvous"):
            text = self.log(name)
            lines = text[self._read.get(name, 0) :].splitlines()
            self._read[name] = len(text)
            found += [f"{name}: {x}" for x in lines if re.search(COMPLAINT, x)]
        return found

    def daemon_pid(self, rank: int) -> int:
        """For signals and measurements."""
        return self._daemons[rank].pid

    def daemon_signal(self, rank: int, number: int) -> None:
        """SIGSTOP, SIGCONT, …"""
        self._daemons[rank].send_signal(number)

    def kill_daemon(self, rank: int) -> None:
        """kill -9 of a rank's daemon."""
        self._daemons[rank].kill()
        self._daemons[rank].wait()

    def kill_rendezvous(self) -> float:
        """kill -9 of the rendezvous; when that was (monotonic)."""
        at = time.monotonic()
        self._service.kill()
        self._service.wait()
        return at

    def rendezvous_signal(self, number: int) -> None:
        """SIGSTOP, SIGCONT, …"""
        self._service.send_signal(number)

    def restart_rendezvous(self) -> None:
        """Start it anew where it was, and await that it listens."""
        host, _, port = self.rendezvous.rpartition(":")
        self._log_path("rendezvous").unlink()
        self._read.pop("rendezvous", None)
        self._service = self._spawn("rendezvous", bind=host, port=port)
        until(self._announced, "the rendezvous listens again")

    def rendezvous_exit(self) -> int:
        """The exit code of the rendezvous, when it ends by itself."""
        return self._service.wait(PATIENCE_S)

    def end_daemon(self, rank: int) -> int:
        """SIGTERM; its exit code."""
        self._daemons[rank].terminate()
        return self._daemons[rank].wait(PATIENCE_S)

    def daemon_exit(self, rank: int, within_s: float = PATIENCE_S) -> int:
        """The exit code of a daemon that ends by itself."""
        return self._daemons[rank].wait(within_s)

    def status(self, rank: int) -> dict[str, Any]:
        """What a daemon says of itself."""
        return ask(self.socket(rank), "daemon")

    def accounting(self, rank: int) -> list[dict[str, Any]]:
        """A rank's accounting so far, oldest first."""
        path = self.folder / f"bytes{rank}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    # Trainers

    def trainer(self, rank: int) -> Trainer:
        """The rank's trainer; a fresh process if it has none."""
        if rank not in self.trainers:
            log = self._log_path(f"trainer{rank}")
            settings = {"RINGD_SOCKET": self.socket(rank)}
            prefix = self._trainer_prefix(rank)
            self.trainers[rank] = Trainer(rank, log, self.owner, prefix, **settings)
        return self.trainers[rank]

    def _trainer_prefix(self, rank: int) -> list[str]:
        """What the command of a rank's trainer begins with."""
        return []

    def start(self, program: Program, *, but: int | Sequence[int] = (), **arguments: Any) -> None:
        """Begin a program on all ranks ``but`` some."""
        for rank in self._all(but):
            self.trainer(rank).start(program, **arguments)

    def results(self, *, but: int | Sequence[int] = (), within_s: float = PATIENCE_S) -> list[Any]:
        """What it returned on each of these ranks; raises once all have answered."""
        results: list[Any] = []
        failures: list[str] = []
        for rank in self._all(but):
            try:
                results.append(self.trainers[rank].result(within_s))
            except ProgramFailed as exc:
                failures.append(str(exc))
        if failures:
            raise ProgramFailed("\n".join(failures))
        return results

    def do(self, program: Program, *, within_s: float = PATIENCE_S, **arguments: Any) -> list[Any]:
        """Run a program on all ranks; their results in rank order."""
        self.start(program, **arguments)
        return self.results(within_s=within_s)

    def connect(self) -> None:
        """All trainers attach: the next epoch."""
        from tests.processes.programs import basics

        self.do(basics.connect)

    def disconnect(self, *, but: int | Sequence[int] = ()) -> None:
        """All trainers close, in order."""
        from tests.processes.programs import basics

        self.start(basics.disconnect, but=but)
        self.results(but=but)

    def kill_trainer(self, rank: int) -> float:
        """kill -9 of a rank's trainer; when that was (monotonic). The next use has a fresh one."""
        trainer = self.trainers.pop(rank)
        at = time.monotonic()
        trainer.kill()
        return at

    def dismiss(self, rank: int) -> int:
        """Let a trainer's process end by itself; its exit code."""
        return self.trainers.pop(rank).end()

    def _all(self, but: int | Sequence[int]) -> list[int]:
        left_out = (but,) if isinstance(but, int) else but
        return [rank for rank in range(self.n) if rank not in left_out]

    # The end

    def close(self) -> None:
        """End all; a daemon that does not end in order is an error."""
        problems = []
        for trainer in self.trainers.values():
            with contextlib.suppress(ProcessLookupError):
                trainer.signal(signal.SIGCONT)
            trainer.kill()
        processes = dict(self._all_processes())
        for process in processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for name, process in processes.items():
            try:
                code = process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                code = "none: it had to be killed"
            if code not in (0, -signal.SIGKILL, 3):
                problems.append(f"{name} ended with exit code {code}:\n{self.log(name)[-3000:]}")
        sockets = [str(p) for p in self.folder.glob("*.sock") if not self._was_killed(p)]
        assert not problems, "\n".join(problems)
        assert not sockets, f"sockets were left over: {sockets}"

    def _all_processes(self) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
        """Each once: a second SIGTERM may come when its handler is gone already."""
        for rank, daemon in self._daemons.items():
            yield f"daemon{rank}", daemon
        if self._service not in self._daemons.values():
            yield "rendezvous", self._service

    def _was_killed(self, socket: Path) -> bool:
        daemon = self._daemons.get(int(socket.stem))
        return daemon is not None and daemon.returncode == -signal.SIGKILL
