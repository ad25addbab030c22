"""all_reduce of sparse tensors: ranks exchange indices and values, and each adds them up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ringd.errors import InvalidTensorError, RingdError, UnsupportedReductionError
from ringd_client.torch.errors import for_torch
from ringd_client.torch.options import seconds

if TYPE_CHECKING:
    from ringd_client.torch.identity import Identity


def sparse_sum(group: Identity, tensor: torch.Tensor, op: object, opts: Any) -> None:
    """Add up the sparse tensors of all ranks, in place. It blocks, asynchronous or not.

    Ranks add in rank order, so all have the same bits.

    Raises:
        UnsupportedReductionError: another op than sum.
        InvalidTensorError: not a COO tensor.

    Cost: an all_gather of 8 bytes per rank, and one each of all indices and values.
    """
    if op != "sum":
        raise UnsupportedReductionError(
            "sparse tensors can only be summed: take ReduceOp.SUM, or pass tensor.to_dense()",
            op=str(op),
            dtype=str(tensor.dtype),
        )
    if tensor.layout is not torch.sparse_coo:
        raise InvalidTensorError(
            f"a sparse tensor is to be COO, not {tensor.layout}: pass tensor.to_sparse_coo()"
        )
    comm, timeout_s = group.comm, seconds(opts.timeout)
    with torch.no_grad():
        ours = tensor.detach().coalesce()
        indices = ours.indices().t().contiguous()
        values = ours.values().contiguous()
        sizes = torch.empty(comm.world_size, dtype=torch.int64)
        try:
            comm.all_gather(sizes, torch.tensor([len(values)]), timeout_s=timeout_s)
            counts = sizes.tolist()
            everybodys = indices.new_empty((sum(counts), *indices.shape[1:]))
            comm.all_gather(everybodys, indices, counts=counts, timeout_s=timeout_s)
            all_values = values.new_empty((sum(counts), *values.shape[1:]))
            comm.all_gather(all_values, values, counts=counts, timeout_s=timeout_s)
        except RingdError as exc:
            raise for_torch(exc) from exc.__cause__
        total = torch.sparse_coo_tensor(everybodys.t(), all_values, tensor.shape)
        tensor.copy_(total.coalesce())
