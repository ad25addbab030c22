"""A rank's place in the group: between the rendezvous, the links, the engine and the trainer.

No Unix sockets and no processes here, so that the simulation runs this very code.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ringd.daemon.absent import daemons_missing, not_let_in, trainers_missing
from ringd.daemon.answering import Answering
from ringd.daemon.continuity import Office
from ringd.daemon.mesh import Place
from ringd.daemon.node_parts import Means
from ringd.daemon.reforming import Reforming, Reply
from ringd.daemon.trainer_state import State, TrainerState
from ringd.engine import failures
from ringd.engine.engine import Engine, EngineOptions
from ringd.engine.group import Group
from ringd.engine.message import Post
from ringd.engine.operation import Operation
from ringd.engine.report import state_of
from ringd.errors import (
    MembershipChangedError,
    RendezvousError,
    RingdError,
)
from ringd.observe.flight import FlightRecorder, Snapshot
from ringd.rendezvous.agent_events import DaemonInfo, Presence
from ringd.rendezvous.news import Lost, Start
from ringd.rendezvous.reach import AgentSettings
from ringd.schedules.select import DEFAULT_THRESHOLDS, ONE_HOST
from ringd.transport.base import Address, Transport
from ringd.vocabulary import OpSpec, ranks_text
from ringd.wire import advice
from ringd.wire.handshake import Credentials
from ringd.wire.raised import Raised


class Trainer(Protocol):
    """Who uses the node: a session of the daemon, or a trainer of the simulation."""

    pid: int

    def welcome(self, epoch: int, facts: dict[str, Any]) -> None:
        """All trainers are attached; calls may begin."""

    def refuse(self, error: RingdError) -> None:
        """It can't be served; it is forgotten."""

    def inspect(self, callback: Callable[[TrainerState], None]) -> None:
        """Say what it is doing, soon."""

    def process_state(self) -> State:
        """The kernel's view of its process, at once."""


class Recorder(Protocol):
    """Who is told of every operation's end."""

    def record(self, op: Operation, error: RingdError | None) -> None:
        """A collective ended."""

    def record_post(self, post: Post, error: RingdError | None) -> None:
        """A send or a receive ended."""


