"""A rank's place in the group: between the rendezvous, the links, the engine and the trainer.

No Unix sockets and no processes here, so that the simulation runs this very code.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ringd.engine import failures
from ringd.engine.engine import Engine, EngineOptions
from ringd.engine.link import Link
from ringd.engine.operation import Operation
from ringd.errors import (
    AddressInUseError,
    MembershipChangedError,
    RendezvousError,
    RingdError,
    from_wire,
)
from ringd.rendezvous.agent import Agent
from ringd.rendezvous.events import Lost
from ringd.schedules.select import DEFAULT_THRESHOLDS, ONE_HOST
from ringd.transport.base import Address, Listener, Transport
from ringd.transport.connection import Connection
from ringd.transport.handshaking import Reception, shake_hands_as_dialer
from ringd.wire.frame import Kind, Limits
from ringd.wire.handshake import LINK, Credentials, Expectation, Identity, Refusal

DIAL_LIMIT_S = 10.0
BACKOFF_S = (0.05, 1.0)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node listens and what it tells others.

    Attributes:
        bind: local host to listen on; "" is the local address that reached the rendezvous.
        ports: ports to try in turn; (0,) is any.
        advertise_host: told to others instead of the bound host; "" is the bound one.
        advertise_port: told to others instead of the bound port; 0 is the bound one.
    """

    bind: str = ""
    ports: tuple[int, ...] = (0,)
    advertise_host: str = ""
    advertise_port: int = 0


class Trainer(Protocol):
    """Who uses the node: a session of the daemon, or a trainer of the simulation."""

    pid: int

    def welcome(self, epoch: int, facts: dict[str, Any]) -> None:
        """All trainers are attached; calls may begin."""

    def refuse(self, error: RingdError) -> None:
        """It can't be served; it is forgotten."""


class Recorder(Protocol):
    """Who is told of every operation's end."""

    def record(self, op: Operation, error: RingdError | None) -> None:
        """An operation ended."""


