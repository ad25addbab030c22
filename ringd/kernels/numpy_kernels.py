"""The reference kernels: numpy alone.

A fold goes block by block, so that partial results never leave the cache. Its last step writes
``out``: by then every contribution's block was read, whichever of them ``out`` may be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringd.kernels.base import Array
from ringd.kernels.scratch import SCRATCH, block_count
from ringd.vocabulary import DTYPES

_UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add,
    "avg": np.add,
    "premul_sum": np.add,
    "prod": np.multiply,
    # Not fmin and fmax: these two propagate NaN.
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
_BOOL_UFUNCS: dict[str, np.ufunc] = {
    # The logical ones read any byte but 0 as true, and write 0 or 1.
    **dict.fromkeys(("sum", "max", "bor"), np.logical_or),
    **dict.fromkeys(("prod", "min", "band"), np.logical_and),
    "bxor": np.logical_xor,
}
_PARTS = {"complex64": "float32", "complex128": "float64"}

# As objects of numpy: it takes up to 0.2 us longer to convert a Python number or a type.
_UINT32 = np.dtype(np.uint32)
_SIXTEEN = np.array(16, np.uint32)
_ONE = np.array(1, np.uint32)
_HALF_ULP_LESS_ONE = np.array(0x7FFF, np.uint32)
_QUIET = np.uint32(0x0040)


@dataclass(frozen=True, slots=True)
class Conversions:
    """How a 16-bit type becomes float32 and back; ``narrow`` takes at most one block."""

    widen: Callable[[Array, Array], None]
    narrow: Callable[[Array, Array], None]


def has_nan(values: Array) -> bool:
    """Whether any element is NaN (one pass; the place of the maximum is that of the first one).

    A third of what ``np.maximum.reduce`` takes for few elements, and as much for many.
    """
    peak = values[values.argmax()]
    return bool(peak != peak)


def unify_nans(values: Array) -> None:
    """Give every NaN the same bits.

    Which of two NaNs an addition returns depends on the processor, and on numpy's loop: on the
    position, the length, and on which operand is the output (seen with numpy 2.4: a + b of one
    element, in place, returns b's). Ranks that fold for themselves differ in these.
    """
    if values.size and has_nan(values):
        np.copyto(values, np.nan, where=np.isnan(values))


def widen_bfloat16(src: Array, out: Array) -> None:
    """The bits of a bfloat16 are the upper half of a float32's."""
    bits = out.view(_UINT32)
    np.copyto(bits, src)
    np.left_shift(bits, _SIXTEEN, bits)


def narrow_bfloat16(acc: Array, out: Array) -> None:
    """Round to the nearest, ties to even, on the bits; overflow carries into infinity.

    A NaN keeps its sign and the top of its payload, and becomes quiet: rounding could carry
    it into infinity, or cut it down to that.
    """
    if not acc.size:
        return
    source = acc.view(_UINT32)
    bits = SCRATCH.bits[: acc.size]
    np.right_shift(source, _SIXTEEN, bits)
    np.bitwise_and(bits, _ONE, bits)
    np.add(bits, _HALF_ULP_LESS_ONE, bits)
    np.add(bits, source, bits)
    np.right_shift(bits, _SIXTEEN, bits)
    np.copyto(out, bits, casting="unsafe")
    if has_nan(acc):
        nan = np.isnan(acc)
        out[nan] = source[nan] >> _SIXTEEN | _QUIET


def _widen_float16(src: Array, out: Array) -> None:
    np.copyto(out, src)


def _narrow_float16(acc: Array, out: Array) -> None:
    np.copyto(out, acc, casting="same_kind")


NUMPY_CONVERSIONS = {
    "bfloat16": Conversions(widen_bfloat16, narrow_bfloat16),
    "float16": Conversions(_widen_float16, _narrow_float16),
}


class _NumpyKernel:
    """What both kinds share: the binding, and the reduction of two accumulators."""

    def __init__(self, dtype: str, reduce_op: str, world_size: int, *, every_rank_folds: bool):
        kind = DTYPES[dtype]
        self.dtype = dtype
        self.reduce_op = reduce_op
        self.world_size = world_size
        self.storage = np.dtype(np.uint16 if dtype == "bfloat16" else dtype)
        self.accumulator = np.dtype(kind.accumulator)
        # What the arithmetic is done in. A name: np.dtype.name takes 2 us to compute.
        self._element = _PARTS.get(dtype, kind.accumulator)
        is_bool = kind.kind == "bool"
        self._combine: Callable[..., Any] = (_BOOL_UFUNCS if is_bool else _UFUNCS)[reduce_op]
        self._divides = reduce_op == "avg" and world_size > 1
        self._divisor = np.array(world_size, self._element)
        self._unifies_nans = every_rank_folds and kind.kind in ("float", "complex")
        # Of several ranks, the reduction itself writes bytes of 0 and 1.
        self._makes_bool = is_bool and world_size == 1
        self._block = block_count(np.dtype(self._element).itemsize)
        self.needs_finalise = (
            self._divides
            or self._unifies_nans
            or self._makes_bool
            or self.storage != self.accumulator
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.reduce_op} of {self.dtype} over {self.world_size}>"

    def reduce_into(
        self, acc: Array, contribution: Array, *, contribution_first: bool = False
    ) -> None:
        """See :class:`ringd.kernels.base.Kernel`."""
        if contribution_first:
            SCRATCH.run(self._combine, contribution, acc, out=acc)
        else:
            SCRATCH.run(self._combine, acc, contribution, out=acc)


class NativeKernel(_NumpyKernel):
    """For the types that numpy adds as they are."""

    def fold(self, contributions: Sequence[Array], out: Array) -> None:
        """See :class:`ringd.kernels.base.Kernel`."""
        if len(contributions) == 2 and not self.needs_finalise:
            # One pass over memory either way, so blocks would gain nothing.
            SCRATCH.run(self._combine, contributions[0], contributions[1], out=out)
        elif len(contributions) == 2 and out.size <= self._block:
            SCRATCH.run(self._fold_two, contributions[0], contributions[1], out)
        elif out.size <= self._block:
            partial = SCRATCH.partial[self._element][: out.size]
            SCRATCH.run(self._fold_block, contributions, out, partial)
        else:
            SCRATCH.run(self._fold_blocks, contributions, out)

    def widen(self, src: Array, out: Array) -> None:
        """See :class:`ringd.kernels.base.Kernel`."""
        if src is not out:
            np.copyto(out, src)

    def finalise(self, acc: Array, out: Array) -> None:
        """See :class:`ringd.kernels.base.Kernel`."""
        if self.needs_finalise:
            SCRATCH.run(self._finalise, acc, out)
        elif acc is not out:
            np.copyto(out, acc)

    def _fold_blocks(self, contributions: Sequence[Array], out: Array) -> None:
        scratch = SCRATCH.partial[self._element]
        # Partial results go to ``out`` itself unless a later contribution still lies there:
        # one stream of memory less.
        in_place = not any(np.may_share_memory(out, c) for c in contributions[2:])
        for start in range(0, out.size, self._block):
            part = slice(start, start + self._block)
            target = out[part]
            partial = target if in_place else scratch[: target.size]
            self._fold_block([c[part] for c in contributions], target, partial)

    def _fold_two(self, first: Array, second: Array, out: Array) -> None:
        self._combine(first, second, out=out)
        self._finish(out, out)

    def _fold_block(self, contributions: Sequence[Array], out: Array, partial: Array) -> None:
        combine = self._combine
        if len(contributions) == 1:
            np.copyto(out, contributions[0])
        elif len(contributions) == 2:
            combine(contributions[0], contributions[1], out=out)
        else:
            combine(contributions[0], contributions[1], out=partial)
            for contribution in contributions[2:-1]:
                combine(partial, contribution, out=partial)
            combine(partial, contributions[-1], out=out)
        self._finish(out, out)

    def _finalise(self, acc: Array, out: Array) -> None:
        for start in range(0, out.size, self._block):
            part = slice(start, start + self._block)
            target = out[part]
            if not self._divides and acc is not out:
                np.copyto(target, acc[part])
            self._finish(acc[part], target)

    def _finish(self, acc: Array, out: Array) -> None:
        if self._divides:
            np.divide(acc, self._divisor, out)
        if self._unifies_nans:
            unify_nans(out)
        elif self._makes_bool:
            np.logical_or(out, out, out)


class WideningKernel(_NumpyKernel):
    """For 16-bit floats: widen, reduce in float32, divide, round once.

    The arithmetic is numpy's always; only the conversions come from elsewhere. So results do
    not depend on who converts (but for the bits of a NaN).
    """

    def __init__(
        self,
        dtype: str,
        reduce_op: str,
        world_size: int,
        *,
        every_rank_folds: bool,
        conversions: Conversions,
    ):
        super().__init__(dtype, reduce_op, world_size, every_rank_folds=every_rank_folds)
        self.conversions = conversions
        self._widen = conversions.widen
        self._narrow = conversions.narrow

    def fold(self, contributions: Sequence[Array], out: Array) -> None:
        """See :class:`ringd.kernels.base.Kernel`."""
        if out.size <= self._block:
            SCRATCH.run(self._fold_block, contributions, out)
        else:
            SCRATCH.run(self._fold_blocks, contributions, out)

    def widen(self, src: Array, out: Array) -> None:
        """See :class:`ringd.kernels.base.Kernel`."""
        SCRATCH.run(self._widen, src, out)

    def finalise(self, acc: Array, out: Array) -> None:
        """See :class:`ringd.kernels.base.Kernel`."""
        SCRATCH.run(self._finalise, acc, out)

    def _fold_blocks(self, contributions: Sequence[Array], out: Array) -> None:
        for start in range(0, out.size, self._block):
            part = slice(start, start + self._block)
            self._fold_block([c[part] for c in contributions], out[part])

    def _fold_block(self, contributions: Sequence[Array], out: Array) -> None:
        partial = SCRATCH.partial["float32"][: out.size]
        addend = SCRATCH.addend[: out.size]
        self._widen(contributions[0], partial)
        for contribution in contributions[1:]:
            self._widen(contribution, addend)
            self._combine(partial, addend, out=partial)
        self._finish(partial, out)

    def _finalise(self, acc: Array, out: Array) -> None:
        for start in range(0, out.size, self._block):
            part = slice(start, start + self._block)
            self._finish(acc[part], out[part])

    def _finish(self, acc: Array, out: Array) -> None:
        if self._divides:
            np.divide(acc, self._divisor, acc)
        if self._unifies_nans:
            unify_nans(acc)
        self._narrow(acc, out)
