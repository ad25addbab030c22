"""What the results must be, from the definition: nothing here uses the code under test.

float32 is computed in float64 and rounded after each step: for one addition, product or quotient
of float32 values that rounds as if once, because 53 bits are at least 2 * 24 + 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

NATIVE = ("float32", "float64", "int32", "int64")
SIXTEEN_BIT = ("float16", "bfloat16")
OPS = ("sum", "prod", "min", "max", "avg")
PAIRS = [
    (dtype, op)
    for dtype in (*NATIVE, *SIXTEEN_BIT)
    for op in OPS
    if not (op == "avg" and dtype.startswith("int"))
]


def storage_of(dtype: str) -> np.dtype[Any]:
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def random_bits(dtype: str, count: int, seed: int) -> Array:
    """All kinds of values, NaN, infinities and subnormal numbers among them."""
    storage = storage_of(dtype)
    data = np.random.default_rng(seed).bytes(count * storage.itemsize)
    return np.frombuffer(bytearray(data), storage)


def plain_values(dtype: str, count: int, seed: int) -> Array:
    """Values of moderate size, as in gradients."""
    rng = np.random.default_rng(seed)
    if dtype.startswith("int"):
        return rng.integers(-1000, 1000, count).astype(dtype)
    values = rng.standard_normal(count)
    if dtype != "bfloat16":
        return values.astype(dtype)
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def to_float32(dtype: str, storage: Array) -> Array:
    if dtype == "float16":
        return storage.astype(np.float32)
    return np.array([int(bits) << 16 for bits in storage], np.uint32).view(np.float32)


def _step(op: str) -> Callable[[Any, Any], Any]:
    def smallest(a: Any, b: Any) -> Any:
        return math.nan if a != a or b != b else min(a, b)

    def largest(a: Any, b: Any) -> Any:
        return math.nan if a != a or b != b else max(a, b)

    steps: dict[str, Callable[[Any, Any], Any]] = {
        "sum": lambda a, b: a + b,
        "avg": lambda a, b: a + b,
        "prod": lambda a, b: a * b,
        "min": smallest,
        "max": largest,
    }
    return steps[op]


def _wrap(value: int, bits: int) -> int:
    return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def _to_float32(value: float) -> float:
    return float(np.float32(value))


def fold(dtype: str, op: str, world_size: int, contributions: Sequence[Array]) -> Array:
    """The left fold of native types (float32 results for the 16-bit ones are not rounded yet)."""
    if dtype.startswith("int"):
        bits = 8 * np.dtype(dtype).itemsize
        settle: Callable[[Any], Any] = lambda value: _wrap(value, bits)  # noqa: E731
    else:
        settle = float if dtype == "float64" else _to_float32
    step = _step(op)
    result = []
    with np.errstate(all="ignore"):
        for column in zip(*(c.tolist() for c in contributions), strict=True):
            value = column[0]
            for nxt in column[1:]:
                value = settle(step(value, nxt))
            result.append(settle(value / world_size) if op == "avg" else value)
        return np.array(result, dtype)


def assert_same(actual: Array, expected: Array, *, ignore_zero_sign: bool = False) -> None:
    """Equal bits, except that any NaN equals any other.

    Args:
        actual: what the code gave; float16, native types.
        expected: of the same type.
        ignore_zero_sign: for minima and maxima, which may return either of -0.0 and +0.0.
    """
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if actual.dtype.kind != "f":
        np.testing.assert_array_equal(actual, expected)
        return
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(actual[number], expected[number])
    if not ignore_zero_sign:
        np.testing.assert_array_equal(np.signbit(actual[number]), np.signbit(expected[number]))
