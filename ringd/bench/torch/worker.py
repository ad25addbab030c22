"""One rank under one backend: times calls and training steps, as the driver orders."""

from __future__ import annotations

import socket
import struct
import sys
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any

import ringd.bench.worker  # noqa: F401  first: it gives SIGINT back to the system

import torch  # isort: skip
import torch.distributed as dist  # isort: skip

from ringd.bench.orders import serve
from ringd.bench.torch.training import Training
from ringd_client._environment import daemon_socket

WARM_UP_CALLS = 20
_CREDENTIALS = struct.Struct("3i")


def main(argv: list[str]) -> None:
    """``worker CONTROL ringd`` or ``worker CONTROL gloo RANK WORLD_SIZE INIT_METHOD``."""
    torch.set_num_threads(1)
    control, impl, *rest = argv
    if rest:
        place = {"rank": int(rest[0]), "world_size": int(rest[1]), "init_method": rest[2]}
        dist.init_process_group(impl, **place)  # type: ignore[arg-type]
    else:
        dist.init_process_group(impl)
    clock = Processor(None if rest else _daemon())
    kept: dict[str, Training] = {}
    hello = {"impl": impl, "rank": dist.get_rank(), "n": dist.get_world_size()}
    serve(control, hello, lambda order: _obey(order, clock, kept))
    kept.clear()
    dist.destroy_process_group()


class Processor:
    """Processor time of this rank: of this process, all of its threads, and of its daemon.

    Args:
        daemon: its process; None: there is none.
    """

    def __init__(self, daemon: int | None) -> None:
        self._tasks = None if daemon is None else Path(f"/proc/{daemon}/task")

    def spent_us(self) -> float:
        """What was spent so far."""
        spent_ns = process_time_ns()
        if self._tasks is not None:
            for task in self._tasks.iterdir():
                spent_ns += int((task / "schedstat").read_text().split()[0])
        return spent_ns / 1e3


def _daemon() -> int:
    """The process that listens for us."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(daemon_socket())
        told = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(told)[0]
    return pid


def _obey(order: dict[str, Any], clock: Processor, kept: dict[str, Training]) -> dict[str, Any]:
    if order["do"] == "calls":
        return _calls(clock, order["bytes"], order["calls"])
    memory = order["memory"]
    if memory not in kept:
        kept[memory] = Training(_group(memory))
    return _steps(clock, kept[memory], order["warm_up"], order["steps"])


def _group(memory: str) -> dist.ProcessGroup | None:
    """The default group, which adopts storages, or one that copies."""
    if memory != "copied":
        return None
    from ringd_client.torch import Options

    found = dist.new_group(pg_options=Options(adopt_storages=False))
    assert isinstance(found, dist.ProcessGroup)
    return found


def _calls(clock: Processor, size_bytes: int, calls: int) -> dict[str, Any]:
    """A checked all_reduce, a warm-up, then ``calls`` timed ones."""
    rank, n = dist.get_rank(), dist.get_world_size()
    index = torch.arange(size_bytes // 4, dtype=torch.float32)
    tensor = index * (rank + 1)
    dist.all_reduce(tensor)
    ok = torch.equal(tensor, index * (n * (n + 1) // 2))
    tensor.zero_()
    for _ in range(WARM_UP_CALLS):
        dist.all_reduce(tensor)
    times = []
    before = clock.spent_us()
    for _ in range(calls):
        begun = perf_counter_ns()
        dist.all_reduce(tensor)
        times.append((perf_counter_ns() - begun) / 1e3)
    spent = clock.spent_us() - before
    return {"times_us": times, "ok": ok, "cpu_us": spent / calls}


def _steps(clock: Processor, training: Training, warm_up: int, steps: int) -> dict[str, Any]:
    """Training steps, of which those after the warm-up are timed; the losses of all."""
    taken = [training.step() for _ in range(warm_up)]
    before = clock.spent_us()
    taken += [training.step() for _ in range(steps)]
    spent = clock.spent_us() - before
    return {
        "times_us": [time for time, _ in taken[warm_up:]],
        "losses": [loss for _, loss in taken],
        "digest": training.digest(),
        "cpu_us": spent / steps,
    }


if __name__ == "__main__":
    main(sys.argv[1:])
