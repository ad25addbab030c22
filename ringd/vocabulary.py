"""The words that all parts share: dtypes, reduce operations, collectives, algorithms, OpSpec.

Pure data; no numpy, no torch. An OpSpec packs to bytes, and these bytes are the
fingerprint that every rank must agree on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any, Final, Literal

import msgpack

from ringd.errors import (
    InvalidArgumentError,
    UnsupportedReductionError,
    UnsupportedTypeError,
)

MAX_DIMS = 64
MAX_WORLD = 1024
MAX_SPEC_BYTES = 16 * 1024
"""Room for one count per rank of the largest group."""
MAX_TAG = 2**31 - 1
DIGEST_BYTES = 8

# Made once: msgpack.packb takes a buffer of 1 MiB from the system each time.
_pack = msgpack.Packer(autoreset=True).pack

DTypeKind = Literal["bool", "int", "float", "complex", "opaque"]


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    Attributes:
        name: torch's name, and numpy's where numpy has the type.
        kind: "opaque" types are moved and never reduced.
        widened: the type in which sums are kept, if it is a wider one.
    """

    name: str
    itemsize: int
    kind: DTypeKind
    widened: str | None = None

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def accumulator(self) -> str:
        return self.widened or self.name


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("float32", 4, "float"),
        DType("float64", 8, "float"),
        DType("float16", 2, "float", widened="float32"),
        DType("bfloat16", 2, "float", widened="float32"),
        DType("int8", 1, "int"),
        DType("uint8", 1, "int"),
        DType("int16", 2, "int"),
        DType("int32", 4, "int"),
        DType("int64", 8, "int"),
        DType("bool", 1, "bool"),
        DType("complex64", 8, "complex"),
        DType("complex128", 16, "complex"),
        DType("float8_e4m3fn", 1, "opaque"),
        DType("float8_e5m2", 1, "opaque"),
        DType("float8_e4m3fnuz", 1, "opaque"),
        DType("float8_e5m2fnuz", 1, "opaque"),
    )
}
REDUCE_OPS: tuple[str, ...] = (
    "sum", "prod", "min", "max", "avg", "premul_sum", "band", "bor", "bxor",
)  # fmt: skip
_ORDERED, _BITWISE = ("min", "max"), ("band", "bor", "bxor")
_REDUCTIONS: dict[DTypeKind, tuple[str, ...]] = {
    "bool": ("sum", "prod", *_ORDERED, *_BITWISE),
    "int": ("sum", "prod", *_ORDERED, "premul_sum", *_BITWISE),
    "float": ("sum", "prod", *_ORDERED, "avg", "premul_sum"),
    "complex": ("sum", "prod", "avg", "premul_sum"),
    "opaque": (),
}


def reductions(dtype: str) -> tuple[str, ...]:
    """The reduce ops that a dtype has, in the order of REDUCE_OPS' kinds; () for moves only."""
    return _REDUCTIONS[DTYPES[dtype].kind]


class Collective(str, Enum):
    """The operations of wire v1; the value is what travels."""

    ALL_REDUCE = "all_reduce"
    REDUCE = "reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    GATHER = "gather"
    SCATTER = "scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    BARRIER = "barrier"
    AGREE = "agree"
    NEW_GROUP = "new_group"


NEW_GROUP: Final[str] = Collective.NEW_GROUP.value
"""Where every call looks: the value of a member of an enum is no plain attribute."""

SEND, RECV = "send", "recv"
POINT_TO_POINT: frozenset[str] = frozenset({SEND, RECV})
"""Not collectives: they have no place in the order of calls, and match by peer and tag."""
ANY_SOURCE = -1

