"""What the client needs of a tensor, whichever library made it.

One adapter per library, found by the tensor's class and loaded only when such a tensor turns
up, so that a program without torch never imports it.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final, Protocol

from ringd.errors import InvalidArgumentError, UnsupportedTypeError
from ringd.vocabulary import DTYPES
from ringd_client._segments import Segment

if TYPE_CHECKING:
    from ringd_client._arena import Arena, Block
    from ringd_client._cells import Cell
    from ringd_client._kinds import Kind

SHORT_COPY_BYTES: Final = 64 << 10
"""Copies up to this size keep the interpreter lock: handing it over costs more than they do."""

copy_short: Final = ctypes.PyDLL(None).memmove
"""As :func:`copy_bytes`, up to SHORT_COPY_BYTES."""
_long_memmove = ctypes.CDLL(None).memmove
for _memmove in (copy_short, _long_memmove):
    _memmove.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    _memmove.restype = None


def copy_bytes(target: int, source: int, size_bytes: int) -> None:
    """Copy between two addresses; the regions may overlap. About 0.5 µs and 10 GB/s.

    One thread does it on purpose: several ranks of a machine copy at the same time, and torch's
    own threaded copy takes more processor time for the same bytes.
    """
    if size_bytes <= SHORT_COPY_BYTES:
        copy_short(target, source, size_bytes)
    else:
        _long_memmove(target, source, size_bytes)


class Carrier(Protocol):
    """Tensors of one kind, seen as shape, dtype and bytes in logical (row-major) order."""

    def describe(self, tensor: Any) -> tuple[str, tuple[int, ...]]:
        """The dtype's name and the shape.

        Raises:
            UnsupportedTypeError: not a dense tensor in this machine's memory, or its dtype is
                none that ringd moves.
        """

    def check_output(self, tensor: Any) -> int:
        """Whether results may be written to ``tensor``.

        Returns:
            Where its elements begin, if its bytes are they, in logical order; 0: they are not, or
            nobody knows without looking.

        Raises:
            InvalidTensorError: it is read-only, overlaps itself, or is a lazy view (negated,
                conjugated).
        """

    def address(self, tensor: Any) -> int | None:
        """Where the elements begin, if they lie in logical order without gaps."""

    def is_plain(self, tensor: Any) -> bool:
        """Whether the elements are what their bytes say: not lazily negated or conjugated."""

    def load(self, tensor: Any, segment: Segment, offset: int, size_bytes: int) -> None:
        """Copy the elements to shared memory; ``size_bytes`` is their size, not zero."""

    def store(self, tensor: Any, segment: Segment, offset: int, size_bytes: int) -> None:
        """Write the elements from shared memory, past autograd, whatever the grad mode is.

        Raises:
            InvalidTensorError: the tensor does not have ``size_bytes`` any more.
        """

    def scale(
        self, tensor: Any, factor: Any, segment: Segment, offset: int, size_bytes: int
    ) -> None:
        """Multiply in shared memory what was loaded there, as ``tensor * factor`` does.

        16-bit floats are multiplied in float32 and rounded once; integers wrap.
        """


class Adapter(Carrier, Protocol):
    """A library's tensors, and how to make one.

    Attributes:
        library: its name, for :func:`adapter_named`.
    """

    library: str

    def extent(self, tensor: Any) -> tuple[int, int]:
        """From which address to before which one the elements lie, with any gaps."""

    def new(self, dtype: str, shape: tuple[int, ...]) -> Any:
        """A contiguous tensor in ordinary memory, with any contents."""

    def flat(self, tensor: Any) -> Any:
        """The elements in logical order, in one dimension: a view if they lie so, else a copy."""

    def cell(self, arena: Arena, key: object, kind: Kind, block: Block, tensor: Any) -> Cell | None:
        """A cell for tensors like this one, with their dtype and shape, in a block that it gets;
        None: for their class there are none."""

    def wrap(self, owner: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        """A tensor over the beginning of the buffer ``owner``, which it keeps alive."""

    def dtype_name(self, dtype: Any) -> str:
        """The name of a dtype, given as the library's own object or as a name.

        Raises:
            UnsupportedTypeError: none that ringd moves.
        """


by_class: Final[dict[type, Adapter]] = {}
"""Those that :func:`adapter_of` has found."""


def adapter_of(tensor: object, argument: str = "tensor") -> Adapter:
    """The adapter for ``tensor``.

    Raises:
        UnsupportedTypeError: it is no tensor, or one of a kind whose bytes are not its values.
    """
    adapter = by_class.get(type(tensor))
    return adapter if adapter is not None else _find(type(tensor), argument)


def adapter_named(library: str) -> Adapter:
    """The adapter of "torch" or "numpy".

    Raises:
        InvalidArgumentError: another name.
        ImportError: the library is not installed.
    """
    if library == "torch":
        from ringd_client._torch import TORCH

        return TORCH
    if library == "numpy":
        from ringd_client._numpy import NUMPY

        return NUMPY
    raise InvalidArgumentError(f'like is "torch" or "numpy", not {library!r}')


CONVERT: Final = "convert first: tensor.to(dtype), array.astype(dtype)"
"""What to do about a dtype."""


def unsupported_dtype(dtype: object) -> UnsupportedTypeError:
    """The error for a dtype that ringd does not move."""
    known = ", ".join(DTYPES)
    return UnsupportedTypeError(
        f"dtype {dtype} is none of ringd's: {known}; {CONVERT}", dtype=str(dtype)
    )


def _find(cls: type, argument: str) -> Adapter:
    roots = {(base.__module__.partition(".")[0], base.__name__) for base in cls.__mro__}
    if ("torch", "Tensor") in roots or ("torch", "TensorBase") in roots:
        from ringd_client import _torch

        adapter: Adapter = _torch.adapter_for(cls)
    elif ("numpy", "ndarray") in roots:
        from ringd_client import _numpy

        adapter = _numpy.adapter_for(cls)
    else:
        raise UnsupportedTypeError(
            f"{argument} is to be a torch tensor or a numpy array, not {cls.__qualname__}; "
            "torch.as_tensor(...) or np.asarray(...) makes one",
            type=cls.__qualname__,
        )
    by_class[cls] = adapter
    return adapter
