"""Hooks for DistributedDataParallel that send gradients in half the bytes.

    model.register_comm_hook(None, ringd_client.torch.hooks.bf16)

Each gradient is rounded twice: to the narrow type before it leaves its rank, and when the mean is
stored. In between nothing is: the daemons add and divide in float32 (docs/dtypes.md), so neither
a sum of many ranks nor the division can overflow or lose small parts, as they do where the sum is
taken in 16 bits. What lies beyond the range of float16 (65504) is infinite all the same.

DDP reads the annotations of its hooks, so they can't be postponed here.
"""

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from ringd.errors import InvalidArgumentError, RingdError
from ringd_client.torch.errors import for_torch
from ringd_client.torch.identity import Identity
from ringd_client.torch.staging import stream_of

Future = torch.futures.Future[torch.Tensor]


def bf16(group: dist.ProcessGroup | None, bucket: GradBucket) -> Future:
    """Average a bucket of gradients in bfloat16: float32's range, 8 bits of precision.

    Args:
        group: the state that was registered: a group of the backend ringd; None: the default one.

    Raises:
        InvalidArgumentError: a group of another backend.

    Cost: an all_reduce of half of float32's bytes; gradients are rounded straight into shared
    memory, so it needs no copies beside.
    """
    return _mean_in(torch.bfloat16, group, bucket)


def fp16(group: dist.ProcessGroup | None, bucket: GradBucket) -> Future:
    """Average a bucket of gradients in float16: 11 bits of precision, from 6e-8 up to 65504.

    Arguments, errors and cost are those of :func:`bf16`.
    """
    return _mean_in(torch.float16, group, bucket)


def _mean_in(dtype: torch.dtype, group: dist.ProcessGroup | None, bucket: GradBucket) -> Future:
    """Narrow, average, widen; what travels is what ``_narrowed`` makes."""
    backend: Any = group if group is not None else dist.group.WORLD
    if not isinstance(backend, Identity):
        raise for_torch(
            InvalidArgumentError(
                "the hooks of ringd_client.torch are for groups of ringd; for others there are "
                "those of torch.distributed.algorithms.ddp_comm_hooks"
            )
        )
    buffer = bucket.buffer()
    stream = stream_of(buffer) if buffer.is_cuda else contextlib.nullcontext()
    try:
        narrow = _narrowed(buffer, dtype, backend)
    except RingdError as exc:  # a hook that raises is the end of a DDP model
        failed: Future = backend._failed(("all_reduce",), exc).get_future()
        return failed
    work: Any = dist.all_reduce(narrow, dist.ReduceOp.AVG, group=backend, async_op=True)

    def widen(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        with stream:
            buffer.copy_(done.value()[0])
        return buffer

    future: Future = work.get_future().then(widen)
    return future


def _narrowed(buffer: torch.Tensor, dtype: torch.dtype, group: Identity) -> torch.Tensor:
    """The gradients in another dtype, where the daemon can reach them if we can."""
    if not buffer.is_cpu:
        return buffer.to(dtype)
    narrow: torch.Tensor = group.comm.empty(tuple(buffer.shape), dtype)
    return narrow.copy_(buffer)