ALGORITHMS: dict[str, tuple[str, ...]] = {
    "all_reduce": (
        "auto", "ring", "tree", "direct", "exchange",
        "recursive_doubling", "halving_doubling", "chain",
    ),
    "reduce": ("auto", "tree", "chain", "direct"),
    "reduce_scatter": ("auto", "ring", "direct"),
    "all_gather": ("auto", "ring", "direct"),
    "gather": ("auto", "tree", "direct"),
    "scatter": ("auto", "tree", "direct"),
    "all_to_all": ("auto", "pairwise", "direct"),
    "broadcast": ("auto", "tree", "chain"),
    "barrier": ("auto", "exchange", "tree"),
    "agree": ("auto",),
    "new_group": ("auto",),
}  # fmt: skip
DETERMINISTIC_ALGORITHMS: tuple[str, ...] = ("auto", "direct", "exchange", "chain")
"""With these the reduction is the left fold in rank order."""
REDUCING: frozenset[str] = frozenset({"all_reduce", "reduce", "reduce_scatter"})
FOLDING: frozenset[str] = REDUCING | {"agree", "new_group"}
"""Those too whose reduction is part of what they are, and no choice of the caller."""
ROOTED: frozenset[str] = frozenset({"broadcast", "reduce", "gather", "scatter"})
MAY_RETURN_EARLY: frozenset[str] = ROOTED | {"all_to_all", "new_group"}
"""Where a rank may be through before it can know that another one called something else."""
IN_PARTS: frozenset[str] = frozenset({"all_gather", "reduce_scatter", "gather", "scatter"})
"""Where each rank has a part of the whole; the parts may be uneven."""


