"""A process group on one rank: its epoch, its order of operations, how past ones ended."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ringd.engine.compiler import Compiler
from ringd.errors import RingdError

if TYPE_CHECKING:
    from ringd.engine.operation import Operation
    from ringd.vocabulary import OpSpec

MAX_REMEMBERED = 1024


@dataclass(slots=True)
class Group:
    """One group in one epoch.

    Attributes:
        ranks: its members as ranks of the world, in group order.
        rank: our own place among them.
        compiler: its plans.
        next_seq: the number of the next call here.
        ops: operations in flight, by seq.
        verdicts: errors of operations that were ended before this rank entered them.
        pending: an error of an operation that had returned here; the next call raises it.
        returned: the calls of rooted operations that returned here, perhaps too early to know.
        broken: why the epoch is over for this group, if it is.
        left: ranks (of the world) that said goodbye, and the seq from which on they take no part.
        origin: the number of its parent, and of the call there that made it.
    """

    number: int
    ranks: tuple[int, ...]
    rank: int
    compiler: Compiler
    epoch: int = 0
    next_seq: int = 0
    ops: dict[int, Operation] = field(default_factory=dict)
    verdicts: OrderedDict[int, RingdError] = field(default_factory=OrderedDict)
    pending: RingdError | None = None
    returned: OrderedDict[int, OpSpec] = field(default_factory=OrderedDict)
    broken: RingdError | None = None
    left: dict[int, int] = field(default_factory=dict)
    origin: tuple[int, int] = (-1, -1)
    stream: int = field(init=False)

    def __post_init__(self) -> None:
        self.stream = 1 + self.number

    @property
    def size(self) -> int:
        return len(self.ranks)

    def remember(self, seq: int, error: RingdError) -> None:
        """Store the verdict on an operation, for late entrants."""
        self.verdicts[seq] = error
        if len(self.verdicts) > MAX_REMEMBERED:
            self.verdicts.popitem(last=False)

    def note_return(self, seq: int, spec: OpSpec) -> None:
        """Keep the call of an operation whose mismatch may show only now."""
        self.returned[seq] = spec
        if len(self.returned) > MAX_REMEMBERED:
            self.returned.popitem(last=False)

    def begin_epoch(self, epoch: int) -> None:
        """A fresh order of operations."""
        self.epoch = epoch
        self.next_seq = 0
        self.ops.clear()
        self.verdicts.clear()
        self.returned.clear()
        self.left.clear()
        self.pending = self.broken = None
