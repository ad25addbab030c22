"""What a run of the bench measures: the rows, before there are figures. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ringd.bench.figures import Case
from ringd.bench.ops import OPS, gloo_has
from ringd.vocabulary import DTYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """What is measured against what; every combination is a row, as far as it makes sense.

    Attributes:
        ops: names in :data:`ringd.bench.ops.OPS`.
        sizes_bytes: of the larger one of a rank's tensors; a barrier has none.
        algorithms, memory: of ringd only; every op has to have the algorithms.
        rate_bps, own_hosts: see :class:`Case`.
    """

    ops: Sequence[str]
    sizes_bytes: Sequence[int]
    world_sizes: Sequence[int]
    peers: Sequence[str]
    dtype: str
    algorithms: Sequence[str]
    memory: Sequence[str]
    rate_bps: int = 0
    own_hosts: bool = False

    def blocks(self, n: int) -> Iterator[list[Case]]:
        """The rows that are compared with each other: of one op, world size and size."""
        for op in self.ops:
            for size in self.sizes_bytes if OPS[op].has_size else [0]:
                yield list(self._cases(op, n, size))

    def _cases(self, op: str, n: int, size: int) -> Iterator[Case]:
        def case(impl: str, algorithm: str, place: str) -> Case:
            return Case(
                impl, op, n, size, self.dtype, algorithm, place, itemsize,
                rate_bps=self.rate_bps, own_hosts=self.own_hosts,
            )  # fmt: skip

        itemsize = DTYPES[self.dtype].itemsize
        for peer in self.peers:
            if gloo_has(op, self.dtype):
                yield case(peer, "default", "ordinary")
        for algorithm in self.algorithms:
            for place in self.memory if OPS[op].has_size else ["ordinary"]:
                yield case("ringd", algorithm, place)
