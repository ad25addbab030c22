"""Tensor parallelism: each layer's matrix is cut up among the ranks; all see the same batch.

The first layer is cut by its outputs, the second by its inputs: so the activations between them
never have to be whole, and one all_reduce after the second layer is all that moves. The last one
is cut by outputs again, and its results are gathered.

Run it with: torchrun --nproc-per-node 2 examples/torch/tensor_parallel.py
"""

import torch
import torch.distributed as dist
from common import RATE, digest, digits, network, parser, say
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


def main() -> None:
    arguments = parser(__doc__).parse_args()
    dist.init_process_group(arguments.backend)

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {
        "0": ColwiseParallel(),
        "2": RowwiseParallel(),
        "4": ColwiseParallel(output_layouts=Replicate()),
    }
    model = parallelize_module(network(), mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    for step, (x, y) in zip(range(arguments.steps), digits(0, 1), strict=False):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        say(step=step, loss=loss.item())

    kept = sum(p.to_local().numel() for p in model.parameters())
    say(parameters=digest(p.full_tensor() for p in model.parameters()), kept=kept)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
