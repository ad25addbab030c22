"""A process group on one rank: its epoch, its order of operations, how past ones ended."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ringd.engine import failures
from ringd.engine.compiler import Compiler
from ringd.errors import CollectiveMismatchError, RingdError
from ringd.vocabulary import Collective

if TYPE_CHECKING:
    from ringd.engine.operation import Operation
    from ringd.vocabulary import OpSpec

AGREE: Final = Collective.AGREE.value
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
        broken: why no further call of all members can complete, if so.
        void: other members do not have it; it waits to be freed.
        goodbye: whether that is a goodbye only: messages among the others go on.
        refused: whether a call was refused because of that.
        left: ranks (of the world) that said goodbye, and the seq from which on they take no part.
        origin: the number of its parent, and of the call there that made it.
        last_done: the highest seq that completed here; -1: none.
        first_cut: the lowest seq that the end of the epoch cut short here; None: none.
        agreed: seq and outcome of the last agree that completed here.
        agree_cut: seq of an agree whose outcome this rank's program does not know, though others
            may: it ended with an error, and no later one has completed; or its answer has come no
            further than here.
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
    void: bool = False
    goodbye: bool = False
    refused: bool = False
    left: dict[int, int] = field(default_factory=dict)
    origin: tuple[int, int] = (-1, -1)
    last_done: int = -1
    first_cut: int | None = None
    agreed: tuple[int, bool] | None = None
    agree_cut: int | None = None
    stream: int = field(init=False)

    def __post_init__(self) -> None:
        self.stream = 1 + self.number

    @property
    def size(self) -> int:
        return len(self.ranks)

    def break_by(self, error: RingdError, *, goodbye: bool = False) -> None:
        """No further call can complete. The first cause stands; but a goodbye yields to a loss."""
        if self.broken is None or (self.goodbye and not goodbye):
            self.broken, self.goodbye = error, goodbye

    def left_before(self, seq: int) -> RingdError | None:
        """That a rank said goodbye before the call with this number; None: nobody did."""
        gone = (rank for rank, seq_left in self.left.items() if seq >= seq_left)
        return next((failures.left_before(self, rank) for rank in gone), None)

    def first_refusal(self) -> bool:
        """Whether this is the first call that is refused because the group is over."""
        first = self.broken is not None and not self.refused
        self.refused = self.refused or first
        return first

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

    def note_end(self, op: Operation, error: RingdError | None) -> None:
        """Keep how far this rank came, for the ranks that go on in the next epoch (ADR 15).

        Called while the operation's region is still ours.
        """
        seq, is_agree = op.seq, op.spec.collective == AGREE
        if error is None:
            if seq > self.last_done:
                self.last_done = seq
            if is_agree and (self.agreed is None or seq > self.agreed[0]):
                self.agreed = (seq, bool(op.mem[0]))
                if self.agree_cut is not None and self.agree_cut < seq:
                    self.agree_cut = None
            return
        if error.retry == "new_epoch":
            self.first_cut = seq if self.first_cut is None else min(self.first_cut, seq)
        # Where calls differed, nobody has got an answer: one of them was no agree.
        if is_agree and not isinstance(error, CollectiveMismatchError):
            self.agree_cut = seq

    def agree_unheard(self, epoch: int, seq: int) -> None:
        """Our program says that it lacks the answer of an agree, whatever we told it."""
        if epoch == self.epoch:
            self.agree_cut = seq

    def begin_epoch(self, epoch: int) -> None:
        """A fresh order of operations."""
        self.epoch = epoch
        self.next_seq = 0
        self.ops.clear()
        self.verdicts.clear()
        self.returned.clear()
        self.left.clear()
        self.pending = self.broken = None
        self.goodbye = self.refused = False
        self.last_done, self.first_cut = -1, None
        self.agreed = self.agree_cut = None
