"""ZeroRedundancyOptimizer: each rank keeps the optimizer's state of its share of the parameters.

Adam has two numbers for each parameter. Here they are cut up among the ranks: each updates its
parameters, and broadcasts them to the others.

Run it with: torchrun --nproc-per-node 2 examples/torch/zero_optimizer.py
"""

import torch
import torch.distributed as dist
from common import digest, digits, network, parser, say
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    arguments = parser(__doc__).parse_args()
    dist.init_process_group(arguments.backend)

    model = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01
    )
    batches = digits(dist.get_rank(), dist.get_world_size())
    for step, (x, y) in zip(range(arguments.steps), batches, strict=False):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        say(step=step, loss=loss.item())

    kept = sum(state["exp_avg"].numel() for state in optimizer.optim.state.values())
    say(parameters=digest(model.parameters()), kept=kept)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
