"""Part 4 on a rank: a small network, its gradients averaged over the ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from ringd.demo.workers.reference import digest
from ringd_client import Communicator

HIDDEN = 64
Reducer = Callable[[torch.Tensor], object]


def answer(comm: Communicator, order: dict[str, Any]) -> dict[str, Any]:
    """Train once, with ``backend`` "ringd" or "gloo" moving the data."""
    data = np.load(order["data"])
    shard = slice(comm.rank, None, comm.world_size)
    x, y = (torch.from_numpy(data[name][shard]) for name in ("train_x", "train_y"))
    torch.manual_seed(comm.rank)  # all ranks start differently; the broadcast makes them equal
    model = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
    average, broadcast = _ringd(comm) if order["backend"] == "ringd" else _gloo(comm.world_size)
    begun = time.monotonic()
    _share(model, broadcast)
    losses = []
    for epoch in range(order["epochs"]):
        chance = torch.Generator().manual_seed(epoch * comm.world_size + comm.rank)
        shuffled = torch.randperm(len(x), generator=chance)
        for first in range(0, len(x) - order["batch"] + 1, order["batch"]):
            batch = shuffled[first : first + order["batch"]]
            losses.append(_step(model, x[batch], y[batch], average, order["rate"]))
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    return {
        "losses": losses,
        "seconds": time.monotonic() - begun,
        "parameters": flat.numel(),
        "digest": digest(flat),
        "accuracy": _accuracy(model, data),
    }


def _ringd(comm: Communicator) -> tuple[Reducer, Reducer]:
    """Averaging, and giving all what rank 0 has."""
    return lambda bucket: comm.all_reduce(bucket, "avg"), lambda flat: comm.broadcast(flat, 0)


def _gloo(world_size: int) -> tuple[Reducer, Reducer]:
    def average(bucket: torch.Tensor) -> None:
        dist.all_reduce(bucket)
        bucket /= world_size

    return average, lambda flat: dist.broadcast(flat, 0)


def _share(model: nn.Module, broadcast: Reducer) -> None:
    """Give all ranks the parameters of rank 0."""
    for parameter in model.parameters():
        broadcast(parameter.data)


def _step(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, average: Reducer, rate: float
) -> float:
    """One step of gradient descent; the loss over the batches of all ranks.

    All gradients travel in one bucket, and the loss with them.
    """
    parameters = list(model.parameters())
    loss = nn.functional.cross_entropy(model(x), y)
    gradients = torch.autograd.grad(loss, parameters)
    bucket = torch.cat([loss.detach().view(1), *(g.flatten() for g in gradients)])
    average(bucket)
    averaged = torch.split(bucket[1:], [p.numel() for p in parameters])
    with torch.no_grad():
        for parameter, gradient in zip(parameters, averaged, strict=True):
            parameter.sub_(gradient.view_as(parameter), alpha=rate)
    return float(bucket[0])


def _accuracy(model: nn.Module, data: Any) -> float:
    with torch.no_grad():
        found = model(torch.from_numpy(data["test_x"])).argmax(1)
    return float((found == torch.from_numpy(data["test_y"])).to(torch.float32).mean())
