"""Reduce ops as a caller names them: a word, or premul_sum with its factor."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Complex, Integral, Real
from typing import Any, TypeAlias

from ringd.errors import InvalidArgumentError, UnsupportedTypeError
from ringd.vocabulary import DTYPES, REDUCE_OPS

PREMUL_SUM = "premul_sum"


@dataclass(frozen=True, slots=True)
class PremulSum:
    """The sum of all inputs, each multiplied by its rank's factor first; see :func:`premul_sum`."""

    factor: int | float | complex


Op: TypeAlias = str | PremulSum
"""What the reducing collectives take as ``op``."""


def premul_sum(factor: float | complex) -> PremulSum:
    """The reduce op that multiplies each input by ``factor`` before the sum.

        comm.all_reduce(gradient, op=ringd_client.premul_sum(0.25))

    Args:
        factor: a whole number for integer tensors, a real one for floating-point tensors, any
            for complex ones. Ranks may give different factors. The product is rounded once, to
            the tensor's dtype: 16-bit floats are multiplied in float32.

    Raises:
        InvalidArgumentError: not a number.
    """
    if isinstance(factor, bool) or not isinstance(factor, Complex):
        raise InvalidArgumentError(f"the factor of premul_sum is a number, not {factor!r}")
    return PremulSum(_plain(factor))


def word_of(op: Op) -> str:
    """The name of a reduce op.

    Raises:
        InvalidArgumentError: the name of the one that needs a factor.
    """
    if isinstance(op, PremulSum):
        return PREMUL_SUM
    if op == PREMUL_SUM:
        raise InvalidArgumentError(
            "premul_sum needs a factor: pass op=ringd_client.premul_sum(0.5)", op=op
        )
    return op


def mark_of(op: Any) -> Any:
    """What of a reduce op decides what a call looks like.

    Raises:
        InvalidArgumentError: neither a name nor a :class:`PremulSum`.
    """
    if isinstance(op, str):
        return op
    if isinstance(op, PremulSum):
        return PremulSum
    raise InvalidArgumentError(f"op is one of {', '.join(REDUCE_OPS)}, not {op!r}")


def factor_for(op: object, dtype: str) -> Any:
    """The factor for inputs of ``dtype``; None for all other ops than premul_sum.

    Raises:
        UnsupportedTypeError: the dtype's elements can't be multiplied by it.
        InvalidArgumentError: it is out of the dtype's range.
    """
    if not isinstance(op, PremulSum):
        return None
    factor, kind = op.factor, DTYPES[dtype].kind
    if kind == "int" and not isinstance(factor, int):
        raise UnsupportedTypeError(
            f"the factor of premul_sum is to be a whole number for {dtype}, not {factor!r}"
        )
    if kind == "float" and isinstance(factor, complex):
        raise UnsupportedTypeError(
            f"the factor of premul_sum is to be a real number for {dtype}, not {factor!r}"
        )
    if isinstance(factor, int):
        return _in_range(factor, dtype) if kind == "int" else _as_float(factor)
    return factor


def _in_range(factor: int, dtype: str) -> int:
    bits = 8 * DTYPES[dtype].itemsize
    low, high = (0, 2**bits) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    if not low <= factor < high:
        raise InvalidArgumentError(
            f"the factor {factor} of premul_sum is out of the range of {dtype}: take one "
            f"from {low} to {high - 1}"
        )
    return factor


def _plain(factor: Any) -> int | float | complex:
    """Python's own number for one of any library's."""
    if isinstance(factor, Integral):
        return int(factor)
    return _as_float(factor) if isinstance(factor, Real) else complex(factor)


def _as_float(factor: Any) -> float:
    try:
        return float(factor)
    except OverflowError:
        raise InvalidArgumentError(
            "the factor of premul_sum is too large for a float: pass a smaller one"
        ) from None
