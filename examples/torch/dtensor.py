"""DTensor: tensors that know how they are cut up, on a mesh of two dimensions.

Rows of the mesh have different digits (data parallel), columns different parts of the two
matrices (tensor parallel). Nothing here calls a collective: matmul finds out what a product of
such tensors is, and ``redistribute`` moves what must be moved. Takes an even number of ranks.

Run it with: torchrun --nproc-per-node 4 examples/torch/dtensor.py
"""

import torch
import torch.distributed as dist
from common import RATE, digest, digits, parser, say
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor


def main() -> None:
    arguments = parser(__doc__).parse_args()
    dist.init_process_group(arguments.backend)

    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(0)
    by_columns, by_rows = (Replicate(), Shard(1)), (Replicate(), Shard(0))
    first = distribute_tensor(torch.randn(64, 128) / 8, mesh, by_columns).requires_grad_()
    second = distribute_tensor(torch.randn(128, 10) / 11, mesh, by_rows).requires_grad_()

    for step, (x, y) in zip(range(arguments.steps), digits(0, 1), strict=False):
        x, y = (distribute_tensor(part, mesh, (Shard(0), Replicate())) for part in (x, y))
        hidden = (x @ first).relu()  # rows by data, columns by tensor: nothing moved
        scores = (hidden @ second).redistribute(mesh, (Shard(0), Replicate()))  # a sum over tensor
        loss = nn.functional.cross_entropy(scores, y)
        loss.backward()
        with torch.no_grad():
            for weight in (first, second):
                weight -= RATE * mean_over_data(weight)
                weight.grad = None
        say(step=step, loss=loss.full_tensor().item())

    kept = first.to_local().numel() + second.to_local().numel()
    say(parameters=digest(p.full_tensor() for p in (first, second)), kept=kept)
    dist.destroy_process_group()


def mean_over_data(weight: DTensor) -> DTensor:
    """Its gradient, laid out as the weight: each row of the mesh has computed a part of the sum."""
    return weight.grad.redistribute(weight.device_mesh, weight.placements)


if __name__ == "__main__":
    main()
