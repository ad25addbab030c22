"""Pipeline parallelism: each rank has some layers, and micro-batches follow each other.

``--schedule`` says in which order a stage works:

- gpipe: all micro-batches forward, then all backward;
- 1f1b: one forward, one backward in turns, so fewer activations are kept.

Both give the same losses. Two or three ranks.

Run it with: torchrun --nproc-per-node 2 examples/torch/pipeline.py --schedule 1f1b
"""

import torch
import torch.distributed as dist
from common import RATE, digest, digits, network, parser, say
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
MICRO_BATCHES = 4


def layers_of(rank: int, size: int) -> nn.Sequential:
    """This rank's layers of the network: with three ranks, a linear one for each."""
    model = network()
    cut = {1: [0, 5], 2: [0, 2, 5], 3: [0, 2, 4, 5]}[size]
    return model[cut[rank] : cut[rank + 1]]


def main() -> None:
    arguments = parser(__doc__, schedule=tuple(SCHEDULES)).parse_args()
    dist.init_process_group(arguments.backend)

    rank, size = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(layers_of(rank, size), rank, size, torch.device("cpu"))
    schedule = SCHEDULES[arguments.schedule](
        stage, n_microbatches=MICRO_BATCHES, loss_fn=nn.functional.cross_entropy
    )
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=RATE, momentum=0.9)

    for step, (x, y) in zip(range(arguments.steps), digits(0, 1), strict=False):
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        inputs = (x,) if rank == 0 else ()
        if rank == size - 1:
            schedule.step(*inputs, target=y, losses=losses)
            say(step=step, loss=torch.stack(losses).mean().item())
        else:
            schedule.step(*inputs)
        optimizer.step()

    say(stage=rank, parameters=digest(stage.submod.parameters()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
