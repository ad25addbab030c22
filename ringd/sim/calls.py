"""What a simulated job calls, and what every rank must get: by the definition, in whole numbers.

Values are small whole numbers, so that every sum, product and order is exact in every dtype that is
drawn, and the expected result needs no code of ours.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ringd.schedules.layout import Span, region_of, spans_of
from ringd.vocabulary import (
    ALGORITHMS,
    ANY_SOURCE,
    DETERMINISTIC_ALGORITHMS,
    FOLDING,
    IN_PARTS,
    RECV,
    REDUCING,
    ROOTED,
    SEND,
    Collective,
    OpSpec,
    agree_spec,
    reductions,
)

COUNTS = (0, 1, 2, 5, 77, 1000, 9001, 30_011)
ROWS = (0, 0, 1, 2, 3, 40, 700)
DTYPES = (
    "float32", "float64", "int32", "int64", "float16", "int8", "uint8", "int16", "bool",
    "complex64", "complex128",
)  # fmt: skip
TAGS = (0, 1, 7)

Array = np.ndarray[Any, np.dtype[Any]]

_REDUCE: dict[str, Callable[[Array], Array]] = {
    "sum": lambda stack: stack.sum(0),
    "prod": lambda stack: stack.prod(0),
    "min": lambda stack: stack.min(0),
    "max": lambda stack: stack.max(0),
    "band": lambda stack: np.bitwise_and.reduce(stack, 0),
    "bor": lambda stack: np.bitwise_or.reduce(stack, 0),
    "bxor": lambda stack: np.bitwise_xor.reduce(stack, 0),
}


def values(count: int, seed: int, dtype: str) -> Array:
    """Small whole numbers that depend on position and ``seed``: 1 to 5, or truth values."""
    whole = (np.arange(count) * 7 + seed) % 5 + 1
    if dtype == "bool":
        return (whole > 3).astype(bool)
    if dtype.startswith("complex"):
        return (whole % 3 + 1j * ((whole + seed) % 2)).astype(dtype)
    return whole.astype(dtype or "uint8")


@dataclass(frozen=True, slots=True)
class Call:
    """One collective, the same on every member of its group.

    Attributes:
        spec: the call; its group's number is only known once the group is there.
        salt: makes its data its own.
        members: the ranks of the world that make it, in group order.
        rows: of all_to_all, rows[a][b] from a to b.
    """

    spec: OpSpec
    salt: int
    members: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...] = ()

    def splits(self, rank: int) -> tuple[int, ...] | None:
        """Rows for each, then rows from each; of all_to_all only."""
        if not self.rows:
            return None
        return (*self.rows[rank], *(row[rank] for row in self.rows))

    def input(self, rank: int) -> Array:
        """What a rank of the group puts in."""
        region = self._region(rank)
        return values(region.load[1], rank * 3 + self.salt, self.spec.dtype)

    def region(self, rank: int) -> Array:
        """What its region holds before the call; where nothing is put in, nothing of use."""
        place = self._region(rank)
        region = values(place.count, 1, self.spec.dtype)
        start, count = place.load
        region[start : start + count] = self.input(rank)
        source, target, own = place.own
        region[target : target + own] = region[source : source + own]
        return region

    def result_of(self, region: Array, rank: int) -> Array:
        """The part of a region that is the result."""
        start, count = self._region(rank).result
        return region[start : start + count]

    def expected(self, rank: int) -> Array:
        """The result by the definition."""
        n, kind = len(self.members), self.spec.collective
        inputs = [self.input(r) for r in range(n)]
        if kind == Collective.BROADCAST.value:
            return inputs[self.spec.root]
        if kind in FOLDING:
            return self._reduced(inputs, rank)
        if kind == Collective.ALL_TO_ALL.value:
            blocks = [_cut(inputs[r], self._outgoing(r))[rank] for r in range(n)]
            return np.concatenate(blocks)
        if kind == Collective.SCATTER.value:
            return _cut(inputs[self.spec.root], spans_of(self.spec.part_counts(n)))[rank]
        gets = kind == Collective.ALL_GATHER.value or rank == self.spec.root
        return np.concatenate(inputs) if gets else inputs[0][:0]

    def _reduced(self, inputs: Sequence[Array], rank: int) -> Array:
        kind, dtype, n = self.spec.collective, self.spec.dtype, len(inputs)
        if kind == Collective.REDUCE.value and rank != self.spec.root:
            return inputs[0][:0]
        if dtype == "bool":
            whole = _logical(self.spec.reduce_op, np.stack(inputs))
        else:
            wide = "complex128" if dtype.startswith("complex") else "int64"
            whole = _REDUCE[self.spec.reduce_op](np.stack([x.astype(wide) for x in inputs]))
        if kind == Collective.REDUCE_SCATTER.value:
            whole = _cut(whole, spans_of(self.spec.part_counts(n)))[rank]
        return np.asarray(whole).astype(dtype)

    def _outgoing(self, rank: int) -> tuple[Span, ...]:
        return spans_of(tuple(rows * self.spec.count for rows in self.rows[rank]))

    def _region(self, rank: int) -> Any:
        return region_of(self.spec, rank, len(self.members), self.splits(rank) or ())


def _logical(reduce_op: str, stack: Array) -> Array:
    if reduce_op == "bxor":
        return np.asarray(np.logical_xor.reduce(stack, 0))
    any_of = reduce_op in ("sum", "max", "bor")
    return np.asarray(stack.any(0) if any_of else stack.all(0))


def _cut(whole: Array, spans: Sequence[Span]) -> list[Array]:
    return [whole[start : start + count] for start, count in spans]


@dataclass(frozen=True, slots=True)
class Message:
    """One message from a rank of the world to another; ``any_source``: how it is received."""

    source: int
    dest: int
    tag: int
    count: int
    dtype: str
    salt: int
    any_source: bool

    def spec(self, side: str) -> OpSpec:
        """The call of the sender (SEND) or of the receiver (RECV)."""
        if side == SEND:
            return OpSpec(SEND, self.dtype, "", (self.count,), root=self.dest)
        root = ANY_SOURCE if self.any_source else self.source
        return OpSpec(RECV, self.dtype, "", (self.count,), root=root)

    def data(self) -> Array:
        """What it carries."""
        return values(self.count, self.salt + 11 * self.source, self.dtype)


@dataclass(frozen=True, slots=True)
class Exchange:
    """Messages that all ranks post at once."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Relay:
    """Messages along a chain of ranks: who gets one sends its own only then."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class NewGroup:
    """The call of every rank of the world that makes a group of ``members``."""

    members: tuple[int, ...]

    def spec(self) -> OpSpec:
        """The same on all ranks."""
        return OpSpec(Collective.NEW_GROUP.value, "int64", "max", (1,), counts=self.members)


@dataclass(frozen=True, slots=True)
class InGroup:
    """A call on the group that the ``index``-th NewGroup made."""

    index: int
    call: Call


Step = Call | Exchange | Relay | NewGroup | InGroup


def draw_call(rng: random.Random, members: tuple[int, ...], salt: int) -> Call:
    """A collective of any kind, dtype, size and algorithm; empty and tiny ones among them."""
    n = len(members)
    collective = rng.choice([c for c in ALGORITHMS if c != Collective.NEW_GROUP.value])
    algorithm = rng.choice(ALGORITHMS[collective])
    if collective == Collective.BARRIER.value:
        return Call(OpSpec(collective, "", "", (), algorithm=algorithm), salt, members)
    if collective == Collective.AGREE.value:
        return Call(agree_spec(0), salt, members)
    dtype = rng.choice(DTYPES)
    spec = OpSpec(
        collective,
        dtype,
        rng.choice([op for op in reductions(dtype) if op in _REDUCE])
        if collective in REDUCING
        else "",
        (rng.choice(COUNTS),),
        root=rng.randrange(n) if collective in ROOTED else -1,
        algorithm=algorithm,
        deterministic=collective in REDUCING
        and algorithm in DETERMINISTIC_ALGORITHMS
        and rng.random() < 0.3,
    )
    if collective == Collective.ALL_TO_ALL.value:
        rows = tuple(tuple(rng.choice(ROWS) for _ in members) for _ in members)
        return Call(replace(spec, shape=(rng.choice((1, 2, 3)),)), salt, members, rows)
    if collective in IN_PARTS and rng.random() < 0.5:
        counts = tuple(rng.choice(ROWS) for _ in members)
        spec = replace(spec, shape=(rng.choice((1, 3)),), counts=counts)
    return Call(spec, salt, members)


def draw_exchange(rng: random.Random, n: int, salt: int) -> Exchange:
    """Up to eight messages between random ranks; equal tags among them, so that order counts.

    A receive from any source has a tag of its own, so that only one message fits.
    """
    messages = []
    for number in range(rng.randint(1, 8)):
        source, dest = rng.sample(range(n), 2)
        any_source = rng.random() < 0.25
        messages.append(
            Message(
                source,
                dest,
                1000 * (salt + 1) + number if any_source else rng.choice(TAGS),
                rng.choice(COUNTS),
                rng.choice(DTYPES),
                salt + number,
                any_source,
            )
        )
    return Exchange(tuple(messages))


def draw_relay(rng: random.Random, n: int, first: int, salt: int) -> Relay:
    """A chain of at least three ranks that begins with ``first``; its tag is its own."""
    others = [rank for rank in range(n) if rank != first]
    ranks = [first, *rng.sample(others, rng.randint(2, len(others)))]
    messages = [
        Message(
            source,
            dest,
            1000 * (salt + 1),
            rng.choice(COUNTS),
            rng.choice(DTYPES),
            salt,
            any_source=False,  # of such a receive all others are to blame
        )
        for source, dest in itertools.pairwise(ranks)
    ]
    return Relay(tuple(messages))


def draw_program(rng: random.Random, n: int) -> list[Step]:
    """What a job of ``n`` ranks calls, in the order of the world's calls."""
    steps: list[Step] = []
    groups: list[tuple[int, ...]] = []
    everybody = tuple(range(n))
    for salt in range(rng.randint(3, 14)):
        kind = rng.random()
        if kind < 0.12:
            steps.append(draw_exchange(rng, n, salt))
        elif kind < 0.24:
            members = tuple(rng.sample(everybody, rng.randint(1, n)))
            groups.append(members)
            steps.append(NewGroup(members))
        elif groups and kind < 0.5:
            index = rng.randrange(len(groups))
            steps.append(InGroup(index, draw_call(rng, groups[index], salt)))
        else:
            steps.append(draw_call(rng, everybody, salt))
    return steps
