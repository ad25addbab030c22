"""What an agent tells its daemon, and what its daemon tells it once and for all."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import ringd
from ringd.rendezvous.news import Claim, Lost, Start
from ringd.transport.base import Address

Advertise = Callable[[Address], Awaitable[Address]]
"""From the local address of the connection that reached the rendezvous to the address that peers
are to dial; may listen only now. By default the host is that local one, never a host name."""


@dataclass(frozen=True, slots=True)
class Presence:
    """Who of a group is here.

    Attributes:
        joined: ranks with a daemon.
        attached: those of them whose trainer waits to be let in.
        running: those whose trainer takes part in the current epoch.
        epoch: that one; 0: none began.
    """

    joined: Sequence[int] = ()
    attached: Sequence[int] = ()
    running: Sequence[int] = ()
    epoch: int = 0


class AgentEvents(Protocol):
    """What a daemon hears. Called on the loop's thread, in the order in which it was sent."""

    def on_members(self, members: list[tuple[int, Address]]) -> None:
        """Every rank's daemon is here, at these addresses; again when one was replaced."""

    def on_waiting(self, presence: Presence) -> None:
        """Who is here so far."""

    def on_refused(self, text: str) -> None:
        """The group can't form as it is (an address that peers can't reach, for one). It forms
        after all, and ``on_members`` comes, if the rank at fault is replaced."""

    def on_start(self, start: Start) -> None:
        """An epoch begins, and our trainer takes part in it."""

    def on_changed(self, epoch: int, rank: int) -> None:
        """The epoch is over: the trainer of ``rank`` asked for the next one."""

    def on_not_reformed(self, text: str, facts: dict[str, Any]) -> None:
        """There is no next epoch for our trainer; ``facts``: quorum, epoch, here, missing."""

    def on_left(self, rank: int, epoch: int, next_seqs: dict[int, int]) -> None:
        """The trainer of ``rank`` said goodbye; by group the first call that it did not make."""

    def on_lost(self, lost: Lost) -> None:
        """The epoch is over, and why."""

    def on_abort(
        self, epoch: int, group: int, lowest: int, seq: int, error: dict[str, Any]
    ) -> None:
        """An operation failed at another rank, and so it does here; ``error`` as on the wire.

        ``lowest``: the lowest rank of the group that is meant.
        """

    def on_inquiry(self, inquiry: int, epoch: int, group: int, lowest: int, seq: int) -> None:
        """What do we know of this operation? ``op_answer`` is to follow within 100 ms."""

    def on_post_inquiry(self, question: dict[str, Any]) -> None:
        """What do we know of a message? ``op_answer`` is to follow within 100 ms."""

    def on_post_verdict(self, verdict: dict[str, Any]) -> None:
        """The verdict on a message of ours: the fields of "post_verdict"."""

    def on_dial(self, peer: int) -> None:
        """``peer``, a higher rank, wants a data connection with us."""

    def on_report(self) -> dict[str, Any]:
        """Our state, as plain data, for somebody's status."""


class Continuity(Protocol):
    """What keeps a daemon going when the rendezvous is gone, and brings it back (ADR 16)."""

    def on_claim(self) -> Claim | None:
        """What we know of the last epoch, for a rendezvous that may not; None: there was none."""

    def on_coordinator_lost(self, reason: str) -> None:
        """The rendezvous is out of reach, until ``on_coordinator_back``; data connections go on."""

    def on_coordinator_back(self) -> None:
        """The rendezvous is there again, or another one is."""

    def on_succession(self, silent: frozenset[int]) -> Address:
        """Become the rendezvous, as it is gone and nobody before us is there.

        Args:
            silent: seats that don't answer.

        Returns:
            Where it listens, that is, where we listen.
        """


@dataclass(frozen=True, slots=True)
class DaemonInfo:
    """What a status shows of a daemon."""

    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    version: str = ringd.__version__
