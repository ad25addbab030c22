"""The overlap of DistributedDataParallel, seen: gradients travel while others are computed.

Prints for each step, in nanoseconds of CLOCK_MONOTONIC, when the backward pass began and when it
had computed its last gradient. The daemons' accounting has the same clock: a line for each
all_reduce, with ``start_ns`` and ``end_ns``. Those of the first buckets, which hold the last
layers' gradients, start in between.

Run it with: RINGD_ACCOUNTING=ops.jsonl torchrun --nproc-per-node 2 examples/torch/overlap.py
"""

import time

import torch
import torch.distributed as dist
from common import digest, digits, parser, say
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, BATCHES = 768, 4, 8


def main() -> None:
    arguments = parser(__doc__).parse_args()
    dist.init_process_group(arguments.backend)

    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    network = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), *layers, nn.Linear(WIDTH, 10))
    gradient_times: list[int] = []
    for parameter in network.parameters():
        parameter.register_hook(lambda _: gradient_times.append(time.monotonic_ns()))
    model = DistributedDataParallel(network, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

    batches = digits(dist.get_rank(), dist.get_world_size())
    for step in range(arguments.steps):
        x, y = map(torch.cat, zip(*(next(batches) for _ in range(BATCHES)), strict=True))
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        gradient_times.clear()
        began = time.monotonic_ns()
        loss.backward()
        say(step=step, loss=loss.item(), began_ns=began, last_gradient_ns=gradient_times[-1])
        optimizer.step()

    say(parameters=digest(model.parameters()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
