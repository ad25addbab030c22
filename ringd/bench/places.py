"""Where the ranks of a bench run: all on this host, or each on a host of a lab."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ringd.config import environment
from ringd.config.secret import make_secret_file
from ringd.lab.lab import Lab
from ringd.launch.python import own_module

WORKER = "ringd.bench.worker"
RENDEZVOUS_PORT = 7000
"""In a lab every port is free."""


@dataclass(frozen=True, slots=True)
class Start:
    """A process to start.

    Attributes:
        serves: it does not end by itself, with the others.
    """

    command: list[str]
    env: dict[str, str]
    serves: bool = False


class Place(Protocol):
    """Says how the ranks of an implementation are started."""

    def starts(self, impl: str, n: int, folder: Path, control: Path) -> Iterator[Start]:
        """All processes of ``impl`` with N ranks, whose files lie in ``folder``."""


class ThisHost:
    """All ranks beside each other.

    Args:
        worker: the module that a rank runs.
    """

    def __init__(self, worker: str = WORKER) -> None:
        self._worker = worker

    def starts(self, impl: str, n: int, folder: Path, control: Path) -> Iterator[Start]:
        """See :class:`Place`."""
        if impl == "ringd":
            run = own_module("ringd", "run", "-n", n, "--")
            yield Start([*run, *_worker(control, impl, self._worker)], worker_environment())
            return
        for rank in range(n):
            worker = _gloo_worker(control, impl, rank, n, folder, self._worker)
            yield Start(worker, worker_environment())


class InLab:
    """Rank K on host K; of ringd its daemon too, and the rendezvous beside rank 0.

    gloo is told the interface; by itself it would look up the host's name, and find the same.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def starts(self, impl: str, n: int, folder: Path, control: Path) -> Iterator[Start]:
        """See :class:`Place`."""
        if impl == "ringd":
            yield from self._ringd(n, folder, control)
            return
        env = worker_environment() | {"GLOO_SOCKET_IFNAME": self._lab.spec.interface}
        for rank in range(n):
            yield Start(
                [*self._lab.enter(rank), *_gloo_worker(control, impl, rank, n, folder)], env
            )

    def _ringd(self, n: int, folder: Path, control: Path) -> Iterator[Start]:
        secret = folder / "secret"
        make_secret_file(secret)
        job = {"job_id": "bench", "world_size": n, "secret_file": secret, "log_level": "warning"}
        address = self._lab.address(0)
        service = environment.for_child(
            worker_environment(), **job, bind=address, port=RENDEZVOUS_PORT
        )
        yield self._start(0, "rendezvous", service)
        host = f"[{address}]" if ":" in address else address
        for rank in range(n):
            env = environment.for_child(
                worker_environment(),
                **job,
                rank=rank,
                rendezvous=f"{host}:{RENDEZVOUS_PORT}",
                socket=folder / f"{rank}.sock",
            )
            yield self._start(rank, "daemon", env)
            yield Start([*self._lab.enter(rank), *_worker(control, "ringd")], env)

    def _start(self, host: int, part: str, env: dict[str, str]) -> Start:
        command = [*self._lab.enter(host), *own_module("ringd", part)]
        return Start(command, env, serves=True)


def _worker(control: Path, impl: str, module: str = WORKER) -> list[str]:
    return own_module(module, control, impl)


def _gloo_worker(
    control: Path, impl: str, rank: int, n: int, folder: Path, module: str = WORKER
) -> list[str]:
    store = f"file://{folder}/{impl}-store"
    return [*_worker(control, impl, module), str(rank), str(n), store]


def worker_environment() -> dict[str, str]:
    """Ours; each worker computes on one thread."""
    env = environment.snapshot()
    env.setdefault("OMP_NUM_THREADS", "1")
    return env
