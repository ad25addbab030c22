"""What a call is to give, written out: the left fold of reductions, and where parts go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import torch

from ringd.demo.cases import MESSAGES, Case
from ringd.demo.workers.inputs import factor
from ringd.vocabulary import DTYPES, REDUCING

Fold = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_FOLDS: dict[str, Fold] = {
    "sum": torch.add,
    "avg": torch.add,
    "premul_sum": torch.add,
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}
_OF_BOOLS: dict[str, Fold] = {
    "sum": torch.logical_or,
    "prod": torch.logical_and,
    "min": torch.logical_and,
    "max": torch.logical_or,
}


def result(case: Case, inputs: Sequence[torch.Tensor], rank: int) -> torch.Tensor:
    """What ``rank`` has after the call; nothing where it gets nothing.

    Args:
        inputs: of all ranks of the group; see :func:`ringd.demo.workers.inputs.contribution`.
    """
    n = len(inputs)
    if case.collective in REDUCING:
        return own(case, left_fold(case, inputs), inputs, rank)
    match case.collective:
        case "broadcast":
            return inputs[case.root]
        case "all_gather":
            return torch.cat(list(inputs))
        case "gather":
            return torch.cat(list(inputs)) if rank == case.root else inputs[rank].new_empty(0)
        case "scatter":
            return inputs[case.root][case.own(rank, n)]
        case "all_to_all":
            return torch.cat(
                [torch.split(x, case.splits(r, n))[rank] for r, x in enumerate(inputs)]
            )
    assert case.collective == MESSAGES
    return inputs[(rank - 1) % n]


def own(case: Case, whole: torch.Tensor, inputs: Sequence[torch.Tensor], rank: int) -> torch.Tensor:
    """What ``rank`` has of a reduction's whole; without a result it keeps its input."""
    if case.collective == "reduce_scatter":
        return whole[case.own(rank, len(inputs))]
    return whole if rank == case.root or case.collective == "all_reduce" else inputs[rank]


def left_fold(case: Case, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """((x₀ ∘ x₁) ∘ x₂) … in the dtype's accumulator, rounded once."""
    dtype = DTYPES[case.dtype]
    fold = (_OF_BOOLS if dtype.kind == "bool" else {}).get(case.reduce_op, _FOLDS[case.reduce_op])
    terms = [x.to(getattr(torch, dtype.accumulator)) for x in weighted(case, inputs)]
    folded = reduce(fold, terms)
    if case.reduce_op == "avg":
        folded = folded / len(inputs)
    return folded.to(inputs[0].dtype)


def magnitude(case: Case, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """What errors are relative to, by element: Σ|x| of what is added, ∏|x| of what is multiplied.

    It does not vanish where terms of a sum cancel, and the bound on the error of a sum in any order
    is a multiple of it (Higham, Accuracy and Stability of Numerical Algorithms, 4.2).
    """
    fold = torch.mul if case.reduce_op == "prod" else torch.add
    total = reduce(fold, [widened(x).abs() for x in weighted(case, inputs)])
    return total / len(inputs) if case.reduce_op == "avg" else total


def weighted(case: Case, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The terms of a reduction: of premul_sum the inputs times their factors, in their dtype."""
    if case.reduce_op != "premul_sum":
        return list(inputs)
    return [x * factor(case, rank) for rank, x in enumerate(inputs)]


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in float64 or complex128."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
