"""One rank of ``ringd bench --startup``: import torch, init, one all_reduce, destroy."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist


def main(impl: str) -> None:
    """Be a rank; where ``impl`` is "none", torch is imported and that is all."""
    torch.set_num_threads(1)
    if impl == "none":
        return
    dist.init_process_group(impl)
    n = dist.get_world_size()
    tensor = torch.arange(4.0) + dist.get_rank()
    dist.all_reduce(tensor)
    if not torch.equal(tensor, torch.arange(4.0) * n + n * (n - 1) / 2):
        raise ValueError(f"the sum is wrong: {tensor.tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
