"""What goes into the membership, and what comes out: plain frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ringd.rendezvous.news import Claim
from ringd.rendezvous.verdicts import Answer
from ringd.transport.base import Address
from ringd.wire.raised import Raised

DetachHow = Literal["goodbye", "died", "raised", "gave_up"]


@dataclass(frozen=True, slots=True)
class FromDaemon:
    """Something that the daemon of ``rank`` did or said. Each is a sign of its life."""

    rank: int


@dataclass(frozen=True, slots=True)
class DaemonAdmitted(FromDaemon):
    """Its handshake succeeded: the place is taken, by the connection from ``peer``.

    ``remote``: it reached us from another host.
    """

    peer: str
    remote: bool = False


@dataclass(frozen=True, slots=True)
class DaemonJoined(FromDaemon):
    """It said where it listens for its peers.

    ``sizes``: segment and eager limit in bytes, which all ranks must have alike. ``claim``: None
    of one that knows no epoch.
    """

    address: Address
    pid: int = 0
    host: str = ""
    version: str = ""
    sizes: tuple[int, ...] = ()
    claim: Claim | None = None


@dataclass(frozen=True, slots=True)
class DaemonLeft(FromDaemon):
    """It ends on purpose."""


@dataclass(frozen=True, slots=True)
class DaemonLost(FromDaemon):
    """Its connection ended without a word."""

    reason: str


@dataclass(frozen=True, slots=True)
class Heartbeat(FromDaemon):
    """It lives."""


@dataclass(frozen=True, slots=True)
class TrainerAttached(FromDaemon):
    """A trainer of this rank asks to take part in the coming epoch."""

    attempt: int


@dataclass(frozen=True, slots=True)
class TrainerDetached(FromDaemon):
    """The trainer of this rank ended its part, or its wish to take part.

    ``next_seq``: the number of the first operation of the world that it did not call; ``groups``:
    the same for its other groups, as (number, next_seq); ``raised``: what ended it, if it raised.
    """

    how: DetachHow
    detail: str
    epoch: int
    next_seq: int = 0
    groups: tuple[tuple[int, int], ...] = ()
    raised: Raised | None = None


@dataclass(frozen=True, slots=True)
class ReformWanted(FromDaemon):
    """The trainer of this rank asks for the next epoch; that in which it is, is over.

    Attributes:
        timeout_s: how long it waits.
        cut_off: members that its daemon can't reach, though they may live.
        last_done: the highest call of the world that completed here, -1: none.
        unbroken: the highest one with nothing before it that was cut short, -1: none.
        agreed: number and answer of the last agreement that completed here.
    """

    epoch: int
    attempt: int
    min_size: int = 1
    timeout_s: float = 60.0
    cut_off: tuple[int, ...] = ()
    last_done: int = -1
    unbroken: int = -1
    agreed: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class LinkLost(FromDaemon):
    """Its data connection to ``peer`` ended without a goodbye, or can't be made; ``own``: because
    of the one who says it, who has run out of something."""

    peer: int
    reason: str
    epoch: int
    own: bool = False


@dataclass(frozen=True, slots=True)
class OpFailed(FromDaemon):
    """An operation ended with an error there, and ends so everywhere.

    ``members``: the group's ranks; groups without a common member may have one number.
    """

    epoch: int
    group: int
    members: tuple[int, ...]
    seq: int
    error: dict[str, Any]

    @property
    def lowest(self) -> int:
        """The lowest member: with the number it tells groups apart."""
        return min(self.members)

    @property
    def key(self) -> tuple[int, int, int]:
        """Which operation of the epoch it is."""
        return (self.group, self.lowest, self.seq)

    @property
    def asked(self) -> tuple[int, ...]:
        """Who is asked what they know of it."""
        return self.members

    def question(self, inquiry: int) -> tuple[str, dict[str, Any]]:
        """Type and fields of the message that asks."""
        return "inquire", {
            "inquiry": inquiry,
            "epoch": self.epoch,
            "group": self.group,
            "lowest": self.lowest,
            "seq": self.seq,
        }


@dataclass(frozen=True, slots=True)
class PostFailed(FromDaemon):
    """A send or a receive of it came to its deadline.

    Attributes:
        members: the group's ranks.
        number: its own, of this question.
        op: "send" or "recv".
        peers: who may be the other side, and how far the two have come: see ``wire.control``.
    """

    epoch: int
    group: int
    members: tuple[int, ...]
    number: int
    op: str
    tag: int
    peers: tuple[tuple[int, int], ...]

    @property
    def key(self) -> tuple[object, ...]:
        """Which message it is, as far as it matters who waits for whom."""
        peers = tuple(peer for peer, _ in self.peers)
        return (self.rank, self.op, self.group, min(self.members), self.tag, peers)

    @property
    def asked(self) -> tuple[int, ...]:
        """Who is asked what they know of it: both sides."""
        return (self.rank, *(peer for peer, _ in self.peers))

    def question(self, inquiry: int) -> tuple[str, dict[str, Any]]:
        """Type and fields of the message that asks."""
        return "inquire_post", {
            "inquiry": inquiry,
            "epoch": self.epoch,
            "group": self.group,
            "lowest": min(self.members),
            "rank": self.rank,
            "number": self.number,
            "op": self.op,
            "tag": self.tag,
            "peers": [list(pair) for pair in self.peers],
        }


@dataclass(frozen=True, slots=True)
class OpAnswered(FromDaemon):
    """What it knows of an operation, or a message, that was asked about.

    Attributes:
        waits: calls that are in flight there, oldest first; not those of an epoch of their own.
    """

    inquiry: int
    answer: Answer
    waits: tuple[OpFailed | PostFailed, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkWanted(FromDaemon):
    """It needs a data connection to ``peer``."""

    peer: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; nothing else happened."""


Event = FromDaemon | Tick


@dataclass(frozen=True, slots=True)
class Send:
    """Send one control message to each of the daemons ``to``."""

    to: tuple[int, ...]
    type: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drop:
    """End the daemon's connection; its place is vacant already, no DaemonLost is to follow."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class BeginAnew:
    """End all connections and forget their daemons: those that live come back and say what they
    know, as to a rendezvous that was restarted. The membership that said so is to be replaced by
    its ``anew()``."""

    reason: str


Instruction = Send | Drop | BeginAnew
