"""DistributedDataParallel: each rank trains on its share, gradients are averaged in the backward.

``--variant`` shows what scripts do with it:

- plain: gradients in buckets, one all_reduce for each bucket;
- views: ``gradient_as_bucket_view``, each gradient lies in its bucket and is not copied there;
- no_sync: two batches for each step, gradients are added up locally and averaged with the second;
- fp16, bf16: torch's hooks, which send gradients in half the bytes.

Run it with: torchrun --nproc-per-node 2 examples/torch/ddp.py
"""

import contextlib

import torch
import torch.distributed as dist
from common import RATE, digest, digits, network, parser, say
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

BUCKET_MB = 0.02  # this network is tiny; 25 MB is usual


def main() -> None:
    choices = ("plain", "views", "no_sync", "fp16", "bf16")
    arguments = parser(__doc__, variant=choices).parse_args()
    dist.init_process_group(arguments.backend)

    variant = arguments.variant
    model = DistributedDataParallel(
        network(), bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=variant == "views"
    )
    if variant == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if variant == "bf16":
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)

    batches = digits(dist.get_rank(), dist.get_world_size())
    batches_per_step = 2 if variant == "no_sync" else 1
    for step in range(arguments.steps):
        optimizer.zero_grad()
        for i in reversed(range(batches_per_step)):
            x, y = next(batches)
            with model.no_sync() if i else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
        optimizer.step()
        say(step=step, loss=loss.item())

    say(parameters=digest(model.parameters()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
