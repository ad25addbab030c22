"""Tensors as the client takes them: dtypes that it does not know travel as their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from ringd.errors import InvalidArgumentError
from ringd_client._torch import known_dtype

_BY_SIZE: Final = {
    1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128,
}  # fmt: skip


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a tensor that is only moved, in a dtype of that size that the client has."""
    dtype = tensor.dtype
    if known_dtype(dtype) or tensor.is_quantized:
        return tensor
    like = _BY_SIZE.get(dtype.itemsize)
    return tensor if like is None else tensor.detach().view(like)


def all_moved(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """:func:`moved` for each."""
    return [moved(tensor) for tensor in tensors]


def single(tensors: Any, name: str = "tensors") -> Any:
    """The one element of a list of one.

    Raises:
        InvalidArgumentError: it has several, or none: those of one rank's several devices.
    """
    if not isinstance(tensors, (list, tuple)):
        return tensors
    if len(tensors) != 1:
        raise InvalidArgumentError(
            f"{name} is a list of one element, as a rank has one device; it has {len(tensors)}"
        )
    return tensors[0]


def rows(sizes: Sequence[int], tensor: torch.Tensor, world_size: int) -> list[int]:
    """How many elements of a tensor go to or come from each rank.

    Args:
        sizes: rows of dimension 0; empty: equal shares.

    Raises:
        InvalidArgumentError: they do not fit.
    """
    length = tensor.shape[0] if tensor.dim() else 1
    if not sizes:
        if length % world_size:
            raise InvalidArgumentError(
                f"a tensor of shape {tuple(tensor.shape)} can't be shared equally by {world_size} "
                "ranks along dimension 0; pass split sizes"
            )
        return [tensor.numel() // world_size] * world_size
    if len(sizes) != world_size or sum(sizes) != length:
        raise InvalidArgumentError(
            f"split sizes are the rows for each of {world_size} ranks, {length} in all, "
            f"not {list(sizes)}"
        )
    row = tensor.numel() // length if length else 0
    return [int(size) * row for size in sizes]


def cut(tensor: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    """Views of a tensor's parts along dimension 0, given in elements."""
    if not tensor.numel():
        return [tensor.reshape(-1)[:0] for _ in sizes]
    row = tensor.numel() // tensor.shape[0]
    return list(torch.split(tensor, [size // row for size in sizes]))