class Node:
    """One rank. All methods run on the loop's thread.

    Args:
        credentials: job, rank, world size and secret; the role is set here.
        rng: for the jitter of back-offs; nonce: gives fresh random bytes.
        agent: intervals of the control connection.
        office: how this node is the rendezvous, if it is or comes to be.
        on_failure: told what goes wrong, perhaps often, for a dump of the flight recorder.
        on_interrupt: told that the epoch ends by the interrupt of a program, which is no failure.
        on_next_epoch: told when the next epoch begins, before anything of this one is gone.
        info: what a status shows of this daemon; by default, of this process.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        transport: Transport,
        credentials: Credentials,
        rendezvous: Address,
        place: Place,
        options: EngineOptions,
        rng: random.Random,
        nonce: Callable[[], bytes],
        log: logging.Logger,
        recorder: Recorder | None = None,
        on_failure: Callable[[str], None] | None = None,
        on_interrupt: Callable[[], None] | None = None,
        on_next_epoch: Callable[[], None] | None = None,
        bring_torch: Callable[[], None] | None = None,
        arena_limit_bytes: int = 0,
        agent: AgentSettings | None = None,
        office: Office | None = None,
        info: DaemonInfo | None = None,
    ) -> None:
        self.loop = loop
        self.log = log
        self.rank = credentials.rank
        self.world_size = credentials.world_size
        self._recorder = recorder
        self._on_failure = on_failure or (lambda what: None)
        self._on_interrupt = on_interrupt or (lambda: None)
        self._on_next_epoch = on_next_epoch or (lambda: None)
        self._job_id = credentials.job_id
        self.flight = FlightRecorder()
        self._arena_limit_bytes = arena_limit_bytes
        self.engine = Engine(
            loop=loop,
            rank=self.rank,
            world_size=self.world_size,
            surroundings=self,
            options=options,
            bring_torch=bring_torch,
        )
        means = Means(transport=transport, credentials=credentials, rng=rng, nonce=nonce, log=log)
        self._continuity = means.continuity(self.engine, office, lambda: self._started)
        self._agent = means.agent(rendezvous, self, self._continuity, options, agent, info)
        self._mesh = means.mesh(self.engine, place, self._agent, self._continuity, self._unreached)
        self._continuity.tie(self._agent.places, self._mesh)
        self._reforming = Reforming(self.engine, self._agent)
        self._answering = Answering(self._agent, self._mesh)
        self._trainer: Trainer | None = None
        self._attach_timer: asyncio.TimerHandle | None = None
        self._attach_timeout_s = 0.0
        self._started = False  # the trainer takes part in the current epoch
        self._presence = Presence()
        self._in_group = False
        self.formed = asyncio.Event()
        self.failed: RingdError | None = None

    @property
    def address(self) -> Address | None:
        """What peers dial, once this node has joined."""
        return self._mesh.address

    @property
    def listening(self) -> Address | None:
        """Where this node listens."""
        return self._mesh.listening

    @property
    def holds_rendezvous(self) -> bool:
        """Whether this node is the rendezvous now."""
        return self._continuity.service is not None

    @property
    def serves_others(self) -> bool:
        """Whether this node is the rendezvous, and other daemons are with it."""
        service = self._continuity.service
        return service is not None and service.serves_others

    # Life

    async def start(self, deadline: float) -> None:
        """Reach the rendezvous (after it was opened, if it is ours), listen, and join.

        Raises:
            RendezvousError: not by the loop-time ``deadline``; HandshakeRefusedError at once.
            AddressInUseError: no port of ours is free.
        """
        await self._continuity.open()
        await self._agent.join(self._mesh.listen, deadline=deadline)
        self._in_group = True
        if self._trainer is not None:  # it was quicker than we
            self._agent.attach()

    async def stop(self) -> None:
        """Leave: links and rendezvous hear a goodbye; operations in flight end."""
        ended = MembershipChangedError("this rank's daemon was told to end")
        self.engine.end_all(ended)
        if self._trainer is not None:
            self._forget_trainer("gave_up", "its daemon was told to end")
        self._mesh.close()
        self.engine.leaving.close()
        await self._continuity.close()
        self._agent.leave()

    # The trainer

    def attach(self, trainer: Trainer, timeout_s: float) -> None:
        """A trainer wants to take part: ``welcome`` follows when all are there, or ``refuse``."""
        if self._trainer is not None:
            trainer.refuse(
                RendezvousError(
                    f"rank {self.rank} has a trainer already, process {self._trainer.pid}; "
                    "end it first, or use another rank's daemon"
                )
            )
            return
        if self.failed is not None:
            trainer.refuse(self.failed.copy())
            return
        self._trainer = trainer
        self._started = False
        self._attach_timeout_s = timeout_s
        self._attach_timer = self.loop.call_later(timeout_s, self._attach_expired)
        if self._in_group:
            self._agent.attach()

    def _attach_expired(self) -> None:
        trainer = self._trainer
        assert trainer is not None
        within = f"within {math.ceil(self._attach_timeout_s * 10) / 10:g} s"  # as it was asked
        silence = self._agent.silence() if self._agent.connected else self._continuity.why_lost
        if self._in_group and silence:
            error = self._continuity.out_of_reach(within, silence)
        elif self._presence.running:
            error = not_let_in(self.rank, self._presence, within)
        else:
            error = trainers_missing(self.rank, self.world_size, self._presence, within)
        self._forget_trainer("gave_up", "waited too long for the others")
        trainer.refuse(error)

    def incomplete(self, timeout_s: float) -> RendezvousError:
        """Not all daemons came within ``timeout_s``."""
        joined, away = self._presence.joined, self._continuity.away
        return daemons_missing(self.rank, self.world_size, joined, timeout_s, away)

    def detach(self, trainer: Trainer, how: str, detail: str, raised: Raised | None = None) -> None:
        """The trainer is gone: "goodbye", "raised" (by what) or "died"."""
        if trainer is not self._trainer:
            return
        if not self._started:
            how = "gave_up"
        elif self.engine.world.broken is not None:
            how = "goodbye"  # its end follows from a loss that all know: no new verdict
        self._forget_trainer(how, detail, raised if how == "raised" else None)

    def reform(
        self,
        trainer: Trainer,
        min_size: Any,
        timeout_s: Any,
        reply: Reply,
        known: Any = None,
        deadline: float | None = None,
    ) -> None:
        """The trainer asks for the next epoch; its operations in flight end before this returns.

        Args:
            reply: told how it ended, within ``timeout_s``; its facts are those of a welcome, and
                those of ``Reforming.answer_of``.
            known: the epoch that the trainer's program knows of; None: the present one.
            deadline: the end of ``timeout_s`` in loop time, where that began earlier than now.
        """
        if trainer is not self._trainer or not self._started:
            reply(RendezvousError("this rank takes part in no epoch yet"), None)
            return
        self._reforming.begin(min_size, timeout_s, reply, known, deadline)

    def newcomers(self) -> list[int]:
        """Ranks whose trainer waits to be let in, as far as we were told."""
        return [rank for rank in self._presence.attached if rank != self.rank]

    def _forget_trainer(self, how: str, detail: str, raised: Raised | None = None) -> None:
        epoch = self.engine.world.epoch if self._started else 0
        next_seqs = self.engine.groups.next_seqs()
        self._trainer = None
        self._started = False
        self._reforming.refuse(MembershipChangedError("this rank's trainer is gone"))
        if self._attach_timer is not None:
            self._attach_timer.cancel()
            self._attach_timer = None
        if how in ("died", "raised"):
            self._note_end(raised, f"this rank's trainer is gone: {detail}")
            gone = MembershipChangedError(f"this rank's trainer is gone: {detail}")
            self.engine.end_all(gone)
        elif epoch:
            self.engine.mail.trainer_left()
        self._agent.detach(how, detail, epoch, next_seqs, raised)

    def _note_end(self, raised: Raised | None, what: str) -> None:
        """A trainer has ended without a goodbye, by what it has raised or otherwise."""
        if raised is not None and raised.is_interrupt:
            self._on_interrupt()
        else:
            self._on_failure(what)

    # Surroundings of the engine

    def want_link(self, peer: int) -> None:
        """The engine needs a link to ``peer``."""
        self._mesh.want(peer)

    def _unreached(self, peer: int, reason: str, own: bool) -> None:
        self._agent.link_lost(peer, reason, self.engine.world.epoch, own=own)

    def op_failed(
        self, epoch: int, group: int, members: Sequence[int], seq: int, error: RingdError
    ) -> bool:
        """An operation failed here; whether there will be a verdict of the rendezvous."""
        self._agent.op_failed(epoch, group, members, seq, error.to_wire())
        return self._agent.connected

    def post_failed(self, question: dict[str, Any]) -> bool:
        """A message came to its deadline; whether there will be a verdict on it."""
        return self._agent.post_failed(question)

    def in_reach(self) -> bool:
        """Whether the rendezvous is."""
        return self._agent.connected

    def link_down(self, peer: int, reason: str) -> None:
        """A link's connection broke; the engine wants it again."""
        self.log.warning("the link to rank %d broke and is made anew: %s", peer, reason)

    def link_lost(self, peer: int, reason: str) -> None:
        """A link ended without a goodbye."""
        self.log.warning("the link to rank %d is lost: %s", peer, reason)
        self._agent.link_lost(peer, reason, self.engine.world.epoch)

    def op_ended(self, op: Operation, error: RingdError | None) -> None:
        """An operation ended."""
        if self._recorder is not None:
            self._recorder.record(op, error)
        self.flight.record(op, error)
        if error is not None:
            self._on_failure(error.message)

    def call_void(self, group: Group, spec: OpSpec, seq: int, error: RingdError) -> None:
        """A call ended before it began, or is the first that a group refused which is over."""
        self.flight.record_void(group, spec, seq, error)
        self._on_failure(error.message)

    def post_ended(self, post: Post, error: RingdError | None) -> None:
        """A send or a receive ended."""
        if self._recorder is not None:
            self._recorder.record_post(post, error)
        self.flight.record_post(post, error)
        if error is not None:
            self._on_failure(error.message)

    # Events of the rendezvous

    def on_members(self, members: list[tuple[int, Address]]) -> None:
        """All daemons are here: make the links to the ring neighbours."""
        self.failed = None
        self._presence = replace(self._presence, joined=sorted(rank for rank, _ in members))
        self._mesh.meet(dict(members))
        self.formed.set()
        self.log.info("the group of %d is complete", self.world_size)

    def on_start(self, start: Start) -> None:
        """An epoch begins, and our trainer takes part in it."""
        self._on_next_epoch()
        pid = None if self._trainer is None else self._trainer.pid
        self.flight.begin_epoch(start.epoch, pid, self.engine.world.broken)
        addresses = self._mesh.members
        hosts = {addresses[rank].host for rank in start.members if rank in addresses}
        self.engine.choose_by(ONE_HOST if len(hosts) == 1 else DEFAULT_THRESHOLDS)
        tell = self._reforming.answer_of(start)
        self._continuity.began()
        self.engine.begin_epoch(start.epoch, start.members)
        self._mesh.dial_neighbours(start.members)
        self.log.info("epoch %d starts, with %s", start.epoch, ranks_text(start.members))
        waiting = [rank for rank in self._presence.attached if rank not in start.members]
        self._presence = replace(self._presence, attached=waiting, running=start.members)
        if self._attach_timer is not None:
            self._attach_timer.cancel()
            self._attach_timer = None
        if self._trainer is None:
            return
        self._started = True
        if self._reforming.waits:
            tell(self._facts())
        else:
            self._trainer.welcome(start.epoch, self._facts())

    def on_changed(self, epoch: int, rank: int) -> None:
        """The epoch is over: the trainer of ``rank`` asked for the next one."""
        if epoch == self.engine.world.epoch:
            text = f"epoch {epoch} is over: rank {rank} asked for the next one. {advice.REFORM_TOO}"
            self.engine.epoch_over(MembershipChangedError(text, epoch=epoch, rank=rank))

    def on_not_reformed(self, text: str, facts: dict[str, Any]) -> None:
        """There is no next epoch for our trainer."""
        self._reforming.not_reformed(text, facts)

    def _facts(self) -> dict[str, Any]:
        """What a trainer is told at its welcome: its place, and the settings of its calls."""
        options = self.engine.options
        return {
            "epoch": self.engine.world.epoch,
            "rank": self.engine.world.rank,
            "world_size": self.engine.world.size,
            "ranks": list(self.engine.world.ranks),
            "timeout_s": options.timeout_s,
            "max_in_flight": options.max_in_flight,
            "arena_limit_bytes": self._arena_limit_bytes,
        }

    def on_abort(
        self, epoch: int, group: int, lowest: int, seq: int, error: dict[str, Any]
    ) -> None:
        """An operation failed on another rank."""
        self._on_failure(str(error.get("message", "")))
        endings = self.engine.endings
        tell = endings.cut_short if failures.is_end_of_epoch(error) else endings.verdict
        tell(group, lowest, epoch, seq, failures.from_peer(error))

    def on_inquiry(self, inquiry: int, epoch: int, group: int, lowest: int, seq: int) -> None:
        """The rendezvous asks all what they know of an operation."""
        known = self.engine.answer(group, lowest, epoch, seq)
        self._answering.answer(inquiry, known, self._trainer if self._started else None)

    def on_post_inquiry(self, question: dict[str, Any]) -> None:
        """The rendezvous asks what we know of a message."""
        known = self.engine.mail.asking.answer(question)
        trainer = self._trainer if self._started else None
        self._answering.answer(question["inquiry"], known, trainer)

    def on_post_verdict(self, verdict: dict[str, Any]) -> None:
        """Why a message of ours did not come to its end."""
        if verdict["epoch"] == self.engine.world.epoch:
            self.engine.mail.asking.verdict(verdict)

    def on_lost(self, lost: Lost) -> None:
        """A rank is gone without a goodbye."""
        self._note_end(lost.raised, f"rank {lost.rank} is lost: {lost.case} ({lost.detail})")
        if lost.epoch == self.engine.world.epoch:
            self._continuity.lost(lost)
            if lost.case.startswith("daemon"):
                self._reforming.gone(lost.rank)
            error = failures.peer_lost(
                lost.rank,
                case=lost.case,
                detail=lost.detail,
                epoch=lost.epoch,
                verdict=lost.number,
                raised=lost.raised,
            )
            self.engine.peer_lost(lost.rank, error)

    def on_left(self, rank: int, epoch: int, next_seqs: dict[int, int]) -> None:
        """A rank's trainer said goodbye."""
        if epoch == self.engine.world.epoch:
            self.engine.peer_left(rank, next_seqs)

    def on_dial(self, peer: int) -> None:
        """A higher rank wants a link to us."""
        if self.engine.link_asked_for(peer):
            self._mesh.dial(peer)

    def on_waiting(self, presence: Presence) -> None:
        """Who is here so far."""
        self._presence = presence
        self._reforming.presence = presence

    def on_refused(self, text: str) -> None:
        """The rendezvous says that the group can't form as it is."""
        error = self.failed = RendezvousError(text)
        if self._trainer is not None and not self._started:
            trainer = self._trainer
            self._forget_trainer("gave_up", error.message)
            trainer.refuse(error.copy())

    def on_report(self) -> dict[str, Any]:
        """The state, for ``ringd status``."""
        return self.state()

    # Status

    def group_status(self) -> asyncio.Future[dict[str, Any]]:
        """The whole group's state, gathered by the rendezvous."""
        return self._agent.request_status()

    def absence(self) -> dict[str, Any]:
        """Of the rendezvous, when ``group_status`` failed: since when, and why."""
        return self._continuity.absence()

    def snapshot(self, reason: str) -> Snapshot:
        """The flight recorder's content, for a dump."""
        facts = {"job_id": self._job_id, "address": str(self._mesh.address)}
        return self.flight.snapshot(self.engine, reason, facts)

    def state(self) -> dict[str, Any]:
        """This rank's state as plain data."""
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "address": str(self._mesh.address),
            "trainer": None if self._trainer is None else self._trainer.pid,
            "trainer_state": "none" if self._trainer is None else self._trainer.process_state(),
            "reforming": self._reforming.waits,
            **state_of(self.engine),
        }
