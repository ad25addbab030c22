"""FSDP1: ``FullyShardedDataParallel``, the older way to cut a model up among the ranks.

Run it with: torchrun --nproc-per-node 2 examples/torch/fsdp1.py
"""

import torch
import torch.distributed as dist
from common import RATE, digest, digits, network, parser, say
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def main() -> None:
    arguments = parser(__doc__).parse_args()
    dist.init_process_group(arguments.backend)

    model = FullyShardedDataParallel(
        network(),
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    batches = digits(dist.get_rank(), dist.get_world_size())
    for step, (x, y) in zip(range(arguments.steps), batches, strict=False):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        say(step=step, loss=loss.item())

    kept = sum(p.numel() for p in model.parameters())
    with FullyShardedDataParallel.summon_full_params(model):
        say(parameters=digest(model.parameters()), kept=kept)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
