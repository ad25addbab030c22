"""A training step under DistributedDataParallel: the same numbers whatever the backend."""

from __future__ import annotations

import hashlib
from time import perf_counter_ns

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 1024
LAYERS = 24
BATCH = 32
"""Rows of a rank's part of the batch."""
PARAMETERS = LAYERS * (WIDTH + 1) * WIDTH
"""25.2 million, in buckets of DDP's own size; each travels while the backward pass goes on."""


class Training:
    """A model, its optimizer and its data, which depend on seed, rank and step alone.

    Args:
        group: None: the default group.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for _ in range(LAYERS):
            layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
        self._model = DistributedDataParallel(nn.Sequential(*layers), process_group=group)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.1)
        self._data = torch.Generator().manual_seed(1 + dist.get_rank())

    def step(self) -> tuple[float, float]:
        """Forward, backward, optimizer.

        Returns:
            The time it took in µs, and this rank's loss.
        """
        batch, target = torch.randn((2, BATCH, WIDTH), generator=self._data)
        begun = perf_counter_ns()
        self._optimizer.zero_grad()
        loss = nn.functional.mse_loss(self._model(batch), target)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return (perf_counter_ns() - begun) / 1e3, loss.item()

    def digest(self) -> str:
        """Of all bits of the parameters."""
        found = hashlib.sha256()
        for parameter in self._model.parameters():
            found.update(parameter.detach().view(torch.uint8).numpy().tobytes())
        return found.hexdigest()
