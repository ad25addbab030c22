"""Data-parallel training by torch.distributed, for torchrun: ``ddp.py BACKEND`` prints JSON.

The losses are checked between backends, so the batches are the same whoever carries them.
"""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 5


def main(backend: str) -> None:
    """Train a small network; the losses of this rank and the sum of its weights."""
    if backend == "ringd":
        import ringd_client.torch  # noqa: F401
    dist.init_process_group(backend)
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(16, 300), torch.nn.ReLU(), torch.nn.Linear(300, 1)
    )
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    chance = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(STEPS):
        inputs = torch.randn(8, 16, generator=chance)
        optimizer.zero_grad()
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = sum(parameter.sum().item() for parameter in model.parameters())
    host = dist.get_rank()
    dist.destroy_process_group()
    print(json.dumps({"rank": host, "losses": losses, "weights": weights}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
    if sys.argv[1] != "ringd":
        # All is said. gloo, the reference, now and then aborts the process while Python ends
        # ("terminate called without an active exception").
        os._exit(0)
