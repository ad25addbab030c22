"""Rank 1 raises between two calls, which torchrun reports."""

import torch
import torch.distributed as dist

dist.init_process_group("ringd")
tensor = torch.ones(4)
dist.all_reduce(tensor)
if dist.get_rank() == 1:
    raise ValueError("bad batch")
dist.all_reduce(tensor)
