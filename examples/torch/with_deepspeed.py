"""DeepSpeed's ZeRO, stages 1 to 3, on the CPU: ``init_process_group`` first, as with Accelerate.

Needs the package ``deepspeed``, and a C++ compiler: DeepSpeed compiles a part of itself when it is
first used, which takes a minute or two. (If that is killed, a file ``lock`` stays in
``~/.cache/torch_extensions``, and later runs wait for it.)

Run it with: DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 examples/torch/with_deepspeed.py
"""

import deepspeed
import torch
import torch.distributed as dist
from common import BATCH, RATE, digest, digits, network, parser, say
from torch import nn


def main() -> None:
    arguments = parser(__doc__, stage=("1", "2", "3")).parse_args()
    dist.init_process_group(arguments.backend)

    model = network()
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9),
        dist_init_required=False,
        config={
            "train_micro_batch_size_per_gpu": BATCH,
            "zero_optimization": {"stage": int(arguments.stage)},
            "zero_allow_untested_optimizer": True,
        },
    )
    batches = digits(dist.get_rank(), dist.get_world_size())
    for step, (x, y) in zip(range(arguments.steps), batches, strict=False):
        loss = nn.functional.cross_entropy(engine(x), y)
        engine.backward(loss)
        engine.step()
        say(step=step, loss=loss.item())

    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        say(parameters=digest(model.parameters()))
    engine.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
