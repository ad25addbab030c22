"""The way back to a rendezvous that was lost: at its address, or at a daemon that succeeds it.

Where the rendezvous is a service of its own there is one address, and time. Where a daemon holds it
(ADR 16), it is sought where it was last, then at the seats in their order: one whose daemon answers
that it is not the rendezvous may be about to become it; one that does not answer is passed over;
and who comes to its own seat, with nobody before it, becomes the rendezvous.

A higher seat that had it last and has it no longer has yielded it to another one. That one is
sought first; if there is none, the lower seat does not wait for the higher one, which waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ringd.errors import HandshakeRefusedError, RingdError
from ringd.rendezvous.reach import RetrySettings, describe
from ringd.transport.base import Address

SEAT_TIMEOUT_S = 1.0
"""How long a daemon that may be the rendezvous may take to answer."""
STEADY_S = 5.0
"""A connection that lived so long was no failure to connect."""
ALIVE = frozenset({"not_rendezvous", "rank_taken", "role"})
"""Refusals of a daemon of this job that lives; any other is a stranger's. Where the rendezvous
began, "not_rendezvous" says nothing of it: whose daemon answers there is at its own seat, too."""

Outcome = Literal["taken", "idle", "busy", "unreachable"]
"""Of one attempt. Idle: a daemon lives there, and does not have the rendezvous. Busy: it does, and
can't take us yet."""
Place = tuple[int | None, Address]


@dataclass(slots=True)
class Places:
    """Where the rendezvous may be.

    Attributes:
        own: our seat.
        configured: where it was to begin with.
        at: where it was last.
        seat: the seat of the daemon that held it last; None: it was a service of its own.
        daemons: where each seat's daemon listens.
        held: it is our own daemon that holds it, or believes so.
    """

    own: int
    configured: Address
    at: Address
    seat: int | None = None
    daemons: dict[int, Address] = field(default_factory=dict)
    held: bool = False

    @property
    def embedded(self) -> bool:
        """Whether a daemon holds it, so that another one may succeed."""
        return self.seat is not None and self.own in self.daemons

    def in_turn(self) -> Iterator[Place]:
        """Each place once, with its seat: where it was, where it began, then all seats."""
        places: list[Place] = [(self.seat, self.at), (None, self.configured)]
        if self.embedded and self.seat is not None:
            if self.seat in self.daemons:
                places.append((self.seat, self.daemons[self.seat]))
            places += sorted(self.daemons.items())
        seen: set[Place] = set()
        addresses: set[Address] = set()
        for place in places:
            if place not in seen and (place[1] not in addresses or place[0] == self.own):
                seen.add(place)
                addresses.add(place[1])
                yield place


class Comeback:
    """Tries again, with back-off, until a rendezvous takes us.

    Args:
        places: read anew at each try.
        join: one attempt to join at an address, by a loop time; returns where it was referred
            to, if it was; raises OSError or HandshakeRefusedError.
        succeed: become the rendezvous, as these seats don't answer; where it listens.
    """

    def __init__(
        self,
        places: Places,
        join: Callable[[Address, float], Awaitable[Address]],
        succeed: Callable[[frozenset[int]], Address],
        *,
        rng: random.Random,
        log: logging.Logger,
        settings: RetrySettings,
    ) -> None:
        self._places = places
        self._join = join
        self._succeed = succeed
        self._rng = rng
        self._log = log
        self._settings = settings
        self._delay_s = settings.first_delay_s
        self._joined_at = float("-inf")
        self._cause = ""
        self._answered: dict[Place, Outcome] = {}
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """The rendezvous is lost: go and find it, unless we are at it already."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._joined_at > STEADY_S:
            self._delay_s = self._settings.first_delay_s
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())

    def end(self) -> None:
        """Give it up; may be called twice."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._delay_s * self._rng.uniform(0.5, 1.0))
            self._delay_s = min(2 * self._delay_s, self._settings.max_delay_s)
            if await self._go_round():
                self._joined_at = asyncio.get_running_loop().time()
                self._cause = ""
                return

    async def _go_round(self) -> bool:
        """Try each place in turn, first those that answered last time; whether one took us."""
        places = self._places
        silent: set[int] = set()
        in_turn = list(places.in_turn())
        answered = [place for place in self._answered if place in in_turn]
        self._answered = {}
        at_last = False
        for place in [*answered, *(place for place in in_turn if place not in answered)]:
            if places.embedded and place[0] == places.own:
                turn = self._turn(in_turn[: in_turn.index(place)])
                if turn != "now":
                    at_last = turn == "last"
                    continue
                place = (places.own, self._succeed(self._without_answer(silent)))
            if await self._takes_us(place, silent):
                return True
        if not at_last or "busy" in self._answered.values():
            return False
        address = self._succeed(self._without_answer(silent))
        return await self._takes_us((places.own, address), silent)

    async def _takes_us(self, place: Place, silent: set[int]) -> bool:
        """Try one place; ``silent``: seats that are out of reach, to be added to."""
        seat, address = place
        outcome = await self._try(seat, address)
        if outcome in ("idle", "busy"):
            self._answered[place] = outcome
        elif outcome == "unreachable" and seat is not None:
            silent.add(seat)
        return outcome == "taken"

    def _without_answer(self, silent: set[int]) -> frozenset[int]:
        """Seats that are out of reach at each of their places."""
        return frozenset(silent - {seat for seat, _ in self._answered})

    def _turn(self, before_us: Sequence[Place]) -> Literal["now", "last", "never"]:
        """Whether we become the rendezvous: now, if no other place takes us, or not this time."""
        alive = [place for place in before_us if place in self._answered]
        if self._places.held or not alive:
            return "now"
        own = self._places.own
        former = all(
            seat is not None and seat > own and self._answered[seat, address] == "idle"
            for seat, address in alive
        )
        return "last" if former else "never"

    async def _try(self, seat: int | None, address: Address) -> Outcome:
        limit_s = SEAT_TIMEOUT_S if self._places.embedded else self._settings.attempt_timeout_s
        try:
            until = asyncio.get_running_loop().time() + limit_s
            self._places.at = await self._join(address, until)
        except HandshakeRefusedError as exc:
            self._tell(address, str(exc))
            reason = exc.fields.get("reason")
            if reason not in ALIVE or (seat is None and reason == "not_rendezvous"):
                return "unreachable"
            return "busy" if reason == "rank_taken" else "idle"
        except (OSError, RingdError) as exc:
            self._tell(address, describe(exc))
            return "unreachable"
        return "taken"

    def _tell(self, address: Address, cause: str) -> None:
        """Log a cause, once as long as it stays the same."""
        if cause != self._cause and not self._places.embedded:
            self._log.info("the rendezvous at %s can't be reached yet: %s", address, cause)
        self._cause = cause