class Node:
    """One rank. All methods run on the loop's thread.

    Args:
        credentials: job, rank, world size and secret; the role is set here.
        rng: for the jitter of back-offs; nonce: gives fresh random bytes.
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
        bring_torch: Callable[[], None] | None = None,
        arena_limit_bytes: int = 0,
    ) -> None:
        self.loop = loop
        self.log = log
        self.rank = credentials.rank
        self.world_size = credentials.world_size
        self.address: Address | None = None
        self.listening: Address | None = None
        self._transport = transport
        self._credentials = replace(credentials, role=LINK)
        self._place = place
        self._rng = rng
        self._nonce = nonce
        self._recorder = recorder
        self._arena_limit_bytes = arena_limit_bytes
        self.engine = Engine(
            loop=loop,
            rank=self.rank,
            world_size=self.world_size,
            surroundings=self,
            options=options,
            bring_torch=bring_torch,
        )
        self._agent = Agent(
            transport,
            credentials,
            rendezvous,
            self,
            rng=rng,
            log=log,
            make_nonce=nonce,
            sizes=(options.segment_bytes, options.eager_bytes),
        )
        self._listener: Listener | None = None
        self._members: dict[int, Address] = {}
        self._dialling: dict[int, asyncio.Task[None]] = {}
        self._reception = Reception(
            self._credentials,
            roles=frozenset({LINK}),
            admit=self._admit,
            establish=self._new_link,
            log=log,
            make_nonce=nonce,
        )
        self._trainer: Trainer | None = None
        self._attach_timer: asyncio.TimerHandle | None = None
        self._attach_timeout_s = 0.0
        self._started = False  # the trainer takes part in the current epoch
        self._joined: list[int] = []
        self._attached: list[int] = []
        self._in_group = False
        self._stopping = False
        self.formed = asyncio.Event()
        self.failed: RingdError | None = None

    # Life

    async def start(self, deadline: float) -> None:
        """Reach the rendezvous, listen, and join.

        Raises:
            RendezvousError: not by the loop-time ``deadline``; HandshakeRefusedError at once.
            AddressInUseError: no port of ours is free.
        """
        await self._agent.join(self._listen, deadline=deadline)
        self._in_group = True
        if self._trainer is not None:  # it was quicker than we
            self._agent.attach()

    async def _listen(self, local: Address) -> Address:
        """Listen; ``local`` is the address of our end of the connection to the rendezvous."""
        place = self._place
        if self._listener is None:
            self._listener = await self._bind(place.bind or local.host)
        bound = self.listening = self._listener.address
        host = place.advertise_host or (local.host if _is_any(bound.host) else bound.host)
        self.address = Address(host, place.advertise_port or bound.port)
        return self.address

    async def _bind(self, host: str) -> Listener:
        last: AddressInUseError | None = None
        for port in self._place.ports:
            try:
                return await self._transport.listen(Address(host, port), self._reception.on_channel)
            except AddressInUseError as exc:
                last = exc
        assert last is not None
        raise last

    async def stop(self) -> None:
        """Leave: links and rendezvous hear a goodbye; operations in flight end."""
        self._stopping = True
        for task in self._dialling.values():
            task.cancel()
        ended = MembershipChangedError("this rank's daemon was told to end")
        self.engine.end_all(ended)
        if self._trainer is not None:
            self._forget_trainer("gave_up", "its daemon was told to end")
        if self._listener is not None:
            self._listener.close()
        self._reception.close()
        for link in list(self.engine.links.values()):
            link.send_note(Kind.GOODBYE, 0, [self.engine.world.epoch])
            link.connection.close()
        self.engine.links.clear()
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
        if self._in_group and not self._agent.connected:
            self.failed = RendezvousError(
                "the rendezvous is out of reach, so no new epoch can begin; start the job anew"
            )
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
        error = self._who_is_missing(f"within {self._attach_timeout_s:g} s")
        self._forget_trainer("gave_up", "waited too long for the others")
        trainer.refuse(error)

    def incomplete(self, timeout_s: float) -> RendezvousError:
        """Not all daemons came within ``timeout_s``."""
        missing = sorted(set(range(self.world_size)) - set(self._joined) - {self.rank})
        here = self.world_size - len(missing)
        return RendezvousError(
            f"{here} of {self.world_size} daemons joined within {timeout_s:g} s: missing "
            f"{failures.ranks_text(missing)}. Start what is missing, or raise join_timeout_s.",
            joined=self._joined,
            missing=missing,
        )

    def _who_is_missing(self, when: str) -> RendezvousError:
        everyone = set(range(self.world_size))
        no_daemon = sorted(everyone - set(self._joined) - {self.rank})
        here = set(self._attached) | {self.rank}
        no_trainer = sorted(everyone - here - set(no_daemon))
        parts = [f"{len(here)} of {self.world_size} joined {when}"]
        if no_daemon:
            parts.append(f"missing {failures.ranks_text(no_daemon)} (no daemon)")
        if no_trainer:
            parts.append(f"missing {failures.ranks_text(no_trainer)} (daemon is there, no trainer)")
        return RendezvousError(
            "; ".join(parts) + ". Start what is missing, or raise timeout_s of connect().",
            joined=sorted(here),
            missing=sorted(everyone - here),
            missing_daemons=no_daemon,
            missing_trainers=no_trainer,
        )

    def detach(self, trainer: Trainer, how: str, detail: str) -> None:
        """The trainer is gone: "goodbye", "raised" or "died"."""
        if trainer is self._trainer:
            self._forget_trainer(how if self._started else "gave_up", detail)

    def _forget_trainer(self, how: str, detail: str) -> None:
        epoch = self.engine.world.epoch if self._started else 0
        next_seq = self.engine.world.next_seq
        self._trainer = None
        self._started = False
        if self._attach_timer is not None:
            self._attach_timer.cancel()
            self._attach_timer = None
        if how in ("died", "raised"):
            gone = MembershipChangedError(f"this rank's trainer is gone: {detail}")
            self.engine.end_all(gone)
        self._agent.detach(how, detail, epoch, next_seq)

    # Links

    def _admit(self, peer: Identity) -> Refusal | None:
        if peer.rank == self.rank:
            return Refusal("rank_taken", f"rank {peer.rank} is this daemon's own rank")
        if peer.rank > self.rank:
            return Refusal("wrong_direction", f"rank {self.rank} dials rank {peer.rank} itself")
        return None

    def _new_link(self, connection: Connection, peer: Identity) -> tuple[Link, Limits]:
        """A peer proved itself: from its next frame on the link takes over."""
        link = Link(self.engine, peer.rank, connection)
        old = self.engine.links.get(peer.rank)
        if old is not None:
            # Only the lower rank dials, and only when it has no link: its old one is gone.
            old.connection.abort()
            self.engine.on_link_closed(old, ConnectionResetError("a new connection took its place"))
        self.loop.call_soon(self.engine.link_up, link)
        self.engine.links[peer.rank] = link
        return link, Limits(inline_bytes=self.engine.options.inline_bytes)

    def _dial(self, peer: int) -> None:
        if peer in self._dialling or peer in self.engine.links or self._stopping:
            return
        self._dialling[peer] = self.loop.create_task(self._keep_dialling(peer))

    async def _keep_dialling(self, peer: int) -> None:
        deadline = self.loop.time() + DIAL_LIMIT_S
        pause, longest = BACKOFF_S
        address = self._members[peer]
        try:
            while True:
                try:
                    await self._dial_once(peer, deadline)
                    return
                except (OSError, RendezvousError) as exc:
                    reason = f"{type(exc).__name__}: {exc}"
                if self.loop.time() + pause >= deadline:
                    self.log.warning("no link to rank %d at %s: %s", peer, address, reason)
                    self._agent.link_lost(
                        peer, f"can't connect to {address}: {reason}", self.engine.world.epoch
                    )
                    return
                await asyncio.sleep(pause * (0.5 + self._rng.random()))
                pause = min(2 * pause, longest)
        finally:
            self._dialling.pop(peer, None)

    async def _dial_once(self, peer: int, deadline: float) -> None:
        channel = await self._transport.dial(self._members[peer], deadline=deadline)
        await shake_hands_as_dialer(
            channel,
            self._credentials,
            expect=Expectation(LINK, peer),
            establish=self._new_link,
            deadline=deadline,
            nonce=self._nonce(),
        )

    # Surroundings of the engine

    def want_link(self, peer: int) -> None:
        """The engine needs a link to ``peer``; the lower rank dials."""
        if self.rank < peer:
            if peer in self._members:
                self._dial(peer)
        else:
            self._agent.want_link(peer)

    def op_failed(self, epoch: int, group: int, seq: int, error: RingdError) -> None:
        """An operation failed here."""
        self._agent.op_failed(epoch, group, seq, error.to_wire())

    def link_lost(self, peer: int, reason: str) -> None:
        """A link ended without a goodbye."""
        self.log.warning("the link to rank %d broke: %s", peer, reason)
        self._agent.link_lost(peer, reason, self.engine.world.epoch)

    def op_ended(self, op: Operation, error: RingdError | None) -> None:
        """An operation ended."""
        if self._recorder is not None:
            self._recorder.record(op, error)

    # Events of the rendezvous

    def on_members(self, members: list[tuple[int, Address]]) -> None:
        """All daemons are here: make the links to the ring neighbours."""
        self._members = dict(members)
        self.failed = None
        one_host = len({address.host for address in self._members.values()}) == 1
        self.engine.choose_by(ONE_HOST if one_host else DEFAULT_THRESHOLDS)
        self._joined = sorted(self._members)
        n = self.world_size
        for peer in {(self.rank + 1) % n, (self.rank - 1) % n} - {self.rank}:
            if self.rank < peer:
                self._dial(peer)
        self.formed.set()
        self.log.info("the group of %d is complete", n)

    def on_start(self, epoch: int) -> None:
        """All trainers are attached: an epoch begins."""
        self.engine.begin_epoch(epoch)
        if self._attach_timer is not None:
            self._attach_timer.cancel()
            self._attach_timer = None
        if self._trainer is not None:
            self._started = True
            self._trainer.welcome(epoch, self._facts())

    def _facts(self) -> dict[str, Any]:
        """What a trainer is told at its welcome: its place, and the settings of its calls."""
        options = self.engine.options
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "timeout_s": options.timeout_s,
            "max_in_flight": options.max_in_flight,
            "arena_limit_bytes": self._arena_limit_bytes,
        }

    def on_abort(self, epoch: int, group: int, seq: int, error: dict[str, Any]) -> None:
        """An operation failed on another rank."""
        self.engine.abort(group, epoch, seq, from_wire(error))

    def on_lost(self, lost: Lost) -> None:
        """A rank is gone without a goodbye."""
        if lost.epoch == self.engine.world.epoch:
            error = failures.peer_lost(
                lost.rank, case=lost.case, detail=lost.detail, epoch=lost.epoch
            )
            self.engine.peer_lost(lost.rank, error)

    def on_left(self, rank: int, epoch: int, next_seq: int) -> None:
        """A rank's trainer said goodbye."""
        if epoch == self.engine.world.epoch:
            self.engine.peer_left(rank, next_seq)

    def on_dial(self, peer: int) -> None:
        """A higher rank wants a link to us."""
        if peer in self._members:
            self._dial(peer)

    def on_waiting(self, joined: list[int], attached: list[int]) -> None:
        """Who is here so far."""
        self._joined, self._attached = joined, attached

    def on_refused(self, text: str) -> None:
        """The rendezvous says that the group can't form as it is."""
        error = self.failed = RendezvousError(text)
        if self._trainer is not None and not self._started:
            trainer = self._trainer
            self._forget_trainer("gave_up", error.message)
            trainer.refuse(error.copy())

    def on_coordinator_lost(self, reason: str) -> None:
        """Links keep working; attaching and verdicts do not."""
        self.log.warning("the rendezvous is out of reach: %s", reason)

    def on_report(self) -> dict[str, Any]:
        """The state, for ``ringd status``."""
        return self.state()

    # Status

    def group_status(self) -> asyncio.Future[dict[str, Any]]:
        """The whole group's state, gathered by the rendezvous."""
        return self._agent.request_status()

    def state(self) -> dict[str, Any]:
        """This rank's state as plain data."""
        engine = self.engine
        ops = [
            {
                "op": op.spec.collective,
                "seq": op.seq,
                "algorithm": op.plan.schedule.algorithm,
                "elapsed_s": round(engine.now() - op.started, 3),
                **op.progress(),
            }
            for op in list(engine.world.ops.values())[:16]
        ]
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "address": str(self.address),
            "trainer": None if self._trainer is None else self._trainer.pid,
            "epoch": engine.world.epoch,
            "next_seq": engine.world.next_seq,
            "completed": engine.completed,
            "in_flight": len(engine.world.ops),
            "operations": ops,
            "broken": None if engine.world.broken is None else str(engine.world.broken),
            "links": {
                str(peer): {
                    "peer": str(link.connection.channel.peer),
                    "sent_bytes": link.sent_bytes,
                    "received_bytes": link.received_bytes,
                }
                for peer, link in sorted(engine.links.items())
            },
        }


def _is_any(host: str) -> bool:
    return host in ("0.0.0.0", "::")
