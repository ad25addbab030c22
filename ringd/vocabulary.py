"""The words that all parts share: dtypes, reduce operations, collectives, algorithms, OpSpec.

Pure data; no numpy, no torch. An OpSpec packs to bytes, and these bytes are the
fingerprint that every rank must agree on.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any

import msgpack

from ringd.errors import InvalidArgumentError, UnsupportedTypeError

MAX_DIMS = 64
MAX_SPEC_BYTES = 2048


@dataclass(frozen=True, slots=True)
class DType:
    """One element type: its name is torch's and numpy's, ``widened`` where sums are kept wider."""

    name: str
    itemsize: int
    is_float: bool
    widened: str | None = None

    @property
    def accumulator(self) -> str:
        return self.widened or self.name


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("float32", 4, True),
        DType("float64", 8, True),
        DType("float16", 2, True, widened="float32"),
        DType("bfloat16", 2, True, widened="float32"),
        DType("int32", 4, False),
        DType("int64", 8, False),
    )
}
REDUCE_OPS: tuple[str, ...] = ("sum", "prod", "min", "max", "avg")


class Collective(str, Enum):
    """The collectives of wire v1; the value is what travels."""

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"
    BARRIER = "barrier"


ALGORITHMS: dict[str, tuple[str, ...]] = {
    "all_reduce": ("auto", "ring", "tree", "direct", "exchange"),
    "reduce_scatter": ("auto", "ring", "direct"),
    "all_gather": ("auto", "ring", "direct"),
    "broadcast": ("auto", "tree"),
    "barrier": ("auto", "exchange", "tree"),
}
DETERMINISTIC_ALGORITHMS: tuple[str, ...] = ("auto", "direct", "exchange")
"""With these the reduction is the left fold in rank order."""
REDUCING: frozenset[str] = frozenset({"all_reduce", "reduce_scatter"})


@dataclass(frozen=True)
class OpSpec:
    """What a rank asks for, equal on every rank of the group: the fingerprint.

    Attributes:
        collective: a value of :class:`Collective`.
        dtype: a name in DTYPES ("" for barrier).
        reduce_op: a name in REDUCE_OPS, or "" for moves.
        shape: the shape of the caller's tensor: the input for all_reduce, broadcast and
            all_gather (one rank's part), the output for reduce_scatter (one rank's part).
        root: the rank that owns the data (broadcast), else -1.
        algorithm: as asked, "auto" included; all ranks resolve it alike.
        deterministic: the left fold in rank order is asked for.
        group: the group's number; 0 is the world.
        compression: reserved, "" now.
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

    @cached_property
    def count(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n

    @cached_property
    def itemsize(self) -> int:
        return DTYPES[self.dtype].itemsize if self.dtype else 1

    def region_count(self, world_size: int) -> int:
        """Elements of the working region: the count, times N where each rank has a part."""
        if self.collective == Collective.BARRIER.value:
            return 0
        if self.collective in (Collective.ALL_GATHER.value, Collective.REDUCE_SCATTER.value):
            return self.count * world_size
        return self.count

    @cached_property
    def packed(self) -> bytes:
        data: bytes = msgpack.packb(
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
            ]
        )
        return data

    def __str__(self) -> str:
        parts = [self.collective]
        if self.reduce_op:
            parts.append(f"op={self.reduce_op}")
        if self.root >= 0:
            parts.append(f"root={self.root}")
        if self.dtype:
            parts.append(f"dtype={self.dtype} shape={tuple(self.shape)}")
        if self.algorithm != "auto":
            parts.append(f"algorithm={self.algorithm}")
        if self.deterministic:
            parts.append("deterministic")
        if self.compression:
            parts.append(f"compression={self.compression}")
        return " ".join(parts)


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
    if not isinstance(fields, list) or len(fields) != 9:
        raise ValueError("a fingerprint is an array of nine fields")
    group, collective, dtype, reduce_op, shape, root, algorithm, deterministic, compression = fields
    texts = (collective, dtype, reduce_op, algorithm, compression)
    numbers = (group, root)
    if not all(isinstance(t, str) for t in texts) or not all(type(n) is int for n in numbers):
        raise ValueError("a field of the fingerprint has the wrong type")
    if type(deterministic) is not bool or not isinstance(shape, list) or len(shape) > MAX_DIMS:
        raise ValueError("a field of the fingerprint has the wrong type")
    if not all(type(d) is int and d >= 0 for d in shape):
        raise ValueError("a shape holds whole numbers that are not negative")
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
        UnsupportedTypeError: dtype or reduce op (a TypeError).
        InvalidArgumentError: collective, algorithm, root or their combination (a ValueError).
    """
    check_algorithm(spec)
    if spec.collective != Collective.BARRIER.value and spec.dtype not in DTYPES:
        raise UnsupportedTypeError(
            f"dtype {spec.dtype or 'none'} is not supported; supported are {', '.join(DTYPES)}"
        )
    if spec.collective in REDUCING:
        if spec.reduce_op not in REDUCE_OPS:
            raise InvalidArgumentError(
                f"unknown reduce op {spec.reduce_op!r}{suggestion(spec.reduce_op, REDUCE_OPS)}; "
                f"known are {', '.join(REDUCE_OPS)}"
            )
        if spec.reduce_op == "avg" and not DTYPES[spec.dtype].is_float:
            raise UnsupportedTypeError(
                f"avg of {spec.dtype} is not defined (it would not be a whole number); use sum "
                "and divide, or convert to a floating-point dtype"
            )
    if spec.collective == Collective.BROADCAST.value and not 0 <= spec.root < world_size:
        raise InvalidArgumentError(
            f"root {spec.root} is not a rank of this group: ranks are 0 to {world_size - 1}"
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
    near = get_close_matches(word, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
