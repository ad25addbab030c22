"""Ranks of which one comes first, or alone; says what children it has."""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import ringd_client.torch  # noqa: F401  whether this checkout is installed or not

rank, way = int(sys.argv[1]), sys.argv[2]


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


store = dist.FileStore(os.path.abspath("store"), 2)
timeout = timedelta(seconds=1 if way == "alone" else 60)
if rank == 1:
    store.set("first", str(os.getpid()))
else:
    first = int(store.get("first"))
    until = time.monotonic() + 60
    while not children(first):
        if time.monotonic() > until:
            sys.exit("rank 1 starts nothing before rank 0 is there")
        time.sleep(0.01)
try:
    dist.init_process_group("ringd", store=store, rank=rank, world_size=2, timeout=timeout)
except dist.DistBackendError as exc:
    sys.stdout.write(f"{type(exc).__name__} {len(children(os.getpid()))} children\n")
    sys.exit()
tensor = torch.arange(3.0) + rank
dist.all_reduce(tensor)
sys.stdout.write(f"{len(children(os.getpid()))} child: {tensor.tolist()}\n")
dist.destroy_process_group()
