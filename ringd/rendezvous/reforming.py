"""Who is in the next epoch: the wishes of the members of the last one, and the choice (ADR 15)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringd.rendezvous.events import ReformWanted, Send
from ringd.vocabulary import ranks_text

ALLOWED_PART = 0.9
"""Of the time that a member gives the others; then the epoch begins without the rest."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The next epoch, or why there is none.

    Attributes:
        members: the seats in it, in order; () when it can't begin.
        cut_off: seats that asked, and can't be in it: they don't reach enough of the others.
        obstacle: for those who asked, when it can't begin.
        final: waiting does not change the obstacle.
    """

    members: tuple[int, ...] = ()
    cut_off: tuple[int, ...] = ()
    obstacle: str = ""
    final: bool = False


@dataclass(slots=True)
class Wishes:
    """What the members of an epoch have asked for, by seat, since the first of them did."""

    asked: dict[int, ReformWanted] = field(default_factory=dict)
    due: dict[int, float] = field(default_factory=dict)
    cut_told_at: float = 0.0
    """When a member last said that it can't reach another."""

    def add(self, event: ReformWanted, now: float) -> bool:
        """A member asks; whether it is the first."""
        self.asked[event.rank] = event
        self.due[event.rank] = now + ALLOWED_PART * event.timeout_s
        if event.cut_off:
            self.cut_told_at = now
        return len(self.asked) == 1

    def forget(self, rank: int) -> None:
        """It does not wait any more."""
        self.asked.pop(rank, None)
        self.due.pop(rank, None)

    def clear(self) -> None:
        """An epoch begins, or can't."""
        self.asked.clear()
        self.due.clear()

    def next_deadline(self) -> float | None:
        """When those that have not asked are waited for no longer."""
        return min(self.due.values(), default=None)

    def overdue(self, now: float) -> list[int]:
        """Seats that have waited as long as they may."""
        return [rank for rank, due in self.due.items() if now >= due]

    def choose(
        self,
        old: Sequence[int],
        left: Collection[int],
        new: Sequence[int],
        *,
        majority: bool,
        returned: Collection[int] = (),
    ) -> Choice:
        """The next epoch of those that asked, and of newcomers.

        Args:
            old: members of the epoch that is over, in order.
            left: those of them that said goodbye, or whose trainer is dead by the word of its own
                daemon: they are on no other side.
            new: seats whose trainers wait to be let in.
            majority: more than half of the members must go on.
            returned: members that were lost and are back as newcomers, and were in no later
                epoch: they count for the majority, as no other side has them.
        """
        here = [rank for rank in old if rank in self.asked]
        cuts = {frozenset((r, p)) for r in here for p in self.asked[r].cut_off if p in here}
        side = together(here, cuts)
        cut_off = tuple(rank for rank in here if rank not in side)
        base = [rank for rank in old if rank not in left]
        back = [rank for rank in base if rank in side or rank in returned]
        missing = [rank for rank in base if rank not in back]
        if majority and 2 * len(back) <= len(base):
            text = (
                f"only {ranks_text(back)} of the {len(base)} members of the last epoch that may "
                f"live came together, without {ranks_text(missing)}: that is no majority, and the "
                "others may go on without these. Start the job anew from its last checkpoint, or "
                "allow it with quorum=any if there can be no other side"
            )
            return Choice(cut_off=cut_off, obstacle=text, final=True)
        members = (*side, *new)
        if len(members) < max(self.asked[rank].min_size for rank in here):
            return Choice(cut_off=cut_off, obstacle=self._too_few(members, here))
        return Choice(members, cut_off)

    def _too_few(self, members: Sequence[int], here: Sequence[int]) -> str:
        """It names whose time was the first to be over, and who wants the most ranks."""
        first = min(self.due, key=lambda rank: self.due[rank])
        most = max(here, key=lambda rank: self.asked[rank].min_size)
        return (
            f"{ranks_text(members)} came together in the time that rank {first} gives "
            f"(timeout_s of its reform()), and rank {most} asked for {self.asked[most].min_size} "
            "at least. Start what is missing, raise that timeout_s, or lower min_size"
        )

    def history(self, epoch: int, old: Sequence[int], members: Iterable[int]) -> dict[str, Any]:
        """How far the survivors came in the epoch that is over, for the message "start"."""
        seats = [rank for rank in members if rank in self.asked]
        survivors = [self.asked[rank] for rank in seats]
        return {
            "epoch": epoch,
            "members": list(old),
            "survivors": seats,
            "completed_by_all": min((wish.unbroken for wish in survivors), default=-1),
            "completed_by_any": max((wish.last_done for wish in survivors), default=-1),
            "agreed": [list(wish.agreed) for wish in survivors if wish.agreed is not None],
        }

    def refusals(
        self, ranks: Iterable[int], text: str, *, quorum: bool, facts: Mapping[str, Any]
    ) -> list[Send]:
        """The answer to those of ``ranks`` that asked."""
        fields = {"text": text, "quorum": quorum, **facts}
        return [
            Send((rank,), "not_reformed", {"attempt": self.asked[rank].attempt, **fields})
            for rank in ranks
            if rank in self.asked
        ]


def together(ranks: Sequence[int], cuts: Collection[frozenset[int]]) -> list[int]:
    """The ranks that all reach each other: the largest part that is found by leaving out, again
    and again, who is cut off from most of the rest (of several, the last)."""
    side = list(ranks)
    while side:
        degrees = {r: sum(frozenset((r, p)) in cuts for p in side if p != r) for r in side}
        worst = max(side, key=lambda rank: (degrees[rank], side.index(rank)))
        if not degrees[worst]:
            break
        side.remove(worst)
    return side


def other_side_text(members: Sequence[int]) -> str:
    """For those that ``members``, who go on, can't reach."""
    others = ranks_text(members) if members else "the others"
    return (
        f"the links between this side and {others} are down, and that side goes on. Mend the "
        "network and call reform() again, which lets these in as newcomers"
    )
