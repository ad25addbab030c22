"""numpy arrays for the client."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ringd.errors import InvalidTensorError, UnsupportedTypeError
from ringd.vocabulary import DTYPES
from ringd_client._arena import Arena, Block
from ringd_client._cells import Cell
from ringd_client._kinds import Kind
from ringd_client._layout import extent, overlaps_itself
from ringd_client._segments import Segment
from ringd_client._tensors import SHORT_COPY_BYTES, Adapter, unsupported_dtype

_FOREIGN = ("bfloat16", *(name for name, dtype in DTYPES.items() if dtype.kind == "opaque"))
_NAMES = {np.dtype(name): name for name in DTYPES if name not in _FOREIGN}
"""Keyed by the dtype, not by its name: a byte-swapped one has the same name."""


class NumpyAdapter:
    """See :class:`ringd_client._tensors.Adapter`."""

    library = "numpy"

    def extent(self, tensor: Any) -> tuple[int, int]:
        start = tensor.__array_interface__["data"][0]
        return extent(start, tensor.shape, tensor.strides, tensor.itemsize)

    def new(self, dtype: str, shape: tuple[int, ...]) -> Any:
        return np.empty(shape, dtype)

    def flat(self, tensor: Any) -> Any:
        return np.asarray(tensor).reshape(-1)

    def describe(self, tensor: Any) -> tuple[str, tuple[int, ...]]:
        name = _NAMES.get(tensor.dtype)
        if name is None:
            raise _unsupported(tensor.dtype)
        return name, tensor.shape

    def check_output(self, tensor: Any) -> int:
        flags = tensor.flags
        if not flags.writeable:
            raise InvalidTensorError("the output is a read-only array; pass a copy of it")
        if flags.c_contiguous:
            return 0
        if overlaps_itself(tensor.shape, tensor.strides, tensor.itemsize):
            raise InvalidTensorError(
                f"the output overlaps itself (shape {tensor.shape}, strides {tensor.strides}): "
                "several elements share memory; pass a copy of it"
            )
        return 0

    def address(self, tensor: Any) -> int | None:
        if not tensor.flags.c_contiguous:
            return None
        address: int = tensor.__array_interface__["data"][0]
        return address

    def is_plain(self, tensor: Any) -> bool:
        return True

    def load(self, tensor: Any, segment: Segment, offset: int, size_bytes: int) -> None:
        if size_bytes <= SHORT_COPY_BYTES and _has_plain_bytes(tensor):
            segment.view[offset : offset + size_bytes] = memoryview(tensor).cast("B")
        else:
            np.copyto(_shared(tensor, segment, offset), tensor)

    def store(self, tensor: Any, segment: Segment, offset: int, size_bytes: int) -> None:
        if tensor.nbytes != size_bytes:
            raise InvalidTensorError(
                f"the output had {size_bytes} bytes when the call began and has {tensor.nbytes} "
                "now; resize it when the call is over"
            )
        if size_bytes <= SHORT_COPY_BYTES and _has_plain_bytes(tensor):
            memoryview(tensor).cast("B")[:] = segment.view[offset : offset + size_bytes]
        else:
            np.copyto(tensor, _shared(tensor, segment, offset))

    def scale(
        self, tensor: Any, factor: Any, segment: Segment, offset: int, size_bytes: int
    ) -> None:
        dtype = tensor.dtype
        flat = np.frombuffer(segment.memory, dtype, size_bytes // dtype.itemsize, offset)
        with np.errstate(all="ignore"):
            if dtype == np.float16:
                np.copyto(flat, flat.astype(np.float32) * np.float32(factor), casting="same_kind")
            else:
                np.multiply(flat, dtype.type(factor), out=flat)

    def cell(self, arena: Arena, key: object, kind: Kind, block: Block, tensor: Any) -> Cell | None:
        if type(tensor) is not np.ndarray:  # others may have their own idea of assignment
            return None
        return NumpyCell(arena, key, kind, block, tensor)

    def wrap(self, owner: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        return np.frombuffer(owner, dtype)[: prod(shape)].reshape(shape)

    def dtype_name(self, dtype: Any) -> str:
        if dtype in _FOREIGN:
            raise UnsupportedTypeError(f'numpy has no {dtype}: use like="torch"', dtype=dtype)
        try:
            return _NAMES[np.dtype(dtype)]
        except (KeyError, TypeError):
            raise _unsupported(dtype) from None


class NumpyCell(Cell):
    """See :class:`ringd_client._cells.Cell`."""

    __slots__ = ("_dtype", "_shape", "_shared")

    def __init__(self, arena: Arena, key: object, kind: Kind, block: Block, tensor: Any) -> None:
        super().__init__(arena, key, kind, block)
        self._dtype = tensor.dtype
        self._shape = tensor.shape
        self._shared = _shared(tensor, block.segment, block.offset)

    def load(self, tensor: Any) -> bool:
        if not tensor.flags.carray:
            return False
        self._shared[...] = tensor
        return True

    def store(self, tensor: Any) -> None:
        is_as_it_was = tensor.dtype is self._dtype and tensor.shape == self._shape
        if is_as_it_was and tensor.flags.carray:
            tensor[...] = self._shared
        else:
            NUMPY.store(tensor, self.block.segment, self.block.offset, self.kind.result_bytes)


def _unsupported(dtype: Any) -> UnsupportedTypeError:
    """The error for a dtype that is not in ``_NAMES``; of swapped bytes it says which are not."""
    native = dtype.newbyteorder("=") if isinstance(dtype, np.dtype) else None
    if native is None or native not in _NAMES:
        return unsupported_dtype(dtype)
    return UnsupportedTypeError(
        f"dtype {dtype.str} has its bytes in another order than this machine: pass "
        f'array.astype("{native.str}")',
        dtype=str(dtype),
    )


def _has_plain_bytes(tensor: Any) -> bool:
    """Whether a memoryview can show the bytes: it does not know complex numbers."""
    return bool(tensor.flags.c_contiguous and tensor.dtype.kind != "c")


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
