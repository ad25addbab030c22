"""A trainer's wish for the next epoch, from its asking to the answer (ADR 15)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ringd.daemon.absent import not_let_in
from ringd.errors import (
    InvalidArgumentError,
    MembershipChangedError,
    QuorumLostError,
    RendezvousError,
    RingdError,
)
from ringd.rendezvous.agent_events import Presence

if TYPE_CHECKING:
    from ringd.engine.engine import Engine
    from ringd.rendezvous.agent import Agent
    from ringd.rendezvous.news import Start

Reply = Callable[[RingdError | None, dict[str, Any] | None], None]
"""Told once: why there is no next epoch for the trainer, or what it is told of it."""
MIN_ASK_S = 0.05


class Reforming:
    """The wish of one rank's trainer; one at a time.

    Attributes:
        presence: who is here.
    """

    def __init__(self, engine: Engine, agent: Agent) -> None:
        self._engine = engine
        self._agent = agent
        self._gone: set[int] = set()
        self._reply: Reply | None = None
        self._told: dict[str, Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._min_size, self._timeout_s, self._until = 1, 0.0, 0.0
        self.presence = Presence()

    @property
    def waits(self) -> bool:
        """Whether there is a wish that has no answer yet."""
        return self._reply is not None

    def gone(self, rank: int) -> None:
        """The daemon of ``rank`` is known to be gone: it need not be asked."""
        self._gone.add(rank)

    def begin(
        self,
        min_size: Any,
        timeout_s: Any,
        reply: Reply,
        known: Any = None,
        deadline: float | None = None,
    ) -> None:
        """End the epoch here, see who can be reached, then ask the rendezvous.

        A trainer that asks while its wish has no answer has given that up: this one takes its
        place. What the rendezvous was asked stands, with its time and size. If the earlier one
        has led to an epoch of which the trainer's program does not know, because its call was
        interrupted, it is told of that one. One that is read after its deadline, because this
        daemon was stopped, is answered and no more: its caller is gone, and may ask again already.

        Args:
            min_size: how many ranks the next epoch must have.
            timeout_s: after so long ``reply`` is told that there is none.
            known: the last epoch that the program knows of; None: the last one it was told of.
            deadline: the same in loop time; the earlier of both counts.
        """
        is_size = type(min_size) is int and min_size >= 1
        if not is_size or not isinstance(timeout_s, float) or not timeout_s > 0:
            reply(InvalidArgumentError("min_size counts ranks, timeout_s is positive"), None)
            return
        if self._told is not None and type(known) is int and known < self._told["epoch"]:
            reply(None, self._told)
            return
        engine = self._engine
        now = engine.now()
        if deadline is not None and deadline <= now:
            reply(self._read_too_late(timeout_s), None)
            return
        earlier, self._reply = self._reply, reply
        self._min_size, self._timeout_s = min_size, timeout_s
        self._until = now + timeout_s
        if deadline is not None and deadline < self._until:
            self._until = deadline
        if self._timer is not None:
            self._timer.cancel()
        self._timer = engine.loop.call_later(self._until - now, self._expire)
        if earlier is not None:
            earlier(
                MembershipChangedError("a later reform() has taken the place of this one"), None
            )
            return
        over = MembershipChangedError(
            f"epoch {engine.world.epoch} is over: this rank's trainer called reform()",
            epoch=engine.world.epoch,
            rank=engine.rank,
        )
        engine.epoch_over(over)
        others = set(engine.world.ranks) - {engine.rank} - self._gone
        engine.probing.begin(others, self._ask)

    def _read_too_late(self, timeout_s: float) -> RendezvousError:
        epoch = self._engine.world.epoch
        return RendezvousError(
            f"no next epoch within {timeout_s:g} s: the daemon of rank {self._engine.rank} was "
            "stopped, or far too busy, and has read the request only now; nobody was asked. Call "
            "reform() again, with a longer timeout_s if the daemon is only busy",
            epoch=epoch,
        )

    def _ask(self, cut_off: frozenset[int]) -> None:
        world = self._engine.world
        unbroken = world.next_seq if world.first_cut is None else world.first_cut
        wish = {
            "min_size": self._min_size,
            "timeout_s": max(self._until - self._engine.now(), MIN_ASK_S),
            "cut_off": sorted(cut_off),
            "last_done": world.last_done,
            "unbroken": unbroken - 1,
            "agreed": None if world.agreed is None else [world.agreed[0], int(world.agreed[1])],
        }
        self._agent.reform(world.epoch, wish)

    def _expire(self) -> None:
        epoch = self._engine.world.epoch
        rank, running = self._engine.rank, self.presence.running
        answers = self._agent.connected and not self._agent.silence()
        if answers and running and rank not in running:
            error: RingdError = not_let_in(rank, self.presence, f"within {self._timeout_s:g} s")
        elif answers:
            error = RendezvousError(
                f"no next epoch within {self._timeout_s:g} s: epoch {epoch} is over, and not "
                f"enough ranks asked for another one (min_size {self._min_size}). Call reform() "
                "on all that live, start what is missing, or raise timeout_s of reform()",
                epoch=epoch,
            )
        else:
            error = QuorumLostError(
                f"rank {self._engine.rank} can't reach the rendezvous for {self._timeout_s:g} s, "
                "and the others may go on without it. Mend the network or start the rendezvous "
                "anew, then call reform() again, which lets this rank in as a newcomer if they "
                "have gone on; or start it anew",
                epoch=epoch,
                here=[self._engine.rank],
                missing=[rank for rank in self._engine.world.ranks if rank != self._engine.rank],
            )
        self._agent.detach("gave_up", "reform() had waited long enough", epoch)
        self._answer(error, None)

    def refuse(self, error: RingdError) -> None:
        """Our trainer is gone."""
        self._told = None
        self._answer(error, None)

    def not_reformed(self, text: str, facts: dict[str, Any]) -> None:
        """The rendezvous says so."""
        lost = bool(facts.pop("quorum"))
        self._answer((QuorumLostError if lost else RendezvousError)(text, **facts), None)

    def answer_of(self, start: Start) -> Callable[[dict[str, Any]], None]:
        """What the trainer is to be told of an epoch that begins; call it before, and what it
        returns after, with the facts of the welcome."""
        before, history = self._engine.world, start.history
        old = before.ranks if history is None else history.members
        survivors = () if history is None else history.survivors
        told: dict[str, Any] = {
            "lost": [rank for rank in old if rank not in survivors],
            "joined": [rank for rank in start.members if rank not in survivors],
            "completed_by_all": -1,
            "completed_by_any": -1,
            "agreed": None,
        }
        if history is not None and history.epoch == before.epoch:
            told["completed_by_all"] = history.completed_by_all
            told["completed_by_any"] = history.completed_by_any
            answers = (bool(value) for seq, value in history.agreed if seq == before.agree_cut)
            told["agreed"] = next(answers, None)
        return lambda facts: self._answer(None, {**facts, **told})

    def _answer(self, error: RingdError | None, facts: dict[str, Any] | None) -> None:
        reply, self._reply = self._reply, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._engine.probing.cancel()
        if error is None:
            self._gone.clear()
            self._told = facts
        if reply is not None:
            reply(error, facts)
