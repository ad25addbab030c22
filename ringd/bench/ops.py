"""What is measured: each operation, its tensors, its bus factor, its steps. Pure; no torch.

Sizes and factors are those of nccl-tests (doc/PERFORMANCE.md, and ``GetBw`` in src/gather.cu,
src/scatter.cu and src/sendrecv.cu there).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ringd.schedules import formula
from ringd.schedules.select import DEFAULT_THRESHOLDS, ONE_HOST, choose
from ringd.vocabulary import ALGORITHMS, DTYPES, IN_PARTS, REDUCING, ROOTED, OpSpec

ROOT = 0
"""Of the operations that have one."""
SENDRECV = "sendrecv"
"""A ring of messages: each rank sends to its right and receives from its left."""

Side = Literal["whole", "part", "none", "input"]
"""How large a tensor is: that of the row, a rank's part of it, absent, or the input itself."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation.

    Attributes:
        bus_factor: bytes that must cross a rank's link per byte of the size; of N.
        input, output: the sizes of a rank's tensors.
        at_root: which of the two is on the root only.
    """

    bus_factor: Callable[[int], float]
    input: Side
    output: Side
    at_root: Literal["", "input", "output"] = ""

    @property
    def has_size(self) -> bool:
        """Whether it has tensors."""
        return self.input != "none"


def _all(_: int) -> float:
    return 1.0


def _all_but_own(n: int) -> float:
    return (n - 1) / n


OPS: dict[str, Op] = {
    "all_reduce": Op(lambda n: 2 * _all_but_own(n), "whole", "input"),
    "reduce": Op(_all, "whole", "input"),
    "broadcast": Op(_all, "whole", "input"),
    "all_gather": Op(_all_but_own, "part", "whole"),
    "gather": Op(_all_but_own, "part", "whole", at_root="output"),
    "scatter": Op(_all_but_own, "whole", "part", at_root="input"),
    "reduce_scatter": Op(_all_but_own, "whole", "part"),
    "all_to_all": Op(_all_but_own, "whole", "whole"),
    SENDRECV: Op(_all, "whole", "whole"),
    "barrier": Op(lambda _: 0.0, "none", "none"),
}


def algorithms(op: str) -> tuple[str, ...]:
    """What ``--algorithm`` may be; messages have no algorithm."""
    return ALGORITHMS.get(op, ("auto",))


def is_reduction(op: str) -> bool:
    """Whether it needs a dtype that can be summed."""
    return op in REDUCING


def counts(op: str, count: int, n: int) -> tuple[int | None, int | None]:
    """Elements of input and output where the larger one is to have ``count``.

    None: there is no such tensor; of an output also that the input is overwritten. What does not
    divide by N is cut down to what does, where ranks have parts.
    """
    part = count // n
    whole = part * n if op in IN_PARTS or op == "all_to_all" else count
    found = {"whole": whole, "part": part, "none": None, "input": None}
    return found[OPS[op].input], found[OPS[op].output]


def resolve(
    op: str, algorithm: str, *, count: int, dtype: str, n: int, own_hosts: bool = False
) -> str:
    """The algorithm that ranks take for a call of the bench; "" for messages.

    Args:
        own_hosts: each is on a host of its own; else all are on one.
    """
    if op == SENDRECV:
        return ""
    shape: tuple[int, ...] = (count,)
    if op in IN_PARTS:
        shape = (count // n,)
    elif op in ("all_to_all", "barrier"):
        shape = ()
    spec = OpSpec(
        op,
        "" if op == "barrier" else dtype,
        "sum" if op in REDUCING else "",
        shape,
        root=ROOT if op in ROOTED else -1,
        algorithm=algorithm,
    )
    return choose(spec, n, thresholds=DEFAULT_THRESHOLDS if own_hosts else ONE_HOST)


def steps(op: str, algorithm: str, n: int) -> int:
    """Rounds that follow each other, of a resolved algorithm."""
    if op == SENDRECV:
        return min(n - 1, 1)
    return formula.steps(op, algorithm, n, root=ROOT if op in ROOTED else -1)


# ---------------------------------------------------------------- what gloo has

_GLOO_LACKS = frozenset({"int16", *(name for name, d in DTYPES.items() if d.kind == "opaque")})


def gloo_has(op: str, dtype: str, reduce_op: str = "sum") -> bool:
    """Whether torch.distributed's gloo can do it. Found by trying torch 2.13.0.

    Messages of any type; else neither int16 nor float8. Complex numbers are summed and averaged,
    and moved by all but gather. It has no premul_sum.
    """
    if op in (SENDRECV, "barrier"):
        return True
    if dtype in _GLOO_LACKS or reduce_op == "premul_sum":
        return False
    if DTYPES[dtype].kind == "complex":
        return reduce_op in ("sum", "avg") if op in REDUCING else op != "gather"
    return True
