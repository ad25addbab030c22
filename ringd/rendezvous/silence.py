"""Which daemons have fallen silent, or whether it is us who hear nothing: pure.

Daemons speak every ``heartbeat_s``, less than half of the limit. Where all of them were silent
for longer than that, our process stood still or our host was cut off. They will have hung up by
then, or may do so at any moment, and none of them is lost for it.
"""

from __future__ import annotations

DOUBT_S = 1.0
"""For so long after we were out of reach, a connection that ends says nothing of its daemon."""


class Silence:
    """When each daemon was heard last.

    Args:
        limit_s: a daemon silent for so long is lost, if others were heard meanwhile.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._heard_at: dict[int, float] = {}
        self._last_at = 0.0
        self._doubt_until = 0.0

    def heard(self, rank: int, now: float) -> None:
        """Its daemon said something, or its connection ended."""
        if self._heard_at and now > self._last_at + self._limit_s / 2:
            self._doubt_until = now + DOUBT_S
        self._heard_at[rank] = self._last_at = now

    def gone(self, rank: int) -> None:
        """Nobody has its place."""
        self._heard_at.pop(rank, None)

    def since(self, rank: int, then: float) -> bool:
        """Whether it was silent since ``then``."""
        return self._heard_at.get(rank, then) <= then

    def in_doubt(self, now: float) -> bool:
        """We were out of reach, or held up, until just now: what piled up is still coming in."""
        if now >= self._doubt_until:
            self._doubt_until = 0.0
        return self._doubt_until > 0.0

    def next_deadline(self) -> float | None:
        """When one of them, or all, have been silent for too long; while in doubt nobody has."""
        if self._doubt_until:
            return self._doubt_until
        last = max(self._heard_at.values(), default=0.0)
        times = (at if self._was_missed(at, last) else last for at in self._heard_at.values())
        return min((at + self._limit_s for at in times), default=None)

    def lost(self, now: float) -> list[int]:
        """Those silent for too long, while another one was heard."""
        if self.in_doubt(now):
            return []
        last = max(self._heard_at.values(), default=0.0)
        return [
            rank
            for rank, at in self._heard_at.items()
            if now >= at + self._limit_s and self._was_missed(at, last)
        ]

    def total(self, now: float) -> bool:
        """Whether nothing was heard of any of them for too long."""
        if not self._heard_at or self.in_doubt(now):
            return False
        return now >= max(self._heard_at.values()) + self._limit_s

    def _was_missed(self, at: float, last: float) -> bool:
        return last >= at + self._limit_s / 2
