"""The rendezvous service: the I/O around the membership.

It accepts daemons and observers, turns their messages into events, carries out the
instructions, and wakes the membership when it asks for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from ringd.rendezvous.addresses import is_loopback
from ringd.rendezvous.events import (
    BeginAnew,
    DaemonAdmitted,
    DaemonJoined,
    DaemonLeft,
    DaemonLost,
    Drop,
    Event,
    Heartbeat,
    Instruction,
    Send,
    Tick,
)
from ringd.rendezvous.intake import event_of
from ringd.rendezvous.membership import Membership
from ringd.rendezvous.observer import Standing
from ringd.rendezvous.reports import ReportRound
from ringd.rendezvous.service_settings import ServiceSettings
from ringd.transport.base import Address, Channel, Listener, Transport
from ringd.transport.connection import Connection, ConnectionHandler, FrameCollector
from ringd.transport.handshaking import (
    Door,
    Reception,
    fresh_nonce,
)
from ringd.wire.control import field, message, read
from ringd.wire.frame import FrameError, Limits
from ringd.wire.handshake import DAEMON, OBSERVER, RENDEZVOUS, Credentials, Identity, Refusal

_LATE_S = 0.5
"""A timer later than this means that our own loop was held up: what came in meanwhile is read
before anybody is called silent."""
_CATCH_UP_S = 0.05
_HEARTBEAT = message("heartbeat")


class RendezvousService:
    """One group's rendezvous.

    Args:
        transport: where it listens.
        credentials: role "rendezvous", rank -1, and the group's job, world size and secret.
        log: where joins, losses and refusals are told.
        settings: bounds.
        make_nonce: the source of handshake nonces.
        seat: the rank of the daemon that holds it; None: it is a process of its own.
        unreachable: ranks that the successor of a rendezvous has tried in vain.

    Raises:
        ValueError: the credentials are not a rendezvous'.
    """

    def __init__(
        self,
        transport: Transport,
        credentials: Credentials,
        *,
        log: logging.Logger,
        settings: ServiceSettings | None = None,
        make_nonce: Callable[[], bytes] = fresh_nonce,
        seat: int | None = None,
        unreachable: frozenset[int] = frozenset(),
    ) -> None:
        if credentials.role != RENDEZVOUS or credentials.rank != -1 or credentials.world_size < 1:
            raise ValueError("a rendezvous has its own role, rank -1, and a world size from 1 on")
        self._transport = transport
        self._log = log
        self._settings = settings or ServiceSettings()
        self._membership = Membership(
            credentials.world_size,
            dead_after_s=self._settings.dead_after_s,
            gather_s=self._settings.gather_link_reports_s,
            min_size=self._settings.min_size,
            last_call_s=self._settings.last_call_s,
            majority=self._settings.majority,
            unreachable=unreachable,
        )
        self._seat = seat
        self.door = Door(credentials, frozenset({DAEMON, OBSERVER}), self._admit, self._establish)
        self._reception = Reception(
            credentials,
            roles=self.door.roles,
            admit=self._admit,
            establish=self._establish,
            log=log,
            make_nonce=make_nonce,
            timeout_s=self._settings.handshake_timeout_s,
            max_pending=self._settings.max_pending,
        )
        self._listener: Listener | None = None
        self._stopped = False
        self.told_of: dict[int, Address] = {}
        self._daemons: dict[int, Connection] = {}
        self._observers: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._rounds = 0
        self._epoch_over = 0
        self._round: ReportRound | None = None
        self._round_timer: asyncio.TimerHandle | None = None

    async def start(self, address: Address) -> Address:
        """Listen.

        Returns:
            Where it listens, the port filled in.

        Raises:
            AddressInUseError: with host:port in its text.
        """
        self._listener = await self._transport.listen(address, self._on_channel)
        self._log.info(
            "rendezvous for %d ranks listens on %s",
            self._membership.world_size,
            self._listener.address,
        )
        return self._listener.address

    async def stop(self) -> None:
        """Stop listening and end every connection; the daemons see that. May be called twice."""
        self._stopped = True
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._reception.close()
        for timer in (self._timer, self._round_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._round_timer = self._round = None
        for connection in [*self._daemons.values(), *self._observers]:
            connection.close()
        self._daemons.clear()
        self._observers.clear()

    @property
    def serves_others(self) -> bool:
        """Whether a daemon is connected, besides the one that holds this service."""
        return bool(self._daemons.keys() - {self._seat})

    @property
    def had_epoch(self) -> bool:
        """Whether an epoch ever began."""
        return self._membership.highest_epoch > 0

    def status(self) -> dict[str, Any]:
        """The membership's snapshot."""
        return self._membership.status()

    def standing(self) -> Standing:
        """What another rendezvous of this job has to know, should there be one."""
        membership = self._membership
        seat = -1 if self._seat is None else self._seat
        return Standing(not membership.outnumbered(), membership.highest_epoch, seat)

    def retire(self, rank: int) -> None:
        """The daemon that holds this rendezvous ends on purpose: the others are to hear it."""
        if rank in self._daemons:
            self.daemon_left(rank)

    # Connections

    def _on_channel(self, channel: Channel) -> None:
        self._reception.on_channel(channel)

    def _admit(self, peer: Identity) -> Refusal | None:
        if self._stopped:  # amid the handshake, at a port that goes on without us
            return Refusal("not_rendezvous", "this daemon is the rendezvous no longer")
        if peer.role != DAEMON:
            return None
        taken = self._membership.refusal(peer.rank)
        return Refusal("rank_taken", taken) if taken is not None else None

    def _establish(
        self, connection: Connection, peer: Identity
    ) -> tuple[ConnectionHandler, Limits]:
        channel = connection.channel
        if peer.role == OBSERVER:
            self._observers.add(connection)
            return _ObserverConversation(self, connection), Limits.for_control()
        self._daemons[peer.rank] = connection
        remote = channel.peer.host != channel.local.host and not is_loopback(channel.peer.host)
        self.take(DaemonAdmitted(peer.rank, str(channel.peer), remote))
        return _DaemonConversation(self, connection, peer.rank), Limits.for_control()

    def daemon_closed(self, rank: int, error: BaseException | None) -> None:
        """The connection of this rank's daemon ended by itself."""
        del self._daemons[rank]
        if isinstance(error, FrameError):
            reason = f"it broke the control protocol: {error}"
        elif error is None:
            reason = "its control connection was closed without a goodbye"
        else:
            reason = f"its control connection broke: {error}"
        self._log.warning("rank %d: %s", rank, reason)
        self.take(DaemonLost(rank, reason))
        self._daemon_gone(rank)

    def daemon_left(self, rank: int) -> None:
        """This rank's daemon said that it ends."""
        self._daemons.pop(rank).close()
        self._log.info("rank %d: daemon left", rank)
        self.take(DaemonLeft(rank))
        self._daemon_gone(rank)

    def observer_closed(self, connection: Connection) -> None:
        """An observer went."""
        self._observers.discard(connection)

    # Membership

    def take(self, event: Event) -> None:
        """Feed the membership, do what it says, and set the next alarm."""
        if isinstance(event, DaemonJoined):
            self._log.info("rank %d joined, listens on %s", event.rank, event.address)
            if event.claim is not None:
                self.told_of |= dict(event.claim.addresses)
        now = asyncio.get_running_loop().time()
        for instruction in self._membership.apply(event, now):
            self._carry_out(instruction)
        self._set_alarm()

    def _carry_out(self, instruction: Instruction) -> None:
        if isinstance(instruction, BeginAnew):
            self._begin_anew(instruction.reason)
            return
        if isinstance(instruction, Drop):
            connection = self._daemons.pop(instruction.rank, None)
            self._log.warning("rank %d: daemon dropped, %s", instruction.rank, instruction.reason)
            if connection is not None:
                connection.abort()
            self._daemon_gone(instruction.rank)
            return
        self._log_telling(instruction)
        fields = instruction.fields
        if instruction.type == "members":
            fields = {**fields, "embedded": self._seat}
        frame = message(instruction.type, **fields)
        for rank in instruction.to:
            connection = self._daemons.get(rank)
            if connection is not None:
                connection.send_frame(frame)

    def _begin_anew(self, reason: str) -> None:
        self._log.warning("the rendezvous begins anew: %s", reason)
        self._membership = self._membership.anew()
        former, self._daemons = self._daemons, {}
        for rank, connection in former.items():
            connection.close()
            self._daemon_gone(rank)

    def _log_telling(self, send: Send) -> None:
        if send.type == "members":
            self._log.info("all %d daemons are here", len(send.to))
        elif send.type == "start" and send.to[0] == send.fields["members"][0]:
            ranks = ", ".join(map(str, send.fields["members"]))
            self._log.info("epoch %d starts, with ranks %s", send.fields["epoch"], ranks)
        elif send.type == "changed":
            self._log.info("epoch %(epoch)d is over: rank %(rank)d asked for the next", send.fields)
        elif send.type == "lost":
            # Only the first says why; the others mostly follow from it.
            level = logging.WARNING if send.fields["epoch"] > self._epoch_over else logging.INFO
            self._epoch_over = send.fields["epoch"]
            self._log.log(
                level, "epoch %(epoch)d is over: rank %(rank)d, %(case)s: %(detail)s", send.fields
            )
        elif send.type == "refused":
            self._log.error("%s", send.fields["text"])

    def _set_alarm(self) -> None:
        due = self._membership.next_deadline()
        if due is None or self._stopped:
            return
        if self._timer is not None:
            if self._alarm_at <= due:  # an early Tick does no harm, and sets the next alarm
                return
            self._timer.cancel()
        self._wake_at(due)

    def _wake_at(self, due: float) -> None:
        self._alarm_at = due
        self._timer = asyncio.get_running_loop().call_at(due, self._alarm)

    def _alarm(self) -> None:
        now = asyncio.get_running_loop().time()
        if now > self._alarm_at + _LATE_S:
            self._wake_at(now + _CATCH_UP_S)
            return
        self._timer = None
        self.take(Tick())

    # Status

    def status_wanted(self, connection: Connection, request: int) -> None:
        """Ask all daemons, and answer when all did, or at the time limit."""
        if self._round is None:
            self._rounds += 1
            self._round = ReportRound(self._rounds, self._membership.joined())
            frame = message("report", request=self._rounds)
            for rank in self._membership.joined():
                self._daemons[rank].send_frame(frame)
            loop = asyncio.get_running_loop()
            limit_s = self._settings.status_timeout_s
            self._round_timer = loop.call_later(limit_s, self._end_round)
        self._round.requesters.append((connection, request))
        self._end_round_if_complete()

    def report_came(self, rank: int, number: int, state: dict[str, Any]) -> None:
        """A daemon's answer."""
        if self._round is not None:
            self._round.answered(rank, number, state)
            self._end_round_if_complete()

    def _daemon_gone(self, rank: int) -> None:
        if self._round is not None:
            self._round.gone(rank)
            self._end_round_if_complete()

    def _end_round_if_complete(self) -> None:
        if self._round is not None and self._round.complete:
            self._end_round()

    def _end_round(self) -> None:
        done, self._round = self._round, None
        if self._round_timer is not None:
            self._round_timer.cancel()
            self._round_timer = None
        assert done is not None
        status = done.result(self._membership.status())
        for connection, request in done.requesters:
            connection.send_frame(message("status", request=request, status=status))


