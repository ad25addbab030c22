"""Who of a group is here, and what those that are here were told of each other: pure."""

from __future__ import annotations

from ringd.rendezvous.events import Instruction, Send
from ringd.rendezvous.seats import Seat, obstacle


class Gathering:
    """The coming together of daemons, and of trainers that wait to be let in.

    Args:
        seats: of all ranks; changed by whoever owns them.
        min_size: so many may begin without the others.
        last_call_s: if nobody else came for so long.
    """

    def __init__(self, seats: list[Seat], min_size: int, last_call_s: float) -> None:
        self._seats = seats
        self._min_size = min_size
        self._last_call_s = last_call_s
        self._told: tuple[tuple[int, ...], ...] = ((), (), ())
        self._met: tuple[int, ...] = ()  # whose addresses all that are here were told
        self._obstructed: tuple[int, ...] = ()  # they are here, and can't be one group
        self._came_at = self._attached_at = 0.0  # the last daemon, the last trainer

    # Queries

    def joined(self) -> tuple[int, ...]:
        """Ranks whose daemon is here."""
        return tuple(r for r, seat in enumerate(self._seats) if seat.daemon is not None)

    def attached(self) -> tuple[int, ...]:
        """Ranks whose trainer waits to be let in."""
        return tuple(r for r, seat in enumerate(self._seats) if seat.attempt)

    def running(self) -> tuple[int, ...]:
        """Ranks whose trainer takes part in the current epoch."""
        return tuple(r for r, seat in enumerate(self._seats) if seat.running)

    def newcomers(self) -> tuple[int, ...]:
        """Trainers that may be let in."""
        return tuple(rank for rank in self.attached() if rank in self._met)

    def may_begin(self, now: float) -> bool:
        """Whether the first epoch need not wait for more trainers."""
        n = len(self.newcomers())
        in_time = now < self._attached_at + self._last_call_s
        return n >= self._min_size and not (n < len(self._seats) and in_time)

    def last_call(self) -> float | None:
        """When a group that may be smaller than all begins, if nobody else comes."""
        if self._min_size == len(self._seats) or self.running():
            return None
        joined = self.joined()
        if joined not in (self._met, self._obstructed) and len(joined) >= self._min_size:
            return self._came_at + self._last_call_s
        if len(self.newcomers()) >= self._min_size:
            return self._attached_at + self._last_call_s
        return None

    # What happens

    def daemon_came(self, now: float) -> None:
        """One more is here."""
        self._came_at = now

    def trainer_came(self, now: float) -> None:
        """It waits to be let in, and is to hear of an obstacle, too."""
        self._attached_at = now
        self._obstructed = ()

    def gone(self, rank: int) -> None:
        """A seat is vacant."""
        self._met = tuple(r for r in self._met if r != rank)
        self._obstructed = ()

    def begun(self) -> None:
        """The start of an epoch says who is in it."""
        self._told = (self.joined(), self.attached(), ())

    # What is to be told

    def introduce(self, now: float) -> list[Instruction]:
        """Tell all who are here each other's addresses, once they are enough."""
        joined, running = self.joined(), self.running()
        if joined in (self._met, self._obstructed) or set(joined) < set(self._met):
            return []
        in_time = now < self._came_at + self._last_call_s
        few = len(joined) < self._min_size or in_time
        if len(joined) < len(self._seats) and not running and few:
            return []
        text = obstacle(self._seats)
        if text is not None:
            self._obstructed = joined
            refused = tuple(rank for rank in joined if rank not in running)
            return [Send(refused, "refused", {"text": text})]
        self._met = joined
        daemons = (seat.daemon for seat in self._seats)
        members = [[d.rank, d.address.host, d.address.port] for d in daemons if d is not None]
        return [Send(joined, "members", {"members": members})]

    def tell_who_waits(self, epoch: int) -> list[Instruction]:
        """Tell those that wait who is here, and whom they wait for, as far as that changed."""
        joined, attached, running = self.joined(), self.attached(), self.running()
        if self._told == (joined, attached, running if attached else ()):
            return []
        self._told = (joined, attached, running if attached else ())
        whole = len(joined) == len(self._seats)
        to = tuple(sorted({*attached, *running})) if whole else joined
        fields = {
            "joined": list(joined),
            "attached": list(attached),
            "running": list(running),
            "epoch": epoch,
        }
        return [Send(to, "waiting", fields)] if to else []
