"""DistributedDataParallel: each rank trains on its share of the digits, gradients are averaged.

``--variant`` shows what scripts do with it:

- plain: gradients in buckets, one all_reduce for each bucket;
- views: ``gradient_as_bucket_view``, each gradient lies in its bucket and is not copied there;
- no_sync: two batches for each step, gradients are added up locally and averaged with the second;
- fp16, bf16: a hook sends gradients in half the bytes. (torch has such hooks, but its own one for
  bf16 refuses to run without a GPU.)

Run it with: torchrun --nproc-per-node 2 examples/torch/ddp.py
"""

import contextlib
from collections.abc import Callable

import torch
import torch.distributed as dist
from common import RATE, digest, digits, network, parser, say
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BUCKET_MB = 0.02  # this network is tiny; 25 MB is usual
Future = torch.futures.Future[torch.Tensor]


def narrow(dtype: torch.dtype) -> Callable[[object, dist.GradBucket], Future]:
    """A hook that averages a bucket of gradients in another dtype."""

    def hook(_: object, bucket: dist.GradBucket) -> Future:
        narrowed = bucket.buffer().to(dtype) / dist.get_world_size()
        future = dist.all_reduce(narrowed, async_op=True).get_future()
        return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))

    return hook


def main() -> None:
    choices = ("plain", "views", "no_sync", "fp16", "bf16")
    arguments = parser(__doc__, variant=choices).parse_args()
    dist.init_process_group(arguments.backend)

    variant = arguments.variant
    model = DistributedDataParallel(
        network(), bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=variant == "views"
    )
    if variant in ("fp16", "bf16"):
        model.register_comm_hook(
            None, narrow({"fp16": torch.half, "bf16": torch.bfloat16}[variant])
        )
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
