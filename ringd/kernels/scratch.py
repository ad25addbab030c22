"""What each thread keeps for its kernels: work memory that stays in cache, and silence.

numpy keeps its floating-point error state in a context variable. Entering ``np.errstate`` costs
three times as much as adding two small arrays, so each thread holds a context in which all is
ignored already, and enters that (about 50 ns). It cannot be shared: a context may be entered
only once at a time, and numpy lets other threads run during a reduction.
"""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import numpy as np

from ringd.kernels.base import Array

BLOCK_BYTES = 1 << 18
"""Accumulator bytes per block: 65,536 float32. The two areas below and an input of 16-bit floats
stay within 1 MiB of L2. Measured on 2 MiB: half of this costs 15 to 30 % more (calls), twice
this as much for float32 (cache)."""

_ALIGN_BYTES = 64
"""Vector loads and stores that cross a cache line take twice as long (measured, AVX-512)."""

_ACCUMULATORS = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64",
)  # fmt: skip
"""Complex numbers are worked on as pairs of floats."""


def block_count(itemsize: int) -> int:
    """Elements of one block, given the size of one: a power of two of 1 to 16 bytes."""
    return BLOCK_BYTES // itemsize


def _area() -> Array:
    """One block of aligned bytes; pages are not touched before use."""
    memory = np.empty(BLOCK_BYTES + _ALIGN_BYTES, np.uint8)
    start = -memory.ctypes.data % _ALIGN_BYTES
    return memory[start : start + BLOCK_BYTES]


class ThreadScratch(threading.local):
    """Made once per thread, at its first use there.

    Attributes:
        run: calls a function with numpy's floating-point warnings off. Not re-entrant.
        partial: one block for the partial result, by accumulator type.
        addend: one block of float32, for the next contribution, widened; no native reduction needs
            it, so that products of complex numbers keep their terms there.
        bits: the same memory as ``addend``, as uint32, for rounding: nothing is added by then.
    """

    def __init__(self) -> None:
        context = contextvars.Context()
        context.run(np.seterr, all="ignore")
        self.run = context.run
        partial = _area()
        self.partial: dict[str, Array] = {name: partial.view(name) for name in _ACCUMULATORS}
        self.addend: np.ndarray[Any, np.dtype[np.float32]] = _area().view(np.float32)
        self.bits: np.ndarray[Any, np.dtype[np.uint32]] = self.addend.view(np.uint32)


SCRATCH = ThreadScratch()
