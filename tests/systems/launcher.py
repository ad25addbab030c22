"""Runs scripts as torchrun does, but quicker: torch is imported once, and each rank is a fork.

Reads requests from standard input, a JSON object per line: ``script``, ``arguments``, ``size``,
``folder``, ``timeout_s``. Each rank writes to ``folder/RANK.out`` and ``folder/RANK.err``.
Answers each request with the exit codes of its ranks, a JSON list; a rank that runs out of time is
killed.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

import sklearn.datasets  # noqa: F401  what scripts import, once for all
import torch
import torch._dynamo  # optimizers import it
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.distributed.optim
import torch.distributed.pipelining
import torch.distributed.tensor.parallel
import torch.nn.parallel

torch.set_num_threads(1)


def serve() -> dict[str, Any] | None:
    """Answer requests; returns one's rank, in the process that is to be it; at the end None."""
    for line in sys.stdin:
        request = json.loads(line)
        ranks = []
        for rank in range(request["size"]):
            pid, gate = begin(request, rank)
            if pid == 0:
                return request
            ranks.append((pid, gate))
        # Only now, so that no thread of the store is forked.
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for _, gate in ranks:
            os.write(gate, str(store.port).encode())
            os.close(gate)
        print(json.dumps(end([pid for pid, _ in ranks], request["timeout_s"])), flush=True)
        del store
    return None


def begin(request: dict[str, Any], rank: int) -> tuple[int, int]:
    """Fork a rank; (0, -1) in the child, when it is ready to run."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid:
        os.close(readable)
        return pid, writable
    torch.set_num_threads(1)  # see tests.foreign.suites.Recorded.run_test
    os.close(writable)  # and those of the ranks before us stay open, which hurts nobody
    become(request, rank, os.read(readable, 16).decode())
    os.close(readable)
    return 0, -1


def become(request: dict[str, Any], rank: int, port: str) -> None:
    """Standard streams, environment and arguments of a rank."""
    for fd, name in ((1, "out"), (2, "err")):
        file = os.open(f"{request['folder']}/{rank}.{name}", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, fd)
        os.close(file)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    size = str(request["size"])
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    if "gloo" in request["arguments"]:
        dist.destroy_process_group = leave
    sys.argv = [request["script"], *request["arguments"]]
    sys.path[0] = str(Path(request["script"]).parent)


def leave() -> None:
    """In place of ending gloo's group: its threads and Python's lock at times wait for each other
    then (pytorch/pytorch#56297, #190489), and that is not what is tested here."""
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def end(pids: list[int], timeout_s: float) -> list[int]:
    """Wait for the ranks; their exit codes, negative for a signal."""
    until = time.monotonic() + timeout_s
    fds = {os.pidfd_open(pid): pid for pid in pids}
    left = set(fds)
    while left:
        over, _, _ = select.select(left, [], [], max(until - time.monotonic(), 0))
        if not over:
            for fd in left:
                os.kill(fds[fd], signal.SIGKILL)
        left -= set(over)
        if not over:
            break
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    for fd in fds:
        os.close(fd)
    return codes


if __name__ == "__main__":
    request = serve()
    if request is not None:
        runpy.run_path(request["script"], run_name="__main__")
