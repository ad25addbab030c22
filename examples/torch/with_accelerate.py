"""Accelerate: call ``init_process_group`` first; Accelerate takes the group that it finds.

(By itself it would choose from a list of backends of its own.) Needs the package ``accelerate``.

Run it with: torchrun --nproc-per-node 2 examples/torch/with_accelerate.py
"""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from common import RATE, digest, digits, network, parser, say
from torch import nn


def main() -> None:
    arguments = parser(__doc__).parse_args()
    dist.init_process_group(arguments.backend)

    accelerator = Accelerator(cpu=True)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    batches = digits(accelerator.process_index, accelerator.num_processes)
    for step, (x, y) in zip(range(arguments.steps), batches, strict=False):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        say(step=step, loss=loss.item())

    say(parameters=digest(model.parameters()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
