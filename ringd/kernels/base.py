"""What the engine needs of a reduction: one small interface, bound to one kind of operation.

Arrays are flat (1-D, contiguous) and all of one length within a call; the caller cuts them.
Nothing here checks that: the engine takes both sides from one plan, and a check per call would
cost as much as the reduction of a small tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Kernel(Protocol):
    """The reduction of one (dtype, reduce op, world size), on memory that the caller owns.

    Every method is safe to call from several threads at once, on different memory; none of
    them warns, whatever the values: integers wrap, floats overflow to infinity, NaN stays.
    Memory need not be aligned. docs/dtypes.md says what each dtype and reduce op give.

    Attributes:
        dtype: a name in ``ringd.vocabulary.DTYPES``.
        reduce_op: one of ``ringd.vocabulary.reductions(dtype)``. ``premul_sum`` is a sum here:
            whoever hands over a contribution has multiplied it.
        world_size: what ``avg`` divides by.
        storage: numpy's type of the tensor's elements; bfloat16 is kept as uint16 bits.
        accumulator: the type in which partial results are kept and travel.
        needs_finalise: whether :meth:`finalise` does more than a copy.
    """

    @property
    def dtype(self) -> str: ...
    @property
    def reduce_op(self) -> str: ...
    @property
    def world_size(self) -> int: ...
    @property
    def storage(self) -> np.dtype[Any]: ...
    @property
    def accumulator(self) -> np.dtype[Any]: ...
    @property
    def needs_finalise(self) -> bool: ...

    def reduce_into(
        self, acc: Array, contribution: Array, *, contribution_first: bool = False
    ) -> None:
        """Set ``acc`` to ``acc`` ⊕ ``contribution``.

        Args:
            acc: elements of the accumulator type; written.
            contribution: elements of the accumulator type; read.
            contribution_first: set it to ``contribution`` ⊕ ``acc`` instead. It matters for the
                sign of the zero that ``min`` and ``max`` give for -0.0 and +0.0, and for what a NaN
                carries; sums and products of numbers are the same either way.
        """

    def fold(self, contributions: Sequence[Array], out: Array) -> None:
        """Reduce ``contributions`` strictly from the left, finalise, and store into ``out``.

        Args:
            contributions: one or more arrays of the storage type, in the order of the fold. One
                alone is the whole reduction: ``world_size`` is 1.
            out: of the storage type. It may be one of the contributions (the same memory, at
                any place in the order); it must not overlap one in part.
        """

    def widen(self, src: Array, out: Array) -> None:
        """Store ``src`` (storage type) into ``out`` (accumulator type), exactly.

        For types that are not widened this is a copy, and nothing if both are one object.
        """

    def finalise(self, acc: Array, out: Array) -> None:
        """Turn a full reduction into the result: ``avg`` divides, 16-bit floats are rounded once.

        Where every rank folds for itself, all NaNs get one form here, however many steps of
        :meth:`reduce_into` came before.

        Args:
            acc: of the accumulator type. Its contents are undefined afterwards, unless it
                is ``out``.
            out: of the storage type; may be ``acc`` itself where both types are the same.
        """
