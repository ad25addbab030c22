"""What the ranks' flight recorders say together, as values: where ranks part, what is stuck."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ringd.observe.outcomes import FAILED, IN_FLIGHT
from ringd.observe.records import Loss, Op, RankDump

NEVER, LEFT, NO_DUMP = "never entered", "left", "no dump"
FORGOTTEN, OLDER = "forgotten", "dump is older"
ABSENT = (NEVER, LEFT)
_FOLLOWS_A_LOSS = ("peer_lost", "membership_changed")
"""Errors of calls that a loss, or a wish for the next epoch, cut short."""
MISMATCH, MISSING, ERROR, UNFINISHED, BEHIND = (
    "mismatch", "never entered", "failed", "unfinished", "behind",
)  # fmt: skip
GRAVITY = (MISMATCH, MISSING, ERROR, UNFINISHED, BEHIND)


@dataclass(frozen=True, slots=True)
class Entry:
    """One rank at one place in a group's order.

    Attributes:
        state: "done", "failed", "in flight", "never entered", "left" (it had said goodbye), "no
            dump" (of this epoch), "forgotten" (too long ago), "dump is older" (than the call).
        op: what it did there, if it is known.
        last: where it did nothing, its last operation in this group.
    """

    rank: int
    state: str
    op: Op | None = None
    last: Op | None = None


@dataclass(frozen=True, slots=True)
class Parting:
    """A place in a group's order where ranks did not all do the same, well.

    Attributes:
        kind: "mismatch" (different calls), "never entered", "failed", "unfinished" (in flight
            everywhere), or "behind" (who has entered is done).
        overcome: all ranks agreed on a later operation.
    """

    group: int
    seq: int
    kind: str
    entries: tuple[Entry, ...]
    overcome: bool

    def ranks(self, *states: str) -> list[int]:
        """The ranks in one of these states."""
        return [entry.rank for entry in self.entries if entry.state in states]

    def late(self) -> list[int]:
        """The ranks that entered when it had failed on another already."""
        failed_at = self.failed_at
        if failed_at is None:
            return []
        return [e.rank for e in self.entries if e.op and e.op.entered_at > failed_at]

    @property
    def follows_a_loss(self) -> bool:
        """Whether all that failed there was cut short by a loss, or a wish for the next epoch."""
        errors = {entry.op.error for entry in self.entries if entry.op is not None} - {None}
        cut_short = bool(errors) and errors.issubset(_FOLLOWS_A_LOSS)
        return cut_short and not self.ranks(IN_FLIGHT)

    @property
    def failed_at(self) -> float | None:
        """When it failed on the first rank; None: on none."""
        ends = [e.op.ended_at for e in self.entries if e.op and e.state == FAILED]
        return min((end for end in ends if end is not None), default=None)

    @property
    def began_at(self) -> float:
        """When the first rank entered."""
        return min(entry.op.entered_at for entry in self.entries if entry.op is not None)


@dataclass(frozen=True, slots=True)
class Message:
    """A send or a receive that is in flight, or failed.

    Attributes:
        partner: "no dump", "not posted", "posted", "differs" (in dtype or count), "sent" (it is on
            its way), or "any" (a receive from any source).
        other: the other side, where there is one.
    """

    rank: int
    op: Op
    partner: str
    other: Op | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What the dumps say together, of one epoch: the last one, or if nothing went wrong in it the
    last one in which something did.

    Attributes:
        last_epoch: the last one.
        loss: of whom, if that ended the epoch.
        ended: what else did, in words.
        others: other jobs of which there are dumps, with their world sizes; this one's are newer.
        dumps: one per rank; missing: the ranks of which there is none.
        partings: by group and seq; messages: sends and receives that are stuck.
        headline: the parting to look at first, if there is one.
        chain: rank after rank, each waiting on the next; the last one waits for nobody, or
            (``circle``) on one before it.
        roots: who waits for nobody where the ways end that lead on from those that never entered
            the headline; without an open headline, from the messages.
        instead: what those that never entered the headline have, or had then, in flight.
        gone: ranks that said goodbye.
    """

    job_id: str
    world_size: int
    epoch: int
    dumps: tuple[RankDump, ...]
    missing: tuple[int, ...]
    partings: tuple[Parting, ...]
    messages: tuple[Message, ...]
    headline: Parting | None
    chain: tuple[int, ...]
    circle: bool
    last_epoch: int = 0
    loss: Loss | None = None
    ended: str = ""
    others: tuple[tuple[str, int], ...] = ()
    roots: tuple[int, ...] = ()
    instead: Mapping[int, Op] = field(default_factory=dict)
    gone: tuple[int, ...] = ()

    @property
    def loss_came_first(self) -> bool:
        """Whether what failed in the headline failed because of the loss."""
        if self.loss is None:
            return False
        open_one = self.headline if self.headline and not self.headline.overcome else None
        return open_one is None or open_one.follows_a_loss
