"""Rank 0 waits in a call for the others, which sleep."""

import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("ringd")
dist.all_reduce(torch.ones(4))
os.write(1, b"waits\n")  # whole, whoever else writes
if dist.get_rank():
    time.sleep(600)
dist.all_reduce(torch.ones(4))
