"""numpy arrays for the client."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ringd.errors import InvalidTensorError, UnsupportedTypeError
from ringd.vocabulary import DTYPES
from ringd_client._layout import overlaps_itself
from ringd_client._segments import Segment
from ringd_client._tensors import SHORT_COPY_BYTES, Adapter, unsupported_dtype

_NAMES = {np.dtype(name): name for name in DTYPES if name != "bfloat16"}
"""Keyed by the dtype, not by its name: a byte-swapped one has the same name."""


class NumpyAdapter:
    """See :class:`ringd_client._tensors.Adapter`."""

    def describe(self, tensor: Any) -> tuple[str, tuple[int, ...]]:
        name = _NAMES.get(tensor.dtype)
        if name is None:
            raise unsupported_dtype(tensor.dtype)
        return name, tensor.shape

    def check_output(self, tensor: Any) -> None:
        flags = tensor.flags
        if not flags.writeable:
            raise InvalidTensorError("the output is a read-only array; pass a copy of it")
        if flags.c_contiguous:
            return
        if overlaps_itself(tensor.shape, tensor.strides, tensor.itemsize):
            raise InvalidTensorError(
                f"the output overlaps itself (shape {tensor.shape}, strides {tensor.strides}): "
                "several elements share memory; pass a copy of it"
            )

    def address(self, tensor: Any) -> int | None:
        if not tensor.flags.c_contiguous:
            return None
        address: int = tensor.__array_interface__["data"][0]
        return address

    def load(self, tensor: Any, segment: Segment, offset: int, size_bytes: int) -> None:
        if size_bytes <= SHORT_COPY_BYTES and tensor.flags.c_contiguous:
            segment.view[offset : offset + size_bytes] = memoryview(tensor).cast("B")
        else:
            np.copyto(_shared(tensor, segment, offset), tensor)

    def store(self, tensor: Any, segment: Segment, offset: int, size_bytes: int) -> None:
        if tensor.nbytes != size_bytes:
            raise InvalidTensorError(
                f"the output had {size_bytes} bytes when the call began and has {tensor.nbytes} now"
            )
        if size_bytes <= SHORT_COPY_BYTES and tensor.flags.c_contiguous:
            memoryview(tensor).cast("B")[:] = segment.view[offset : offset + size_bytes]
        else:
            np.copyto(tensor, _shared(tensor, segment, offset))

    def wrap(self, owner: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        return np.frombuffer(owner, dtype)[: prod(shape)].reshape(shape)

    def dtype_name(self, dtype: Any) -> str:
        try:
            return _NAMES[np.dtype(dtype)]
        except (KeyError, TypeError):
            raise unsupported_dtype(dtype) from None


def _shared(tensor: Any, segment: Segment, offset: int) -> Any:
    flat = np.frombuffer(segment.memory, tensor.dtype, tensor.size, offset)
    return flat.reshape(tensor.shape)


NUMPY = NumpyAdapter()


def adapter_for(cls: type) -> Adapter:
    """The adapter for arrays of this class.

    Raises:
        UnsupportedTypeError: masked arrays, whose values are more than their bytes.
    """
    if issubclass(cls, np.ma.MaskedArray):
        raise UnsupportedTypeError(
            "a masked array has a mask beside its data: pass array.data or array.filled(...)"
        )
    return NUMPY
