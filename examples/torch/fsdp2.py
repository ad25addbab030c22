"""FSDP2: ``fully_shard`` cuts parameters, gradients and optimizer state up among the ranks.

``--mesh`` says among whom:

- flat: all of them;
- hybrid (HSDP): a mesh of two dimensions. Two neighbours share a copy of the parameters, each
  has a part; pairs average gradients among each other. Takes an even number of ranks.

Run it with: torchrun --nproc-per-node 4 examples/torch/fsdp2.py --mesh hybrid
"""

import torch
import torch.distributed as dist
from common import RATE, digest, digits, network, parser, say
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    arguments = parser(__doc__, mesh=("flat", "hybrid")).parse_args()
    dist.init_process_group(arguments.backend)

    rank, size = dist.get_rank(), dist.get_world_size()
    if arguments.mesh == "flat":
        mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("shard",))
    else:
        mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("replicate", "shard"))
    model = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)

    for step, (x, y) in zip(range(arguments.steps), digits(rank, size), strict=False):
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
