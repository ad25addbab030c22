"""Which deadline calls have: of the world and of a sub-group, as the script asks or does not."""

import os
import sys
from datetime import timedelta

import torch.distributed as dist

given = {"timeout": timedelta(seconds=float(sys.argv[1]))} if sys.argv[1:] else {}
dist.init_process_group("ringd", **given)
groups = [dist.group.WORLD, dist.new_group([0, 1]), dist.new_group([0, 1], **given)]
times = [f"{group.comm.default_timeout_s:g}" for group in groups]
os.write(1, f"rank {dist.get_rank()}: {', '.join(times)} s\n".encode())
dist.destroy_process_group()
