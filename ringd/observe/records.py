"""What flight recorders say of operations, groups and ranks, once it was read and checked: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Op:
    """One operation on one rank; times are seconds of the wall clock.

    Attributes:
        seq: its place in the group's order; None: a send or a receive.
        state: "done", "failed" or "in flight".
        peer: of a message the other side, -1: any; number: its number there, -1: not known.
    """

    epoch: int
    group: int
    seq: int | None
    op: str
    call: str
    digest: str
    state: str
    entered_at: float
    ended_at: float | None
    waiting_on: tuple[int, ...]
    bytes_done: int
    bytes_total: int
    error: str | None = None
    message: str = ""
    peer: int = -1
    tag: int = 0
    number: int = -1


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group as one rank knows it; ``next_seq`` None: it is over there."""

    ranks: tuple[int, ...]
    next_seq: int | None
    left: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Loss:
    """That a rank was lost, which ended an epoch.

    Attributes:
        case, detail: as in a ``PeerLostError``.
        place: "file:line" of what its program raised; "": it raised nothing, or it is unknown.
        partial: one rank's own view, which the rendezvous had not confirmed.
    """

    rank: int
    case: str
    detail: str = ""
    place: str = ""
    partial: bool = False

    @property
    def exit_status(self) -> str | None:
        """What the program gave to sys.exit(), a number or a text; None: it raised otherwise."""
        kind, _, rest = self.detail.partition(": ")
        if kind != "SystemExit":
            return None
        return rest.rpartition(" (")[0] if self.place else rest


@dataclass(frozen=True, slots=True)
class RankDump:
    """What one rank's flight recorder held at ``taken_at``.

    Attributes:
        groups: by (epoch, group).
        losses: by epoch: the rank whose loss ended it.
        forgotten: how many operations it had recorded and held no more.
    """

    job_id: str
    rank: int
    world_size: int
    host: str
    trainer_pid: int | None
    epoch: int
    taken_at: float
    groups: Mapping[tuple[int, int], GroupView]
    operations: tuple[Op, ...]
    forgotten: int = 0
    broken: str | None = None
    losses: Mapping[int, Loss] = field(default_factory=dict)
