"""Says where this rank's daemon is, and what the ranks told each other through the store."""

import json
import os
import sys

import torch
import torch.distributed as dist

if "MEET_AT" in os.environ:
    rank, size = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("ringd", os.environ["MEET_AT"], rank=rank, world_size=size)
else:
    dist.init_process_group("ringd")
group = dist.group.WORLD
tensor = torch.arange(3.0) + dist.get_rank()
dist.all_reduce(tensor)
plan = json.loads(group.meeting.get("plan"))
said = {
    "rank": dist.get_rank(),
    "sum": tensor.tolist(),
    "address": group.comm.status()["address"],
    "rendezvous": plan["rendezvous"],
    "secret": plan.get("secret"),
}
sys.stdout.write(json.dumps(said) + "\n")
dist.destroy_process_group()
