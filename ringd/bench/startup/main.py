"""The driver of ``ringd bench --startup``: jobs of each backend in turn, round after round."""

from __future__ import annotations

import socket
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ringd.bench.report import report
from ringd.bench.startup.children import adopting_orphans, wait_for
from ringd.bench.table import progress, show, table_for
from ringd.config import environment
from ringd.launch.python import own_module

TRAINER: Final = "ringd.bench.startup.trainer"
PRELOADED: Final = "ringd run --preload torch"
IMPLS: Final = ("none", "gloo", "ringd", PRELOADED)
"""``none`` imports torch and ends: the part of the others that is neither's."""
LIMIT_S: Final = 120.0
COLUMNS: Final = ("min s", "median s", "max s", "CPU s\nmin", "CPU s\nmedian")
CAPTION: Final = """\
from the start of the first rank to the end of the last: import torch,
init_process_group, one all_reduce, destroy_process_group; each rank of ringd
starts a daemon. none: import torch only. ringd run --preload torch: from the
start to the end of that command, which imports torch once for all ranks.
CPU s: processor time of all processes of a job, daemons included"""


def run(world_sizes: Sequence[int], *, rounds: int, json_path: Path | None) -> int:
    """Measure, print a table, write JSON.

    Returns:
        0; a wrong sum is an error.

    Raises:
        RingdError: a rank failed.
    """
    times: dict[tuple[int, str], list[tuple[float, float]]] = {}
    with progress(rounds * len(world_sizes) * len(IMPLS)) as step, adopting_orphans():
        for n in world_sizes:
            for _ in range(rounds):
                for impl in IMPLS:
                    times.setdefault((n, impl), []).append(_job(impl, n))
                    step(f"{impl} n={n}")
    rows = [_row(n, impl, taken) for (n, impl), taken in times.items()]
    machine = report(json_path, rows, "startup")["machine"]
    _print(rows, machine)
    return 0


def _job(impl: str, n: int) -> tuple[float, float]:
    """Run a job of n ranks; how long it took, and its processor time, in seconds."""
    env = environment.snapshot()
    env = {name: value for name, value in env.items() if not name.startswith(environment.PREFIX)}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(n)}
    began = time.monotonic()
    if impl == PRELOADED:
        trainer = own_module(TRAINER, "ringd")
        command = own_module("ringd", *impl.split()[1:], "-n", n, "--log-level=error", "--")
        starts = [(command + trainer, env)]
    else:
        starts = [(own_module(TRAINER, impl), env | {"RANK": str(rank)}) for rank in range(n)]
    started = [
        subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL) for command, env in starts
    ]
    ended, cpu_s = wait_for(started, LIMIT_S)
    return ended - began, cpu_s


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _row(n: int, impl: str, taken: Sequence[tuple[float, float]]) -> dict[str, Any]:
    walls, cpus = zip(*taken, strict=True)
    return {
        "n": n,
        "impl": impl,
        "rounds": len(taken),
        "min_s": min(walls),
        "median_s": statistics.median(walls),
        "max_s": max(walls),
        "cpu_min_s": min(cpus),
        "cpu_median_s": statistics.median(cpus),
    }


def _print(rows: Sequence[dict[str, Any]], machine: dict[str, Any]) -> None:
    columns = ("n", "backend", *COLUMNS)
    table = table_for(
        "start and end of a job", machine, columns, caption=CAPTION, words=("backend",)
    )
    keys = ("min_s", "median_s", "max_s", "cpu_min_s", "cpu_median_s")
    for r in rows:
        table.add_row(str(r["n"]), r["impl"], *(f"{r[key]:.2f}" for key in keys))
    show(table)
