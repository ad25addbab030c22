"""A script that knows nothing of ringd but the name of the backend."""

import os
import sys
import time

began = time.monotonic()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

dist.init_process_group(sys.argv[1], init_method=os.environ.get("INIT_METHOD"))
rank, size = dist.get_rank(), dist.get_world_size()
tensor = torch.arange(4.0) + rank
dist.all_reduce(tensor)
took_s = time.monotonic() - began
sys.stdout.write(
    f"rank {rank} of {size}: {tensor.tolist()} by {dist.get_backend()} after {took_s:.2f} s\n"
)
dist.destroy_process_group()
