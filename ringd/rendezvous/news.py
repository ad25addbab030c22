"""What a rendezvous and its daemons tell each other of epochs, on both sides: plain frozen data.

What a daemon needs of this package stands apart from what only a rendezvous does: each rank has a
daemon, and loads what it uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ringd.transport.base import Address
from ringd.wire.raised import Raised


@dataclass(frozen=True, slots=True)
class Lost:
    """A verdict: why the epoch is over.

    Attributes:
        case: "trainer died", "trainer raised", "daemon lost", "daemon left" or "link lost".
        link: for "link lost", (a, b): rank a lost its connection to rank b. Else None.
        number: the verdict's id, the same on all ranks.
        raised: of "trainer raised" the exception, where it is known.
    """

    rank: int
    case: str
    detail: str
    epoch: int
    link: tuple[int, int] | None = None
    number: str = ""
    raised: Raised | None = None

    def to_fields(self) -> dict[str, Any]:
        """As the fields of the message "lost"."""
        return {
            "rank": self.rank,
            "case": self.case,
            "detail": self.detail,
            "epoch": self.epoch,
            "link": list(self.link) if self.link else None,
            "verdict": self.number,
            "exception": None if self.raised is None else self.raised.words(),
        }


@dataclass(frozen=True, slots=True)
class Claim:
    """What a daemon that comes back knows of its epoch.

    Attributes:
        epoch: the one that runs or ran last, from 1 on.
        members: its ranks in their order.
        running: its trainer takes part, or ended its part: then the daemon says so again.
        n_verdicts: the highest count among the ids of the verdicts that it heard.
        lost: the verdicts that ended the epoch, as far as it heard them.
        addresses: by rank, where daemons listen, as far as it knows: one may be the rendezvous.
    """

    epoch: int
    members: tuple[int, ...]
    running: bool
    n_verdicts: int = 0
    lost: tuple[Lost, ...] = ()
    addresses: tuple[tuple[int, Address], ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """How far the survivors of an epoch came in it.

    Attributes:
        members: its seats, in order.
        survivors: those of them whose trainers asked for the next epoch, and are in it.
        completed_by_all, completed_by_any: calls of the world, -1: none.
        agreed: number and answer of each survivor's last agreement.
    """

    epoch: int
    members: tuple[int, ...]
    survivors: tuple[int, ...]
    completed_by_all: int
    completed_by_any: int
    agreed: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Start:
    """An epoch begins.

    Attributes:
        members: the seats in it, in order.
        history: of the epoch before, if somebody survived it.
    """

    epoch: int
    members: tuple[int, ...]
    history: History | None = None
