"""DistributedDataParallel: each rank trains on its share of the digits, gradients are averaged.

``--variant`` shows what scripts do with it:

- plain: gradients in buckets, one all_reduce for each bucket;
- views: ``gradient_as_bucket_view``, each gradient lies in its bucket and is not copied there;
- no_sync: two batches for each step, whose mean gradient is made locally and averaged once;
- fp16, bf16: a hook of ringd's sends gradients in half the bytes; they are added in float32 and
  rounded once. gloo would add in 16 bits, so with gloo the same numbers travel in float32.

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


def narrow(name: str, backend: str) -> Callable[[object, dist.GradBucket], Future]:
    """A hook that averages a bucket of gradients in 16 bits."""
    if backend == "ringd":
        import ringd_client.torch

        return getattr(ringd_client.torch.hooks, name)

    dtype = {"fp16": torch.half, "bf16": torch.bfloat16}[name]

    def hook(_: object, bucket: dist.GradBucket) -> Future:
        rounded = bucket.buffer().to(dtype).float()
        future = dist.all_reduce(rounded, async_op=True).get_future()

        def finish(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            mean = done.value()[0] / dist.get_world_size()
            return bucket.buffer().copy_(mean.to(dtype))

        return future.then(finish)

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
        model.register_comm_hook(None, narrow(variant, arguments.backend))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)

    batches = digits(dist.get_rank(), dist.get_world_size())
    batches_per_step = 2 if variant == "no_sync" else 1
    for step in range(arguments.steps):
        optimizer.zero_grad()
        for i in reversed(range(batches_per_step)):
            x, y = next(batches)
            with model.no_sync() if i else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(model(x), y)
                (loss / batches_per_step).backward()
        optimizer.step()
        say(step=step, loss=loss.item())

    say(parameters=digest(model.parameters()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
