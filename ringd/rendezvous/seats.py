"""The places of a group's ranks, and what stands against their coming together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ringd.rendezvous.addresses import is_loopback, loopback_text
from ringd.rendezvous.events import DaemonJoined


@dataclass(slots=True)
class Seat:
    """One rank's place.

    Attributes:
        peer: whose connection holds it; "" while it is vacant.
        remote: that connection came from another host.
        daemon: what its daemon said of itself, once it joined.
        attempt: of the trainer that waits to be let in; 0: none waits.
        running: its trainer takes part in the current epoch.
    """

    peer: str = ""
    remote: bool = False
    daemon: DaemonJoined | None = None
    attempt: int = 0
    running: bool = False

    def is_of(self, epoch: int) -> bool:
        """Whether that epoch was the last one of its daemon when it came."""
        claim = None if self.daemon is None else self.daemon.claim
        return claim is not None and claim.epoch == epoch

    def holder(self) -> str:
        """Who has it, as far as is known."""
        daemon = self.daemon
        if daemon is None:
            return self.peer
        told = f"pid {daemon.pid} on {daemon.host or '?'}, listens on {daemon.address}"
        return f"{self.peer} ({told})"

    def describe(self) -> dict[str, Any]:
        """For a status; its daemon must have joined."""
        daemon = self.daemon
        assert daemon is not None
        trainer = "waiting" if self.attempt else "running" if self.running else "none"
        return {
            "rank": daemon.rank,
            "address": str(daemon.address),
            "control_peer": self.peer,
            "pid": daemon.pid,
            "host": daemon.host,
            "version": daemon.version,
            "trainer": trainer,
        }


def obstacle(seats: Sequence[Seat]) -> str | None:
    """Why those that are here can't be one group; None: nothing."""
    return _unreachable(seats) or _unequal(seats)


def _unreachable(seats: Sequence[Seat]) -> str | None:
    """A rank that advertises loopback while another one sits on another host."""
    remote = [rank for rank, seat in enumerate(seats) if seat.remote]
    for rank, seat in enumerate(seats):
        others = [r for r in remote if r != rank]
        if others and seat.daemon is not None and is_loopback(seat.daemon.address.host):
            other = f"rank {others[0]} (at {seats[others[0]].peer})"
            return loopback_text(rank, seat.daemon.address, other)
    return None


def _unequal(seats: Sequence[Seat]) -> str | None:
    """A rank whose sizes differ from the first one's: they would cut a tensor differently."""
    sizes = {rank: seat.daemon.sizes for rank, seat in enumerate(seats) if seat.daemon is not None}
    first = min(sizes, default=0)
    for rank, its in sizes.items():
        if its != sizes[first]:
            return (
                f"rank {rank} has segment_bytes and eager_bytes {list(its)}, rank {first} has "
                f"{list(sizes[first])}: set them alike on all ranks"
            )
    return None