class _DaemonConversation(FrameCollector):
    """The control connection of one rank's daemon, after its handshake."""

    def __init__(self, service: RendezvousService, connection: Connection, rank: int) -> None:
        self._service = service
        self._connection = connection
        self._rank = rank

    def on_message(self, kind: int, header: Any) -> None:
        if self._connection.closed:  # more frames of the read in which we ended it
            return
        name, fields = read(kind, header)
        if name == "status":
            self._service.status_wanted(self._connection, field(fields, "request", int))
        elif name == "state":
            number, state = field(fields, "request", int), field(fields, "state", dict)
            self._service.report_came(self._rank, number, state)
        elif name == "leave":
            self._service.daemon_left(self._rank)
        else:
            event = event_of(self._rank, name, fields)
            if event is None:
                raise FrameError(f"unknown message {name[:32]!r} from a daemon")
            if isinstance(event, Heartbeat):
                self._connection.send_frame(_HEARTBEAT)
            self._service.take(event)

    def on_closed(self, error: BaseException | None) -> None:
        self._service.daemon_closed(self._rank, error)


class _ObserverConversation(FrameCollector):
    """Somebody who only looks."""

    def __init__(self, service: RendezvousService, connection: Connection) -> None:
        self._service = service
        self._connection = connection

    def on_message(self, kind: int, header: Any) -> None:
        name, fields = read(kind, header)
        if name == "standing":
            standing = self._service.standing()
            self._connection.send_frame(message("standing", **standing.to_fields()))
            return
        if name != "status":
            raise FrameError(f"an observer may not send {name[:32]!r}")
        self._service.status_wanted(self._connection, field(fields, "request", int))

    def on_closed(self, error: BaseException | None) -> None:
        self._service.observer_closed(self._connection)
