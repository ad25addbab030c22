"""torch tensors for the client."""

from __future__ import annotations

from operator import mul
from typing import Any

import torch

from ringd.errors import InvalidTensorError, UnsupportedTypeError
from ringd.vocabulary import DTYPES
from ringd_client._arena import Arena, Block
from ringd_client._cells import Cell
from ringd_client._kinds import Kind
from ringd_client._layout import extent, overlaps_itself
from ringd_client._segments import Segment
from ringd_client._tensors import Adapter, copy_bytes, copy_short, unsupported_dtype

_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in DTYPES if hasattr(torch, name)
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def known_dtype(dtype: torch.dtype) -> bool:
    """Whether ringd has it."""
    return dtype in _NAMES


def _check_storage(tensor: torch.Tensor) -> None:
    """Refuse a tensor whose elements have no memory: storages can be resized under it.

    Callers spare themselves this where a tensor begins a storage of its size, the common case.

    Raises:
        InvalidTensorError: it would be read or written beyond its storage.
    """
    storage_bytes = tensor.untyped_storage().nbytes()
    offset, itemsize = tensor.storage_offset(), tensor.itemsize
    if not offset and tensor.is_contiguous() and tensor.data_ptr():
        if tensor.nbytes <= storage_bytes:
            return
    elif not tensor.numel():
        return
    strides = tensor.stride()
    end = (offset + sum(map(mul, tensor.shape, strides)) - sum(strides) + 1) * itemsize
    # Of a storage without memory the address is 0, or the offset.
    if storage_bytes < end or tensor.data_ptr() <= offset * itemsize:
        raise InvalidTensorError(
            f"the elements of the tensor end at byte {end} of its storage, which has "
            f"{storage_bytes}: it was resized, or never had memory; pass a tensor that owns its "
            "elements"
        )


