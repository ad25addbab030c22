"""Which kernel an operation gets."""

from __future__ import annotations

from functools import lru_cache

from ringd.errors import InvalidArgumentError, UnsupportedTypeError
from ringd.kernels.base import Kernel
from ringd.kernels.complex_kernels import ComplexKernel
from ringd.kernels.loader import torch_is_ready
from ringd.kernels.numpy_kernels import NUMPY_CONVERSIONS, NativeKernel, WideningKernel
from ringd.vocabulary import DTYPES, check_reduction


def kernel_for(dtype: str, reduce_op: str, world_size: int, *, every_rank_folds: bool) -> Kernel:
    """The kernel of an operation; the same object for the same question.

    Args:
        dtype: a name in ``DTYPES``.
        reduce_op: one of ``reductions(dtype)``.
        world_size: ranks in the group.
        every_rank_folds: each rank computes the result for itself (``exchange``,
            ``recursive_doubling``), instead of one rank for all. Then all must get the same bits,
            so numpy is used whether torch has come or not, and NaNs get one form.

    Returns:
        A kernel by numpy; for 16-bit floats by torch once it was loaded. It stays valid: an
        operation that began with numpy may end with it.

    Raises:
        UnsupportedTypeError: no such dtype.
        UnsupportedReductionError: the dtype does not have the reduce op.
        InvalidArgumentError: no such reduce op, or no rank at all.
    """
    return _kernel(dtype, reduce_op, world_size, every_rank_folds, torch_is_ready())


@lru_cache(maxsize=1024)
def _kernel(
    dtype: str, reduce_op: str, world_size: int, every_rank_folds: bool, torch_ready: bool
) -> Kernel:
    _check(dtype, reduce_op, world_size)
    if DTYPES[dtype].kind == "complex":
        return ComplexKernel(dtype, reduce_op, world_size, every_rank_folds=every_rank_folds)
    if DTYPES[dtype].widened is None:
        return NativeKernel(dtype, reduce_op, world_size, every_rank_folds=every_rank_folds)
    conversions = NUMPY_CONVERSIONS[dtype]
    if torch_ready and not every_rank_folds:
        from ringd.kernels.torch_kernels import torch_conversions

        conversions = torch_conversions(dtype)
    return WideningKernel(
        dtype,
        reduce_op,
        world_size,
        every_rank_folds=every_rank_folds,
        conversions=conversions,
    )


def _check(dtype: str, reduce_op: str, world_size: int) -> None:
    if dtype not in DTYPES:
        raise UnsupportedTypeError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    check_reduction(dtype, reduce_op)
    if world_size < 1:
        raise InvalidArgumentError(f"a world size of {world_size} has no rank")
