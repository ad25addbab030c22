"""How a rendezvous that knows nothing learns from its daemons which epoch runs (ADR 16): pure.

The first daemon that tells of an epoch begins it. Its members are awaited for a while; until all
are there or given up, what needs all of them (verdicts, a next epoch) waits. A successor waits for
more than half of the members besides, since there may be another rendezvous on the other side of
a split.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Set
from typing import Protocol

from ringd.rendezvous.events import (
    DaemonJoined,
    FromDaemon,
    Instruction,
    LinkLost,
    OpFailed,
    PostFailed,
    Send,
    TrainerAttached,
    TrainerDetached,
)
from ringd.rendezvous.inquiries import ASKED_ABOUT
from ringd.rendezvous.news import Claim, Lost

MAX_HELD = 8192
"""Messages that wait until the members are there."""
ANEW = "it was started anew and knows nothing of the epoch"
NOT_BACK = "it did not come back to the rendezvous, which had to begin anew"
BEHIND = "it had not heard that the epoch had begun when the rendezvous went"
NOT_REACHED = "the rendezvous went, and nothing answers at this rank's address either"
TOO_FEW_BACK = (
    "the rendezvous was lost, and not enough members of the last epoch have come to the one that "
    "followed it: {missing} may go on elsewhere without these. Mend the network and connect "
    "again, or allow it with quorum=any if there can be no other side"
)
OUTLIVED = "it was out of the rendezvous' reach, and the others went on without it"


class Epochs(Protocol):
    """What recovery needs of the membership."""

    epoch: int
    n_verdicts: int

    def take_over(self, epoch: int, members: tuple[int, ...]) -> None:
        """This epoch runs, and nothing of it is known yet; nobody counts as running."""

    def take_part(self, rank: int) -> None:
        """The trainer of ``rank`` takes part in the epoch."""

    def running(self) -> tuple[int, ...]:
        """Ranks whose trainer takes part."""

    def verdicts_on(self, epoch: int) -> list[Lost]:
        """Why that epoch is over, as far as it is remembered."""

    def announce(self, lost: Lost) -> list[Instruction]:
        """Tell all but the lost rank, once; a verdict without a number gets its own."""

    def number(self) -> str:
        """The id of the next verdict."""


class Recovery:
    """What is known of the epoch that was found, and who is awaited.

    Args:
        epochs: what is to be recovered.
        patience_s: how long members are awaited.
        majority: nothing is settled before more than half of them are there.
        unreachable: ranks that a successor has tried in vain: they are not awaited.

    Attributes:
        waiting: members are awaited.
        highest: the highest epoch that was told of: the next one has a higher number.
    """

    def __init__(
        self,
        epochs: Epochs,
        patience_s: float,
        *,
        majority: bool = False,
        unreachable: Set[int] = frozenset(),
    ) -> None:
        self._epochs = epochs
        self._patience_s = patience_s
        self._majority = majority
        self._unreachable = unreachable
        self.waiting = False
        self.highest = 0
        self._found = 0
        self._members: tuple[int, ...] = ()
        self._back: dict[int, Claim] = {}
        self._lost: dict[int, tuple[str, str]] = {}
        self._due = 0.0
        self._held: deque[FromDaemon] = deque()

    def next_deadline(self) -> float | None:
        """When the wait for members ends."""
        return self._due if self.waiting else None

    # Who comes and goes

    def joined(self, event: DaemonJoined, now: float) -> list[Instruction]:
        """A daemon is here: it has the epoch, or had one that is over, or has no past."""
        rank, claim = event.rank, event.claim
        if claim is None:
            if self.waiting and rank in self._members:
                self._forget(rank, "daemon lost", ANEW)
            return []
        out: list[Instruction] = []
        self.highest = max(self.highest, claim.epoch)
        self._epochs.n_verdicts = max(self._epochs.n_verdicts, claim.n_verdicts)
        # Not once an epoch has begun here: there can't be two with one number.
        if claim.epoch > self._found == self._epochs.epoch:
            out += self._adopt(claim, now)
        same = (claim.epoch, claim.members) == (self._found, self._members)
        if self.waiting and same and rank in self._members:
            return out + self._welcome_back(rank, claim)
        return out + self._outlived(rank, claim)

    def _adopt(self, claim: Claim, now: float) -> list[Instruction]:
        """Take over an epoch; those that have an older one are told that it is over."""
        outlived, self._back = self._back, {}
        self._found, self._members = claim.epoch, claim.members
        self._lost.clear()
        self._held.clear()
        self.waiting, self._due = True, now + self._patience_s
        self._epochs.take_over(claim.epoch, claim.members)
        return [out for rank, its in outlived.items() for out in self._outlived(rank, its)]

    def _fallen(self) -> set[int]:
        """Members whose part in the epoch is known to be over; both ends of a link live on."""
        known = self._epochs.verdicts_on(self._found)
        return {lost.rank for lost in known if lost.case != "link lost"}

    def _welcome_back(self, rank: int, claim: Claim) -> list[Instruction]:
        """What it heard is passed on, and what it did not hear it is told."""
        out: list[Instruction] = []
        for lost in claim.lost:
            if lost.epoch == self._found:
                out += self._epochs.announce(lost)
        heard = {lost.rank for lost in claim.lost}
        for lost in self._epochs.verdicts_on(self._found):
            if lost.rank not in heard:
                out.append(Send((rank,), "lost", lost.to_fields()))
        self._back[rank] = claim
        self._lost.pop(rank, None)
        if claim.running and rank not in self._fallen():
            self._epochs.take_part(rank)
        return out

    def _outlived(self, rank: int, claim: Claim) -> list[Instruction]:
        """Tell a daemon that the epoch which it has is over, with the verdict if it is known."""
        if self.waiting and rank in self._members and claim.epoch < self._found:
            self._forget(rank, "daemon lost", BEHIND)
        if not claim.running or claim.lost:
            return []
        known = self._epochs.verdicts_on(claim.epoch)
        if not known:
            lost = Lost(rank, "daemon lost", OUTLIVED, claim.epoch, number=self._epochs.number())
            known = [lost]
        return [Send((rank,), "lost", known[0].to_fields())]

    def gone(self, rank: int, case: str, detail: str) -> bool:
        """A daemon went; whether it will be called lost from here, when that may be said."""
        if not self.waiting or rank not in self._back:
            return False
        if self._back[rank].running:
            self._forget(rank, case, detail)
        return True

    def absent(self) -> list[int]:
        """Members that have not come."""
        return [rank for rank in self._members if rank not in self._back]

    def _forget(self, rank: int, case: str, detail: str) -> None:
        self._back.pop(rank, None)
        self._lost[rank] = (case, detail)
        self._held = deque(event for event in self._held if event.rank != rank)

    # What waits

    def holds(self, event: FromDaemon) -> bool:
        """Whether an event waits until the members are there; of too many the oldest is lost."""
        if not self.waiting or not _needs_all(event):
            return False
        if len(self._held) >= MAX_HELD:
            self._held.popleft()
        self._held.append(event)
        return True

    def advance(self, now: float) -> tuple[list[Instruction], Iterable[FromDaemon]]:
        """Call those lost that will not come; end the wait when nobody is awaited any more.

        Returns:
            What is to be done, and the events that were held: their time has come.
        """
        if not self.waiting:
            return [], ()
        late = now >= self._due
        if late:
            self._due = now + self._patience_s
        if self._majority and 2 * len(self._back) <= len(self._members):
            return [], ()
        out: list[Instruction] = []
        awaited, fallen = False, self._fallen()
        for rank in self._members:
            if rank in self._back or rank in fallen:
                continue
            why = self._lost.get(rank) or self._missing(rank, late=late)
            if why is None:
                awaited = True
            elif self._epochs.running():
                out += self._epochs.announce(Lost(rank, *why, self._found))
        if awaited:
            return out, ()
        self.waiting = False
        held, self._held = self._held, deque()
        return out, held

    def _missing(self, rank: int, *, late: bool) -> tuple[str, str] | None:
        if rank in self._unreachable:
            return ("daemon lost", NOT_REACHED)
        return ("daemon lost", NOT_BACK) if late else None


def _needs_all(event: FromDaemon) -> bool:
    """What can't be judged, or leads to a next epoch, before every member is there."""
    if isinstance(event, OpFailed):
        return event.error.get("code") in ASKED_ABOUT
    return isinstance(event, TrainerAttached | TrainerDetached | LinkLost | PostFailed)
