"""How near a result has to be to what is expected, how near it is, and its bits."""

from __future__ import annotations

import hashlib
import math

import torch

from ringd.bench.tensors import dtype_of
from ringd.demo.cases import ORDERED, Case
from ringd.demo.workers.definition import widened
from ringd.vocabulary import DETERMINISTIC_ALGORITHMS, DTYPES

_ROUNDED = frozenset({"sum", "prod", "avg", "premul_sum"})
_EXACT = frozenset(DETERMINISTIC_ALGORITHMS) - {"auto"}


def tolerance(case: Case, world_size: int) -> float:
    """The largest relative error that is right.

    0: the same values. Otherwise two orders of N-1 roundings in float32 or float64, each off by
    half of eps at most, and an average's division; √5 times that for products of complex numbers
    (Brent, Percival and Zimmermann, Error bounds on complex floating-point multiplication); or one
    rounding step of a 16-bit float whose float32 sum was added in another order.
    """
    kind = DTYPES[case.dtype].kind if case.dtype else ""
    if kind not in ("float", "complex") or case.reduce_op not in _ROUNDED or case.form == ORDERED:
        return 0.0
    eps = float(torch.finfo(dtype_of(case.dtype)).eps)
    if case.is_folded:
        return 0.0 if case.algorithm in _EXACT else eps
    roundings = world_size if case.reduce_op == "avg" else world_size - 1
    is_complex_product = case.reduce_op == "prod" and kind == "complex"
    return roundings * eps * (math.sqrt(5) if is_complex_product else 1)


def max_error(result: torch.Tensor, expected: torch.Tensor, relative_to: torch.Tensor) -> float:
    """The largest error relative to ``relative_to``.

    0.0 only if all values are equal, and not finite if one of them is no number, or if there are
    not as many of them.
    """
    if result.shape != expected.shape or result.dtype is not expected.dtype:
        return math.inf
    if bits(result) == bits(expected):
        return 0.0
    off = (widened(result) - widened(expected)).abs()
    least = torch.finfo(torch.float64).tiny
    worst = float((off / relative_to.to(torch.float64).clamp(min=least)).max())
    if worst == 0:
        # Zeros of different signs are equal; 64-bit integers may differ and look equal here.
        return 0.0 if torch.equal(result, expected) else math.ulp(0.0)
    return worst


def bits(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor's elements."""
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def digest(data: torch.Tensor | bytes) -> str:
    """A fingerprint of a tensor's bits, or of bytes."""
    data = data if isinstance(data, bytes) else bits(data)
    return hashlib.blake2b(data, digest_size=16).hexdigest()
