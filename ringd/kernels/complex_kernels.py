"""Complex numbers, worked on as the pairs of floats that they are.

numpy's own complex loops will not do. Its product fuses multiplication and addition where
processor and loop allow it (seen with numpy 2.4: one element in place gets other bits than many),
so ranks would differ. Its division by a real number multiplies by the inverse, and makes NaN of
infinity. Here each part comes of single IEEE 754 additions, products and quotients, so that
neither position nor length nor processor shows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ringd.kernels.base import Array
from ringd.kernels.numpy_kernels import NativeKernel
from ringd.kernels.scratch import SCRATCH, block_count


class ComplexKernel(NativeKernel):
    """A native kernel of the parts: sums, averages and NaNs are each part's own business."""

    def __init__(self, dtype: str, reduce_op: str, world_size: int, *, every_rank_folds: bool):
        super().__init__(dtype, reduce_op, world_size, every_rank_folds=every_rank_folds)
        self._parts = np.dtype(self._element)
        if reduce_op == "prod":
            self._combine = multiply_pairs

    def reduce_into(
        self, acc: Array, contribution: Array, *, contribution_first: bool = False
    ) -> None:
        """See :class:`ringd.kernels.base.Kernel`."""
        parts = self._parts
        super().reduce_into(
            acc.view(parts), contribution.view(parts), contribution_first=contribution_first
        )

    def fold(self, contributions: Sequence[Array], out: Array) -> None:
        """See :class:`ringd.kernels.base.Kernel`."""
        parts = self._parts
        super().fold([c.view(parts) for c in contributions], out.view(parts))

    def finalise(self, acc: Array, out: Array) -> None:
        """See :class:`ringd.kernels.base.Kernel`."""
        super().finalise(acc.view(self._parts), out.view(self._parts))


def multiply_pairs(a: Array, b: Array, out: Array) -> None:
    """Multiply complex numbers: (a.re·b.re − a.im·b.im, a.re·b.im + a.im·b.re), each step rounded.

    Args:
        a, b: real and imaginary parts in turn, float32 or float64.
        out: of the same type; may be ``a`` or ``b``, must not overlap one in part.
    """
    scratch = SCRATCH.addend.view(a.dtype)
    half = block_count(a.itemsize) // 2
    for start in range(0, a.size, 2 * half):
        real, imag = slice(start, start + 2 * half, 2), slice(start + 1, start + 2 * half, 2)
        count = min(a.size - start, 2 * half) // 2
        re, term = scratch[:count], scratch[half : half + count]
        np.multiply(a[real], b[real], out=re)
        np.multiply(a[imag], b[imag], out=term)
        np.subtract(re, term, out=re)
        np.multiply(a[real], b[imag], out=term)
        # From here on ``out`` is written: of what it may share, only a.im and b.re are still read.
        np.multiply(a[imag], b[real], out=out[imag])
        np.add(term, out[imag], out=out[imag])
        out[real] = re
