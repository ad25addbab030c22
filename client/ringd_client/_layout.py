"""Where the elements of a strided tensor lie; pure arithmetic on shape and strides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

MAX_LISTED: Final = 1 << 20
"""Tensors with more elements than this, and strides that look as if they overlap, count as such."""


def extent(
    start: int, shape: Sequence[int], strides: Sequence[int], itemsize: int, unit: int = 1
) -> tuple[int, int]:
    """From which address to before which one the elements lie; gaps are taken in.

    Args:
        start: the address of the first element.
        strides: of each dimension, in ``unit`` bytes; negative ones too.
    """
    if 0 in shape:
        return start, start
    low = high = start
    for stride, size in zip(strides, shape, strict=True):
        low += min(stride, 0) * (size - 1) * unit
        high += max(stride, 0) * (size - 1) * unit
    return low, high + itemsize


def overlaps_itself(shape: Sequence[int], strides: Sequence[int], element: int) -> bool:
    """Whether two elements share memory, so that the tensor can't be an output.

    Args:
        shape: of the tensor.
        strides: of each dimension, in the unit of ``element``; negative ones too.
        element: how many units one element covers.

    Cost: linear in the dimensions for every usual layout. Only layouts whose strides are
    entangled (they come from ``as_strided``) have their elements listed.
    """
    if 0 in shape:
        return False
    steps = sorted((abs(stride), size) for stride, size in zip(strides, shape, strict=True))
    reach = element
    for stride, size in steps:
        if size == 1:
            continue
        if stride < reach:
            return _shares_an_element(shape, strides, element)
        reach += stride * (size - 1)
    return False


def _shares_an_element(shape: Sequence[int], strides: Sequence[int], element: int) -> bool:
    if 0 in {stride for stride, size in zip(strides, shape, strict=True) if size > 1}:
        return True
    if math.prod(shape) > MAX_LISTED:
        return True
    starts = [0]
    for stride, size in zip(strides, shape, strict=True):
        starts = [start + stride * i for start in starts for i in range(size)]
    starts.sort()
    return any(b - a < element for a, b in pairwise(starts))