class TorchAdapter:
    """See :class:`ringd_client._tensors.Adapter`.

    Contiguous tensors are copied by address, so neither autograd nor the inference mode sees
    it; others go through ``detach()``.
    """

    library = "torch"

    def extent(self, tensor: Any) -> tuple[int, int]:
        itemsize = tensor.element_size()
        return extent(tensor.data_ptr(), tensor.shape, tensor.stride(), itemsize, itemsize)

    def new(self, dtype: str, shape: tuple[int, ...]) -> Any:
        return torch.empty(shape, dtype=_DTYPES[dtype])

    def flat(self, tensor: Any) -> Any:
        return tensor.detach().reshape(-1)

    def describe(self, tensor: Any) -> tuple[str, tuple[int, ...]]:
        name = _NAMES.get(tensor.dtype)
        if name is None:
            raise unsupported_dtype(tensor.dtype)
        if not tensor.is_cpu or tensor.layout is not torch.strided:
            raise UnsupportedTypeError(
                f"a dense tensor in CPU memory is wanted, not one on {tensor.device} with layout "
                f"{tensor.layout}; pass tensor.cpu(), or tensor.to_dense()"
            )
        if (
            tensor.storage_offset()
            or not tensor.is_contiguous()
            or tensor.untyped_storage().nbytes() < tensor.nbytes
            or not tensor.data_ptr()
        ):
            _check_storage(tensor)
        return name, tensor.shape

    def check_output(self, tensor: Any) -> int:
        is_plain = not (tensor.is_neg() or tensor.is_conj())
        if is_plain and tensor.is_contiguous():
            address: int = tensor.data_ptr()
            return address
        if not is_plain:
            word = "conjugated" if tensor.is_conj() else "negated"
            raise InvalidTensorError(
                f"the output is a lazily {word} view; pass tensor.resolve_conj().resolve_neg()"
            )
        if overlaps_itself(tensor.shape, tensor.stride(), 1):
            raise InvalidTensorError(
                f"the output overlaps itself (shape {tuple(tensor.shape)}, strides "
                f"{tensor.stride()}): several elements share memory; pass tensor.contiguous()"
            )
        return 0

    def address(self, tensor: Any) -> int | None:
        return tensor.data_ptr() if tensor.is_contiguous() else None

    def is_plain(self, tensor: Any) -> bool:
        return not (tensor.is_neg() or tensor.is_conj())

    def load(self, tensor: Any, segment: Segment, offset: int, size_bytes: int) -> None:
        if tensor.is_contiguous() and not (tensor.is_neg() or tensor.is_conj()):
            copy_bytes(segment.address + offset, tensor.data_ptr(), size_bytes)
        else:
            with torch.no_grad():
                _shared(tensor, segment, offset).copy_(tensor.detach())

    def store(self, tensor: Any, segment: Segment, offset: int, size_bytes: int) -> None:
        if tensor.nbytes != size_bytes:
            raise InvalidTensorError(
                f"the output had {size_bytes} bytes when the call began and has {tensor.nbytes} "
                "now; resize it when the call is over"
            )
        if tensor.is_contiguous():
            address = tensor.data_ptr()
            begins = address and not tensor.storage_offset()
            if not begins or tensor.untyped_storage().nbytes() < size_bytes:
                _check_storage(tensor)
            copy_bytes(address, segment.address + offset, size_bytes)
        else:
            _check_storage(tensor)
            with torch.no_grad():
                tensor.detach().copy_(_shared(tensor, segment, offset))

    def scale(
        self, tensor: Any, factor: Any, segment: Segment, offset: int, size_bytes: int
    ) -> None:
        with torch.no_grad():
            _flat(tensor.dtype, segment, offset, size_bytes // tensor.itemsize).mul_(factor)

    def cell(self, arena: Arena, key: object, kind: Kind, block: Block, tensor: Any) -> Cell | None:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return None
        return TorchCell(arena, key, kind, block)

    def wrap(self, owner: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        storage = torch.frombuffer(owner, dtype=torch.uint8).untyped_storage()
        with torch.no_grad():
            return torch.empty(0, dtype=_DTYPES[dtype]).set_(storage, 0, shape)  # type: ignore[call-overload]

    def dtype_name(self, dtype: Any) -> str:
        name = _NAMES.get(dtype) if isinstance(dtype, torch.dtype) else None
        if name is None and isinstance(dtype, str) and dtype in _DTYPES:
            name = dtype
        if name is None:
            raise unsupported_dtype(dtype)
        return name


class TorchCell(Cell):
    """See :class:`ringd_client._cells.Cell`."""

    __slots__ = ("_address", "_is_complex", "_size_bytes")

    def __init__(self, arena: Arena, key: object, kind: Kind, block: Block) -> None:
        super().__init__(arena, key, kind, block)
        self._address = block.segment.address + block.offset
        self._is_complex = DTYPES[kind.spec.dtype].kind == "complex"
        self._size_bytes = kind.result_bytes

    def load(self, tensor: Any) -> bool:
        if (
            not tensor.is_cpu
            or tensor.layout is not torch.strided
            or not tensor.is_contiguous()
            or tensor.is_neg()
            or (self._is_complex and tensor.is_conj())
            or tensor.storage_offset()
            or tensor.untyped_storage().nbytes() < self._size_bytes
        ):
            return False
        address = tensor.data_ptr()
        if not address:
            return False
        copy_short(self._address, address, self._size_bytes)
        return True

    def store(self, tensor: Any) -> None:
        size_bytes = self._size_bytes
        if (
            tensor.nbytes == size_bytes
            and tensor.is_contiguous()
            and not tensor.storage_offset()
            and tensor.untyped_storage().nbytes() >= size_bytes
            and (address := tensor.data_ptr())
        ):
            copy_short(address, self._address, size_bytes)
        else:
            TORCH.store(tensor, self.block.segment, self.block.offset, size_bytes)


def _shared(tensor: Any, segment: Segment, offset: int) -> torch.Tensor:
    return _flat(tensor.dtype, segment, offset, tensor.numel()).view(tensor.shape)


def _flat(dtype: torch.dtype, segment: Segment, offset: int, count: int) -> torch.Tensor:
    return torch.frombuffer(segment.memory, dtype=dtype, count=count, offset=offset)


TORCH = TorchAdapter()


def adapter_for(cls: type) -> Adapter:
    """The adapter for tensors of this class.

    Raises:
        UnsupportedTypeError: tensors that wrap other tensors (DTensor, fake tensors).
    """
    plain = torch.Tensor.__torch_dispatch__
    if getattr(cls, "__torch_dispatch__", plain) is not plain:
        raise UnsupportedTypeError(
            f"a {cls.__qualname__} wraps other tensors: pass the local one (DTensor: to_local())"
        )
    return TORCH
