"""The same network trained four ways, which differ in how gradients are averaged.

- gather: rank 0 gathers all gradients, averages them and scatters the result;
- messages: each rank sends its gradients to each other rank, and averages what it has received;
- all_reduce: one collective;
- ddp: DistributedDataParallel, the same collective in the midst of the backward pass.

All four print the same losses: the same bits with two ranks, and with more what float32 gives if
it is added up in another order.

Run it with: torchrun --nproc-per-node 2 examples/torch/four_ways.py --way messages
"""

import torch
import torch.distributed as dist
from common import RATE, digest, digits, network, parser, say
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def by_gather(gradient: torch.Tensor) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [torch.empty_like(gradient) for _ in range(size)] if rank == 0 else None
    dist.gather(gradient, parts, dst=0)
    if parts is not None:
        parts = [sum(parts) / size] * size
    dist.scatter(gradient, parts, src=0)


def by_messages(gradient: torch.Tensor) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [torch.empty_like(gradient) for _ in range(size)]
    parts[rank] = gradient.clone()
    others = [peer for peer in range(size) if peer != rank]
    works = [dist.irecv(parts[peer], peer) for peer in others]
    works += [dist.isend(parts[rank], peer) for peer in others]
    for work in works:
        work.wait()
    gradient.copy_(sum(parts) / size)  # in rank order, so it is the same on all ranks


def by_all_reduce(gradient: torch.Tensor) -> None:
    dist.all_reduce(gradient)
    gradient /= dist.get_world_size()


WAYS = {"gather": by_gather, "messages": by_messages, "all_reduce": by_all_reduce, "ddp": None}


def main() -> None:
    arguments = parser(__doc__, way=tuple(WAYS)).parse_args()
    dist.init_process_group(arguments.backend)

    average = WAYS[arguments.way]
    model = network() if average else DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    batches = digits(dist.get_rank(), dist.get_world_size())
    for step, (x, y) in zip(range(arguments.steps), batches, strict=False):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if average:
            for parameter in model.parameters():
                average(parameter.grad)
        optimizer.step()
        say(step=step, loss=loss.item())

    say(parameters=digest(model.parameters()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
