"""all_reduce of torch tensors: a float32 one, a bfloat16 one, and one that is never copied.

Run it with: ringd run -n 4 -- python examples/hello_torch.py
"""

import torch

import ringd_client

with ringd_client.connect() as comm:
    ones = torch.ones(4) * (comm.rank + 1)
    comm.all_reduce(ones)  # in place; the default op is the sum
    print(f"rank {comm.rank} of {comm.world_size}: sum {ones.tolist()}")

    halves = torch.full((2, 3), comm.rank, dtype=torch.bfloat16)
    comm.all_reduce(halves, op="avg")  # summed in float32, rounded once
    print(f"rank {comm.rank} of {comm.world_size}: average {halves[0, 0].item()}")

    shared = comm.empty(1_000_000)  # lies in memory that the daemon sees too
    shared.fill_(comm.rank)
    comm.all_reduce(shared, op="max")
    print(f"rank {comm.rank} of {comm.world_size}: largest rank {int(shared[0])}")
