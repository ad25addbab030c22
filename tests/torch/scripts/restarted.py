"""A rank is killed in its first life; torchrun starts all of them anew."""

import os
import signal
import sys

import torch
import torch.distributed as dist

dist.init_process_group("ringd")
life = os.environ["TORCHELASTIC_RESTART_COUNT"]
rank = dist.get_rank()
dist.barrier()
if life == "0" and rank == int(sys.argv[1]):
    os.kill(os.getpid(), signal.SIGKILL)
try:
    for _ in range(3):
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
except dist.DistBackendError as exc:
    sys.stdout.write(f"rank {rank} in life {life}: {exc}\n")
    sys.stdout.flush()
    sys.exit(3)
sys.stdout.write(f"rank {rank} in life {life}: {tensor.item():g}\n")
dist.destroy_process_group()
