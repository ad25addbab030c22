"""What is verified: every collective × dtype × algorithm × reduce op. Pure data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ringd.vocabulary import ALGORITHMS, DTYPES, REDUCE_OPS, REDUCING

SMALL, LARGE = 1_003, 300_007
"""Elements of the whole, not divisible by N: one below the eager limit, and one above it that fills
more than a segment where it travels uncut."""


@dataclass(frozen=True, slots=True)
class Case:
    """One call that is checked.

    Attributes:
        count: elements of the tensor; of one rank's part for all_gather and reduce_scatter.
        root: of a broadcast, else -1.
    """

    collective: str
    dtype: str
    reduce_op: str
    algorithm: str
    count: int
    root: int = -1

    @property
    def question(self) -> Case:
        """The same, whatever the algorithm: what has the same input and the same answer."""
        return replace(self, algorithm="")

    @property
    def is_folded(self) -> bool:
        """Whether the answer is the float32 fold in rank order: a reduction of 16-bit floats."""
        return bool(self.reduce_op) and DTYPES[self.dtype].widened is not None

    def input_count(self, world_size: int) -> int:
        """Elements that one rank puts in."""
        return self.count * (world_size if self.collective == "reduce_scatter" else 1)


def cases(world_size: int) -> list[Case]:
    """All cases; those of one question stand together."""
    found = []
    for collective in ("all_reduce", "reduce_scatter", "all_gather", "broadcast"):
        for dtype in DTYPES:
            for question in _questions(collective, dtype, world_size):
                found += [replace(question, algorithm=a) for a in algorithms(collective)]
    return found + [Case("barrier", "", "", a, 0) for a in algorithms("barrier")]


def algorithms(collective: str) -> list[str]:
    """The concrete algorithms of a collective."""
    return [name for name in ALGORITHMS[collective] if name != "auto"]


def _questions(collective: str, dtype: str, world_size: int) -> Iterator[Case]:
    has_parts = collective in ("all_gather", "reduce_scatter")
    small, large = (n // world_size if has_parts else n for n in (SMALL, LARGE))
    if collective not in REDUCING:
        is_rooted = collective == "broadcast"
        yield Case(collective, dtype, "", "", small, 1 if is_rooted else -1)
        yield Case(collective, dtype, "", "", large, world_size - 1 if is_rooted else -1)
        return
    for op in REDUCE_OPS:
        if op != "avg" or DTYPES[dtype].is_float:
            yield Case(collective, dtype, op, "", small)
    yield Case(collective, dtype, "sum", "", large)
