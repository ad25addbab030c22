"""What the results must be, from the definition: none comes from the code under test.

float32 is computed in float64 and rounded after each step: for one addition, product or quotient
of float32 values that rounds as if once, because 53 bits are at least 2 * 24 + 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from ringd.kernels.scratch import block_count

Array = npt.NDArray[Any]

INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
COMPLEX = ("complex64", "complex128")
NATIVE = ("float32", "float64", *INTEGERS, "bool", *COMPLEX)
SIXTEEN_BIT = ("float16", "bfloat16")
FLOATS = ("float32", "float64", *SIXTEEN_BIT)
OPS = ("sum", "prod", "min", "max", "avg", "premul_sum")
"""Of floats."""
PAIRS = [
    *((dtype, op) for dtype in FLOATS for op in OPS),
    *(
        (dtype, op)
        for dtype in INTEGERS
        for op in ("sum", "prod", "min", "max", "premul_sum", "band", "bor", "bxor")
    ),
    *(("bool", op) for op in ("sum", "prod", "min", "max", "band", "bor", "bxor")),
    *((dtype, op) for dtype in COMPLEX for op in ("sum", "prod", "avg", "premul_sum")),
]
FOLDED_IN = {"complex64": "float32", "complex128": "float64"} | dict.fromkeys(
    SIXTEEN_BIT, "float32"
)


def storage_of(dtype: str) -> np.dtype[Any]:
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def block_of(dtype: str) -> int:
    """Elements of ``dtype`` in one block of its kernel."""
    pairs = 2 if dtype in COMPLEX else 1
    return block_count(np.dtype(FOLDED_IN.get(dtype, dtype)).itemsize) // pairs


def random_bits(dtype: str, count: int, seed: int) -> Array:
    """All kinds of values: NaN, infinities and subnormal numbers, bools of any byte."""
    storage = storage_of(dtype)
    data = np.random.default_rng(seed).bytes(count * storage.itemsize)
    return np.frombuffer(bytearray(data), storage)


def plain_values(dtype: str, count: int, seed: int) -> Array:
    """Values of moderate size, as in gradients."""
    rng = np.random.default_rng(seed)
    if dtype in INTEGERS:
        return rng.integers(-1000, 1000, count).astype(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(dtype)
    values = rng.standard_normal(count)
    if dtype in COMPLEX:
        return (values + 1j * rng.standard_normal(count)).astype(dtype)
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
        "premul_sum": lambda a, b: a + b,
        "prod": lambda a, b: a * b,
        "min": smallest,
        "max": largest,
        "band": lambda a, b: a & b,
        "bor": lambda a, b: a | b,
        "bxor": lambda a, b: a ^ b,
    }
    return steps[op]


def _bool_step(op: str) -> Callable[[Any, Any], Any]:
    if op == "bxor":
        return lambda a, b: a != b
    if op in ("sum", "max", "bor"):
        return lambda a, b: a or b
    return lambda a, b: a and b


def _wrap(value: int, dtype: str) -> int:
    bits = 8 * np.dtype(dtype).itemsize
    lowest = 0 if dtype.startswith("u") else -(1 << (bits - 1))
    return (value - lowest) % (1 << bits) + lowest


def _to_float32(value: float) -> float:
    return float(np.float32(value))


def fold(dtype: str, op: str, world_size: int, contributions: Sequence[Array]) -> Array:
    """The left fold of native types (float32 results for the 16-bit ones are not rounded yet)."""
    if dtype in COMPLEX:
        return _fold_complex(dtype, op, world_size, contributions)
    if dtype == "bool":
        truths = [(c.view(np.uint8) != 0).tolist() for c in contributions]
        step = _bool_step(op)
        return np.array([reduce(step, column) for column in zip(*truths, strict=True)], bool)
    settle: Callable[[Any], Any] = float if dtype == "float64" else _to_float32
    if dtype in INTEGERS:
        settle = lambda value: _wrap(value, dtype)  # noqa: E731
    step = _step(op)
    result = []
    with np.errstate(all="ignore"):
        for column in zip(*(c.tolist() for c in contributions), strict=True):
            value = column[0]
            for nxt in column[1:]:
                value = settle(step(value, nxt))
            result.append(settle(value / world_size) if op == "avg" else value)
        return np.array(result, dtype)


def _fold_complex(dtype: str, op: str, world_size: int, contributions: Sequence[Array]) -> Array:
    part = FOLDED_IN[dtype]
    result = np.empty(contributions[0].size, dtype)
    if op != "prod":
        for of in (np.real, np.imag):
            of(result)[:] = fold(part, op, world_size, [of(c) for c in contributions])
        return result
    settle: Callable[[Any], Any] = float if part == "float64" else _to_float32
    with np.errstate(all="ignore"):
        for i, column in enumerate(zip(*(c.tolist() for c in contributions), strict=True)):
            re, im = column[0].real, column[0].imag
            for z in column[1:]:
                re, im = (
                    settle(settle(re * z.real) - settle(im * z.imag)),
                    settle(settle(re * z.imag) + settle(im * z.real)),
                )
            result.real[i], result.imag[i] = re, im
    return result


def assert_same(actual: Array, expected: Array, *, ignore_zero_sign: bool = False) -> None:
    """Equal bits, except that any NaN equals any other.

    Args:
        actual: what the code gave; float16, native types.
        expected: of the same type.
        ignore_zero_sign: for minima and maxima, which may return either of -0.0 and +0.0.
    """
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if actual.dtype.kind == "c":
        part = FOLDED_IN[actual.dtype.name]
        actual, expected = actual.view(part), expected.view(part)
    if actual.dtype.kind == "b":
        actual, expected = actual.view(np.uint8), expected.view(np.uint8)
    if actual.dtype.kind != "f":
        np.testing.assert_array_equal(actual, expected)
        return
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(actual[number], expected[number])
    if not ignore_zero_sign:
        np.testing.assert_array_equal(np.signbit(actual[number]), np.signbit(expected[number]))
