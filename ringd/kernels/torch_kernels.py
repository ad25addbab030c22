"""16-bit conversions by torch: it rounds to bfloat16 3x, to float16 20x as fast as numpy.

torch is imported when a function here is called, never before.
"""

from __future__ import annotations

from functools import cache

from ringd.kernels.base import Array
from ringd.kernels.numpy_kernels import NUMPY_CONVERSIONS, Conversions

_WIDENS_FROM_COUNT = {"bfloat16": 1 << 15, "float16": 1 << 10}
_NARROWS_FROM_COUNT = {"bfloat16": 0, "float16": 1 << 10}
"""Below these numpy has converted before torch has wrapped the arrays (1 to 2 us; measured)."""


@cache
def torch_conversions(dtype: str) -> Conversions:
    """The conversions of ``dtype``: equal to numpy's in every bit, but for the bits of NaNs.

    Args:
        dtype: "bfloat16" or "float16".

    Raises:
        ImportError: torch is not there.
    """
    import torch

    from_numpy = torch.from_numpy
    kind = torch.bfloat16 if dtype == "bfloat16" else torch.float16
    reference = NUMPY_CONVERSIONS[dtype]
    widens_from, narrows_from = _WIDENS_FROM_COUNT[dtype], _NARROWS_FROM_COUNT[dtype]

    def widen(src: Array, out: Array) -> None:
        # torch warns when it wraps read-only memory, so that is left to numpy.
        if src.size < widens_from or not src.flags.writeable:
            reference.widen(src, out)
        else:
            from_numpy(out).copy_(from_numpy(src).view(kind))

    def narrow(acc: Array, out: Array) -> None:
        if acc.size < narrows_from:
            reference.narrow(acc, out)
        else:
            from_numpy(out).view(kind).copy_(from_numpy(acc))

    return Conversions(widen, narrow)