@dataclass(frozen=True)
class OpSpec:
    """What a rank asks for, equal on every rank of the group: the fingerprint.

    Attributes:
        collective: a value of :class:`Collective`, or SEND or RECV.
        dtype: a name in DTYPES ("" for barrier).
        reduce_op: a name in REDUCE_OPS, or "" for moves.
        shape: of the caller's tensor where all of it is one rank's (all_reduce, reduce,
            broadcast, send, recv); of one rank's part (IN_PARTS with equal parts); of one row
            where counts are in rows (uneven parts, and all_to_all always).
        root: the group rank that has or gets the data (ROOTED); the peer of send and recv
            (ANY_SOURCE: any); else -1.
        algorithm: as asked, "auto" included; all ranks resolve it alike.
        deterministic: the left fold in rank order is asked for.
        group: the group's number; 0 is the world.
        compression: reserved, "" now.
        counts: rows of each rank's part, in rank order, where parts are uneven; the members of a
            new_group, as ranks of the parent in the order of the new group. Empty otherwise.
        fused: where several calls travel as one, the elements of each (of each one's part,
            IN_PARTS); ``shape`` is their sum then, and ``fused_shapes`` tells their shapes apart:
            see :func:`shapes_digest`.
    """

    collective: str
    dtype: str
    reduce_op: str
    shape: tuple[int, ...]
    root: int = -1
    algorithm: str = "auto"
    deterministic: bool = False
    group: int = 0
    compression: str = ""
    counts: tuple[int, ...] = ()
    fused: tuple[int, ...] = ()
    fused_shapes: bytes = b""

    @cached_property
    def count(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n

    @cached_property
    def itemsize(self) -> int:
        return DTYPES[self.dtype].itemsize if self.dtype else 1

    def part_counts(self, world_size: int) -> tuple[int, ...]:
        """Elements of each rank's part, where ranks have parts."""
        if self.counts:
            return tuple(rows * self.count for rows in self.counts)
        return (self.count,) * world_size

    @cached_property
    def packed(self) -> bytes:
        data: bytes = _pack(
            [
                self.group,
                self.collective,
                self.dtype,
                self.reduce_op,
                list(self.shape),
                self.root,
                self.algorithm,
                self.deterministic,
                self.compression,
                list(self.counts),
                [*self.fused, self.fused_shapes] if self.fused else [],
            ]
        )
        return data

    def __str__(self) -> str:
        parts = [self.collective]
        if self.group:
            parts.append(f"group={self.group}")
        if self.reduce_op and self.collective != Collective.AGREE.value:
            parts.append(f"op={self.reduce_op}")
        if self.collective in POINT_TO_POINT:
            parts.append(f"peer={'any' if self.root == ANY_SOURCE else self.root}")
        elif self.root >= 0:
            parts.append(f"root={self.root}")
        if self.collective == Collective.NEW_GROUP.value:
            parts.append(f"ranks={_listed(self.counts)}")
        elif self.dtype and self.collective != Collective.AGREE.value:
            word = "row shape" if self.rows_are_counted else "shape"
            parts.append(f"dtype={self.dtype} {word}={tuple(self.shape)}")
            if self.counts:
                parts.append(f"counts={_listed(self.counts)}")
            if self.fused:
                parts.append(f"coalesced from {len(self.fused)} calls of {_listed(self.fused)}")
                parts.append(f"(shapes {self.fused_shapes.hex()})")
        if self.algorithm != "auto":
            parts.append(f"algorithm={self.algorithm}")
        if self.deterministic:
            parts.append("deterministic")
        if self.compression:
            parts.append(f"compression={self.compression}")
        return " ".join(parts)

    @property
    def rows_are_counted(self) -> bool:
        """Whether ``shape`` is that of one row."""
        return bool(self.counts) or self.collective == Collective.ALL_TO_ALL.value


@lru_cache(maxsize=1024)
def agree_spec(group: int) -> OpSpec:
    """The only form of an agree: the least of one byte of each rank, 0 or 1."""
    return OpSpec(Collective.AGREE.value, "uint8", "min", (1,), group=group)


def _listed(numbers: tuple[int, ...]) -> str:
    """All of a short list; the ends of a long one."""
    if len(numbers) <= 12:
        return str(list(numbers))
    head, tail = ", ".join(map(str, numbers[:6])), ", ".join(map(str, numbers[-3:]))
    return f"[{head}, ... {tail}] ({len(numbers)} in all)"


def shapes_digest(shapes: Iterable[tuple[int, ...]]) -> bytes:
    """What ranks compare instead of the shapes of coalesced calls, which would be long."""
    packed = _pack([list(shape) for shape in shapes])
    return blake2b(packed, digest_size=DIGEST_BYTES).digest()


@lru_cache(maxsize=4096)
def unpack_spec(data: bytes) -> OpSpec:
    """The spec behind a fingerprint.

    Raises:
        ValueError: the bytes are not a well-formed spec. Values are not judged here
            beyond their types and sizes: see :func:`check_spec`.
    """
    if len(data) > MAX_SPEC_BYTES:
        raise ValueError(f"a fingerprint of {len(data)} bytes is over {MAX_SPEC_BYTES}")
    fields: Any = msgpack.unpackb(data)
    if not isinstance(fields, list) or len(fields) != 11:
        raise ValueError("a fingerprint is an array of eleven fields")
    (
        group, collective, dtype, reduce_op, shape, root, algorithm, deterministic, compression,
        counts, fused,
    ) = fields  # fmt: skip
    texts = (collective, dtype, reduce_op, algorithm, compression)
    numbers = (group, root)
    if not all(isinstance(t, str) for t in texts) or not all(type(n) is int for n in numbers):
        raise ValueError("a field of the fingerprint has the wrong type")
    if type(deterministic) is not bool or not isinstance(shape, list) or len(shape) > MAX_DIMS:
        raise ValueError("a field of the fingerprint has the wrong type")
    shapes = b""
    if isinstance(fused, list) and fused:
        *fused, shapes = fused
        if not isinstance(shapes, bytes) or len(shapes) != DIGEST_BYTES:
            raise ValueError(f"the sizes of coalesced calls end with {DIGEST_BYTES} bytes")
    for sizes in (shape, counts, fused):
        if not isinstance(sizes, list) or not all(type(d) is int and d >= 0 for d in sizes):
            raise ValueError("shape, counts and fused hold whole numbers that are not negative")
    return OpSpec(
        collective,
        dtype,
        reduce_op,
        tuple(shape),
        root=root,
        algorithm=algorithm,
        deterministic=deterministic,
        group=group,
        compression=compression,
        counts=tuple(counts),
        fused=tuple(fused),
        fused_shapes=shapes,
    )


def spec_or_unknown(data: bytes) -> OpSpec:
    """The spec behind a fingerprint, or one that says that it can't be read."""
    try:
        return unpack_spec(data)
    except (ValueError, TypeError):
        return OpSpec("unknown", "", "", ())


def check_spec(spec: OpSpec, world_size: int) -> None:
    """Refuse a call that no rank could run; the same on client and daemon.

    Raises:
        UnsupportedTypeError: the dtype, or the reduce op for this dtype (a TypeError).
        InvalidArgumentError: collective, algorithm, root, counts or their combination (a
            ValueError).
    """
    check_algorithm(spec)
    if spec.collective != Collective.BARRIER.value and spec.dtype not in DTYPES:
        raise UnsupportedTypeError(
            f"dtype {spec.dtype or 'none'} is not supported; supported are {', '.join(DTYPES)}"
        )
    if spec.collective in REDUCING:
        check_reduction(spec.dtype, spec.reduce_op)
    if spec.collective in ROOTED and not 0 <= spec.root < world_size:
        raise InvalidArgumentError(
            f"root {spec.root} is not a rank of this group: ranks are 0 to {world_size - 1}"
        )
    if spec.collective == Collective.AGREE.value and spec != agree_spec(spec.group):
        raise InvalidArgumentError("an agree has one form: the least of one byte of each rank")
    if spec.collective == Collective.NEW_GROUP.value:
        _check_members(spec.counts, world_size)
    elif spec.counts and (spec.collective not in IN_PARTS or len(spec.counts) != world_size):
        raise InvalidArgumentError(
            f"{len(spec.counts)} counts for {spec.collective} in a group of {world_size}: it takes "
            + ("one for each rank" if spec.collective in IN_PARTS else "none")
        )
    if spec.fused and (spec.counts or sum(spec.fused) != spec.count):
        raise InvalidArgumentError("the sizes of coalesced calls do not add up")


def check_reduction(dtype: str, reduce_op: str) -> None:
    """Refuse a reduce op that does not exist, or that the dtype does not have.

    Raises:
        InvalidArgumentError: no such reduce op.
        UnsupportedReductionError: not for this dtype; says what to do instead.
    """
    if reduce_op not in REDUCE_OPS:
        raise InvalidArgumentError(
            f"unknown reduce op {reduce_op!r}{suggestion(reduce_op, REDUCE_OPS)}; "
            f"known are {', '.join(REDUCE_OPS)}",
            op=reduce_op,
        )
    known = reductions(dtype)
    if reduce_op in known:
        return
    if not known:
        way_out = "it can only be moved; convert to bfloat16 or float32 to reduce"
    elif reduce_op == "avg":
        way_out = 'it would not be a whole number; take op="sum" and divide as you need'
    elif DTYPES[dtype].kind == "complex" and reduce_op in _ORDERED:
        way_out = f"complex numbers have no order; it has {', '.join(known)}"
    else:
        way_out = f"it has {', '.join(known)}"
    raise UnsupportedReductionError(
        f"op {reduce_op} is not defined for {dtype}: {way_out}", op=reduce_op, dtype=dtype
    )


def _check_members(members: tuple[int, ...], world_size: int) -> None:
    if len(set(members)) != len(members) or not all(0 <= m < world_size for m in members):
        raise InvalidArgumentError(
            f"ranks {list(members)} are not different ranks of a group of {world_size}: name each "
            f"member once, from 0 to {world_size - 1}"
        )


def check_algorithm(spec: OpSpec) -> None:
    """Refuse an algorithm that the collective does not have, or that can't keep its promise.

    Raises:
        InvalidArgumentError: says which algorithms would do.
    """
    if spec.collective not in ALGORITHMS:
        raise InvalidArgumentError(f"unknown collective {spec.collective!r}")
    known = ALGORITHMS[spec.collective]
    if spec.algorithm not in known:
        raise InvalidArgumentError(
            f"unknown algorithm {spec.algorithm!r} for {spec.collective}"
            f"{suggestion(spec.algorithm, known)}; known are {', '.join(known)}"
        )
    ordered = spec.deterministic and spec.collective in REDUCING
    if ordered and spec.algorithm not in DETERMINISTIC_ALGORITHMS:
        usable = [name for name in known if name in DETERMINISTIC_ALGORITHMS]
        raise InvalidArgumentError(
            f"{spec.collective} by {spec.algorithm!r} does not fold in rank order, which "
            f"deterministic=True asks for; use one of {', '.join(usable)}, or deterministic=False"
        )


def suggestion(word: str, known: tuple[str, ...]) -> str:
    """ " (did you mean 'ring'?)" where a known word is near, else nothing."""
    from difflib import get_close_matches  # seldom needed

    near = get_close_matches(word, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def ranks_text(ranks: Iterable[int]) -> str:
    """ "rank 3", "ranks 1 and 3", "no rank": how all texts name ranks."""
    listed = [str(rank) for rank in ranks]
    if len(listed) == 1:
        return f"rank {listed[0]}"
    return f"ranks {', '.join(listed[:-1])} and {listed[-1]}" if listed else "no rank"
