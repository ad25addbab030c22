"""A parameter server: rank 0 has the parameters, the others compute gradients.

In each step the server gives all workers its parameters, and moves them by the average of the
gradients that come back. ``--way`` says how both travel:

- messages: ``send`` and ``recv``; the server takes gradients from whoever is first (``src=None``),
  and adds them up in the order of the ranks, so that the result does not depend on that;
- gather: ``broadcast`` and ``gather``.

Both give the same bits. parameter_server_native.py is the same program without torch.distributed.

Run it with: torchrun --nproc-per-node 3 examples/torch/parameter_server.py
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from common import RATE, digest, digits, network, parser, say
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

PARAMETERS, GRADIENTS = 1, 2
"""Tags."""


def serve_by_messages(flat: torch.Tensor, workers: int) -> torch.Tensor:
    """Give the parameters away; the gradients of all workers, one row for each."""
    sending = [dist.isend(flat, rank, tag=PARAMETERS) for rank in range(1, workers + 1)]
    for work in sending:
        work.wait()
    rows = torch.empty(workers, len(flat))
    for _ in range(workers):
        row = torch.empty_like(flat)
        rank = dist.recv(row, src=None, tag=GRADIENTS)
        rows[rank - 1] = row
    return rows


def serve_by_gather(flat: torch.Tensor, workers: int) -> torch.Tensor:
    dist.broadcast(flat, src=0)
    rows = torch.empty(1 + workers, len(flat))
    dist.gather(torch.zeros_like(flat), list(rows), dst=0)
    return rows[1:]


def fetch(flat: torch.Tensor, way: str) -> None:
    if way == "messages":
        dist.recv(flat, src=0, tag=PARAMETERS)
    else:
        dist.broadcast(flat, src=0)


def push(gradients: torch.Tensor, way: str) -> None:
    if way == "messages":
        dist.send(gradients, 0, tag=GRADIENTS)
    else:
        dist.gather(gradients, dst=0)


def serve(model: nn.Module, steps: int, way: str) -> None:
    flat = parameters_to_vector(model.parameters()).detach()
    workers = dist.get_world_size() - 1
    for _ in range(steps):
        rows = (serve_by_messages if way == "messages" else serve_by_gather)(flat, workers)
        flat -= RATE * rows.mean(0)
    vector_to_parameters(flat, model.parameters())


def work(
    model: nn.Module, batches: Iterator[tuple[torch.Tensor, ...]], steps: int, way: str
) -> None:
    flat = parameters_to_vector(model.parameters()).detach()
    for step, (x, y) in zip(range(steps), batches, strict=False):
        fetch(flat, way)
        vector_to_parameters(flat, model.parameters())
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        push(torch.cat([p.grad.flatten() for p in model.parameters()]), way)
        say(step=step, loss=loss.item())


def main() -> None:
    arguments = parser(__doc__, way=("messages", "gather")).parse_args()
    dist.init_process_group(arguments.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    if size < 2:
        raise SystemExit("a server and at least one worker: --nproc-per-node 2 or more")
    model = network()
    if rank == 0:
        serve(model, arguments.steps, arguments.way)
        say(parameters=digest(model.parameters()))
    else:
        work(model, digits(rank - 1, size - 1), arguments.steps, arguments.way)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
