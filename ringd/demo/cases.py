"""What is verified: every collective × dtype × reduce op, and each form of call. Pure data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from ringd.vocabulary import (
    ALGORITHMS,
    DETERMINISTIC_ALGORITHMS,
    DTYPES,
    IN_PARTS,
    REDUCE_OPS,
    REDUCING,
    ROOTED,
    reductions,
)

SMALL, LARGE = 1_003, 300_007
"""Elements of the whole, not divisible by N: one below the eager limit, and one above it that fills
more than a segment where it travels uncut."""

COLLECTIVES = (
    "all_reduce", "reduce", "reduce_scatter", "all_gather", "gather", "scatter", "all_to_all",
    "broadcast",
)  # fmt: skip
BARRIER = "barrier"
MESSAGES = "send/recv"
"""Each rank sends to its right and receives from its left."""
OBJECT_CALLS = ("all_gather_object", "broadcast_object", "gather_object", "scatter_object")
FUSED = ("all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast")

ORDERED = "deterministic"
UNEVEN = "uneven parts"
LISTS = "lists"
COALESCED = "coalesced"
GROUPS = "sub-groups"
ANY_SOURCE = "any source"
BATCHED = "batched"
OBJECTS = "objects"
_SAME_ON_ALL = frozenset(
    {"all_reduce", "all_gather", "broadcast", "all_gather_object", "broadcast_object"}
)


@dataclass(frozen=True, slots=True)
class Case:
    """One call that is checked.

    Attributes:
        collective: or MESSAGES, or a name in OBJECT_CALLS.
        count: elements of the tensor; of one rank's part, where ranks have parts; the unit in
            which uneven parts differ; of an object its bytes, nearly.
        root: where there is one, else -1; of a barrier the rank that comes last.
        form: "" for a plain call, else one of the names above.
    """

    collective: str
    dtype: str
    reduce_op: str
    algorithm: str
    count: int
    root: int = -1
    form: str = ""

    @property
    def question(self) -> Case:
        """The same, whatever the algorithm: what has the same input and the same answer."""
        return replace(self, algorithm="")

    @property
    def is_folded(self) -> bool:
        """Whether the answer is the float32 fold in rank order: a reduction of 16-bit floats."""
        return bool(self.reduce_op) and DTYPES[self.dtype].widened is not None

    @property
    def is_same_on_all(self) -> bool:
        """Whether all ranks of the world are to have the same bits."""
        return self.collective in _SAME_ON_ALL and self.form != GROUPS

    @property
    def is_uneven(self) -> bool:
        return self.form in (UNEVEN, LISTS)

    def splits(self, source: int, n: int) -> list[int]:
        """Elements that ``source`` has for each rank of an all_to_all; some may be none."""
        if self.is_uneven:
            return [self.count * ((source + 2 * target) % n) for target in range(n)]
        return [self.count] * n

    def parts(self, n: int) -> list[int]:
        """Elements of each rank's part; rank 0 has none where they are uneven."""
        return [self.count * (rank if self.is_uneven else 1) for rank in range(n)]

    def own(self, rank: int, n: int) -> slice:
        """Where the part of ``rank`` lies in the whole."""
        parts = self.parts(n)
        start = list(accumulate(parts, initial=0))[rank]
        return slice(start, start + parts[rank])

    def input_count(self, rank: int, n: int) -> int:
        """Elements that one rank puts in; of a scatter what the root does."""
        if self.collective == "all_to_all":
            return sum(self.splits(rank, n))
        if self.collective not in IN_PARTS:
            return self.count
        parts = self.parts(n)
        return parts[rank] if self.collective in ("all_gather", "gather") else sum(parts)


def cases(n: int) -> list[Case]:
    """All cases for ``n`` ranks."""
    found: list[Case] = []
    for collective in COLLECTIVES:
        found += _plain(collective, n)
        found += _large(collective, n)
    found += [
        Case(BARRIER, "", "", algorithm, 0, last)
        for last in range(n)
        for algorithm in algorithms(BARRIER)
    ]
    found += [Case(MESSAGES, dtype, "", "", SMALL) for dtype in DTYPES]
    found += [Case(MESSAGES, "float32", "", "", LARGE)]
    return [*found, *_forms(n)]


def algorithms(collective: str) -> list[str]:
    """The concrete algorithms of a collective."""
    return [name for name in ALGORITHMS[collective] if name != "auto"]


def _plain(collective: str, n: int) -> Iterator[Case]:
    """Every dtype × op once; each algorithm meets all dtypes and all ops in turn."""
    names = algorithms(collective)
    for i, dtype in enumerate(DTYPES):
        ops = reductions(dtype) if collective in REDUCING else ("",)
        for op in ops:
            turn = i + (REDUCE_OPS.index(op) if op else 0)
            algorithm = names[turn % len(names)]
            yield Case(
                collective,
                dtype,
                op,
                algorithm,
                _size(collective, SMALL, n),
                _root(collective, i, n),
            )


def _large(collective: str, n: int) -> Iterator[Case]:
    """Every algorithm with more than a segment; reductions also where partial sums are wide."""
    op = "sum" if collective in REDUCING else ""
    for dtype in ("float32", "bfloat16") if op else ("float32",):
        for algorithm in algorithms(collective):
            count, root = _size(collective, LARGE, n), _root(collective, n - 1, n)
            yield Case(collective, dtype, op, algorithm, count, root)


def _forms(n: int) -> Iterator[Case]:
    """One form after the other."""
    for collective, algorithm in _pairs(REDUCING):
        if algorithm in DETERMINISTIC_ALGORITHMS:
            yield _call(collective, n, LARGE, ORDERED, algorithm)
    for form, size in ((UNEVEN, LARGE), (LISTS, SMALL)):
        for collective, algorithm in _pairs(IN_PARTS | {"all_to_all"}):
            yield _call(collective, n, size, form, algorithm)
    for collective in FUSED:
        yield _call(collective, n, SMALL, COALESCED)
    for collective in COLLECTIVES:
        for size in (SMALL, LARGE):
            yield _call(collective, n, size, GROUPS)
    for form in (GROUPS, ANY_SOURCE, BATCHED):
        for size in (SMALL, LARGE):
            yield Case(MESSAGES, "float32", "", "", size, form=form)
    for collective in OBJECT_CALLS:
        for size_bytes in (100, 100_000):
            yield Case(collective, "", "", "", size_bytes, _root(collective, 1, n), OBJECTS)


def _pairs(collectives: frozenset[str]) -> list[tuple[str, str]]:
    """Each of them with each of its algorithms."""
    return [(c, a) for c in COLLECTIVES if c in collectives for a in algorithms(c)]


def _call(collective: str, n: int, size: int, form: str, algorithm: str = "auto") -> Case:
    op = "sum" if collective in REDUCING else ""
    count, root = _size(collective, size, n), _root(collective, 1, n)
    return Case(collective, "float32", op, algorithm, count, root, form)


def _size(collective: str, whole: int, n: int) -> int:
    return whole // n if collective in IN_PARTS or collective == "all_to_all" else whole


def _root(collective: str, turn: int, n: int) -> int:
    return turn % n if collective.removesuffix("_object") in ROOTED else -1
