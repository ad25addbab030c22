"""How far eager data to one peer may run ahead of that peer's calls: a bound on what it must park.

Calls are entered in order, so a peer's first frame for an operation shows that it entered all
earlier ones too, and frees the allowance that they took. Beyond the bound an operation's eager
data waits until the peer, asked by an envelope, gives credit.
"""

from __future__ import annotations

from collections import deque

RUN_AHEAD_BYTES = 4 * 1024 * 1024
RUN_AHEAD_TOTAL_BYTES = 64 * 1024 * 1024
"""What all peers together may make one rank park: with many ranks, each may send less."""
RUN_AHEAD_OPERATIONS = 1024


def allowance_bytes(world_size: int) -> int:
    """How many bytes one rank may have parked at one peer."""
    return min(RUN_AHEAD_BYTES, RUN_AHEAD_TOTAL_BYTES // max(1, world_size - 1))


class Budget:
    """What one peer may be made to park, by all groups together."""

    __slots__ = ("limit_bytes", "operations", "parked_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.parked_bytes = 0
        self.operations = 0


class RunAhead:
    """One group's use of a peer's budget, in bytes and in operations."""

    __slots__ = ("_budget", "_entered", "_parked")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._entered = (0, -1)  # the latest (epoch, seq) that the peer has shown to have entered
        self._parked: deque[tuple[tuple[int, int], int]] = deque()

    def allows(self, epoch: int, seq: int, size_bytes: int) -> bool:
        """Whether eager data may go now; if so it is counted until the peer enters."""
        at = (epoch, seq)
        if at <= self._entered:
            return True
        budget = self._budget
        if budget.operations >= RUN_AHEAD_OPERATIONS:
            return False
        if budget.parked_bytes and budget.parked_bytes + size_bytes > budget.limit_bytes:
            return False
        budget.parked_bytes += size_bytes
        budget.operations += 1
        self._parked.append((at, size_bytes))
        return True

    def has_entered(self, epoch: int, seq: int) -> bool:
        """Whether the peer has shown that it made this call."""
        return (epoch, seq) <= self._entered

    def peer_entered(self, epoch: int, seq: int) -> None:
        """A frame of the peer's for this operation came."""
        at = (epoch, seq)
        if at <= self._entered:
            return
        self._entered = at
        parked = self._parked
        while parked and parked[0][0] <= at:
            self._give_back(parked.popleft()[1])

    def give_back(self) -> None:
        """The group is gone."""
        while self._parked:
            self._give_back(self._parked.popleft()[1])

    def _give_back(self, size_bytes: int) -> None:
        self._budget.parked_bytes -= size_bytes
        self._budget.operations -= 1
