"""A daemon's side of the rendezvous: it joins, tells what happens here, and hears of the rest."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ringd.errors import HandshakeRefusedError, RendezvousError
from ringd.rendezvous.advertising import advertised
from ringd.rendezvous.agent_events import (
    Advertise,
    AgentEvents,
    Continuity,
    DaemonInfo,
    Presence,
)
from ringd.rendezvous.comeback import Comeback, Places
from ringd.rendezvous.hearing import (
    claim_fields,
    clip,
    lost_of,
    pairs,
    places_of,
    post_verdict_of,
    question_of,
    start_of,
)
from ringd.rendezvous.heart import Heart
from ringd.rendezvous.reach import AgentSettings, describe, reach
from ringd.rendezvous.referral import follow
from ringd.rendezvous.unsaid import Unsaid
from ringd.transport.base import Address, Channel, Transport
from ringd.transport.connection import Connection, ConnectionHandler, FrameCollector
from ringd.transport.handshaking import fresh_nonce, shake_hands_as_dialer
from ringd.wire import control
from ringd.wire.control import int_list, message
from ringd.wire.frame import FrameError, Limits
from ringd.wire.handshake import RENDEZVOUS, Credentials, Expectation, Identity
from ringd.wire.raised import Raised

ANSWER_S = 0.25
"""A rendezvous that takes longer to answer a heartbeat is stopped, cut off, or overloaded."""


class Agent:
    """One daemon's connection to the rendezvous.

    Args:
        transport: how to reach it.
        credentials: role "daemon" and our rank.
        rendezvous: where it listens.
        events: hears what it says.
        continuity: hears when it goes and comes back, and may take its place.
        rng: jitters the retries.
        log: where connecting is told.
        settings: intervals.
        info: what a status shows of us.
        sizes: segment and eager limit in bytes; a group whose ranks differ in them is refused.
        make_nonce: the source of handshake nonces.
    """

    def __init__(
        self,
        transport: Transport,
        credentials: Credentials,
        rendezvous: Address,
        events: AgentEvents,
        continuity: Continuity,
        *,
        rng: random.Random,
        log: logging.Logger,
        settings: AgentSettings | None = None,
        info: DaemonInfo | None = None,
        sizes: tuple[int, ...] = (),
        make_nonce: Callable[[], bytes] = fresh_nonce,
    ) -> None:
        self.rank = credentials.rank
        self._transport = transport
        self._credentials = credentials
        self._rendezvous = rendezvous
        self._events = events
        self._continuity = continuity
        self._rng = rng
        self._log = log
        self._settings = settings or AgentSettings()
        self._info = info or DaemonInfo()
        self._sizes = sizes
        self._make_nonce = make_nonce
        self._connection: Connection | None = None
        self._heart = Heart(
            lambda: self._send("heartbeat"),
            self._fall_silent,
            every_s=self._settings.heartbeat_s,
            limit_s=self._settings.dead_after_s,
        )
        self._address: Address | None = None  # what we advertise, once we joined
        self._unsaid = Unsaid()
        self._requests: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last_request = 0
        self.places = Places(credentials.rank, rendezvous, rendezvous)
        self._comeback = Comeback(
            self.places,
            self._come_back,
            continuity.on_succession,
            rng=rng,
            log=log,
            settings=self._settings.retry,
        )

    @property
    def connected(self) -> bool:
        """The rendezvous is there."""
        return self._connection is not None

    def silence(self) -> str:
        """Why it is in vain to wait for the rendezvous, if it is connected; "": it is not."""
        unanswered_s = self._heart.unanswered_s()
        return f"it has not answered for {unanswered_s:.1f} s" if unanswered_s > ANSWER_S else ""

    async def join(self, advertise: Advertise, *, deadline: float) -> Address:
        """Reach the rendezvous and take our rank's place.

        Args:
            advertise: says where peers reach us; asked anew at each attempt.
            deadline: loop time.

        Returns:
            What we advertise. Events may have come before.

        Raises:
            HandshakeRefusedError: refused by name; final.
            RendezvousError: the deadline passed, or we would advertise loopback to other hosts.
            RingdError: raised by ``advertise``; its OSError becomes a RendezvousError.

        A cancelled call leaves no connection behind.
        """

        async def attempt(until: float) -> Address:
            at = partial(self._join_at, advertise=advertise, until=until, deadline=deadline)
            try:
                told, self.places.at = await follow(self._rendezvous, at)
            except HandshakeRefusedError as exc:
                if exc.fields.get("reason") == "not_rendezvous":  # not yet, or not any more
                    raise ConnectionRefusedError(str(exc)) from None
                raise
            return told

        try:
            return await reach(
                self._rendezvous,
                attempt,
                who=f"rank {self.rank}",
                deadline=deadline,
                rng=self._rng,
                log=self._log,
                settings=self._settings.retry,
            )
        except BaseException:
            self._forget_connection()
            raise

    async def _join_at(
        self, address: Address, *, advertise: Advertise, until: float, deadline: float
    ) -> Address:
        channel = await self._transport.dial(address, deadline=until)
        try:
            told = await advertised(self.rank, channel, advertise)
        except BaseException:
            channel.abort()
            raise
        return await self._take_place(channel, told, deadline)

    async def _come_back(self, address: Address, until: float) -> Address:
        """Join again, at ``address`` or where it refers to; where that was."""
        _, at = await follow(address, partial(self._come_back_at, until=until))
        self._log.info("the rendezvous is back, at %s", at)
        self._continuity.on_coordinator_back()
        return at

    async def _come_back_at(self, address: Address, *, until: float) -> None:
        assert self._address is not None
        channel = await self._transport.dial(address, deadline=until)
        await self._take_place(channel, self._address, until)
        if self._connection is None:  # lost in the same breath, while we were still on our way
            raise ConnectionResetError("it took us, and ended the connection at once")

    async def _take_place(self, channel: Channel, told: Address, deadline: float) -> Address:
        def establish(connection: Connection, peer: Identity) -> tuple[ConnectionHandler, Limits]:
            self._connection = connection
            self._address = told
            self._join_as(told)
            self._heart.begin()
            return _Conversation(self), Limits.for_control()

        await shake_hands_as_dialer(
            channel,
            self._credentials,
            expect=Expectation(RENDEZVOUS),
            establish=establish,
            deadline=deadline,
            nonce=self._make_nonce(),
        )
        text = "rank %d joined the rendezvous at %s, advertises %s"
        self._log.debug(text, self.rank, channel.peer, told)
        return told

    # What happens here

    def attach(self) -> None:
        """A trainer wants to take part in the coming epoch."""
        wish = message("attach", attempt=self._unsaid.next_attempt())
        self._send_frame(self._unsaid.wish(wish))

    def reform(self, epoch: int, wish: Mapping[str, Any]) -> None:
        """Our trainer asks for the next epoch; ``epoch`` is its present one.

        Args:
            wish: the rest of the message "reform", without attempt.
        """
        fields = {"epoch": epoch, "attempt": self._unsaid.next_attempt(), **wish}
        self._send_frame(self._unsaid.wish(message("reform", **fields)))

    def detach(
        self,
        how: str,
        detail: str,
        epoch: int,
        next_seqs: Mapping[int, int] | None = None,
        raised: Raised | None = None,
    ) -> None:
        """Our trainer ended its part in ``epoch`` (0: it still waited for the start).

        Args:
            how: "goodbye", "died", "raised", or "gave_up" (it waited in vain).
            detail: what is known of the reason.
            epoch: see above.
            next_seqs: by group the number of the first operation that it did not call.
            raised: the exception, with "raised".
        """
        others = dict(next_seqs or {})
        next_seq = others.pop(0, 0)
        frame = message(
            "detach",
            how=how,
            detail=clip(detail),
            epoch=epoch,
            next_seq=next_seq,
            groups=[list(pair) for pair in others.items()],
            exception=None if raised is None else raised.words(),
        )
        self._unsaid.farewell(epoch, how, frame)
        self._send_frame(frame)

    def link_lost(self, peer: int, reason: str, epoch: int, *, own: bool = False) -> None:
        """The data connection to ``peer`` ended without a goodbye; ``own``: it is our fault."""
        fields = {"peer": peer, "reason": clip(reason), "epoch": epoch, "own": own}
        self._report(epoch, message("link_lost", **fields))

    def op_failed(
        self, epoch: int, group: int, members: Sequence[int], seq: int, error: dict[str, Any]
    ) -> None:
        """An operation ended here with an error; ``error`` is what RingdError.to_wire gave.

        ``members``: the ranks of its group. A verdict follows by ``on_abort``.
        """
        fields = {"group": group, "members": list(members), "seq": seq, "error": error}
        self._report(epoch, message("op_failed", epoch=epoch, **fields))

    def op_answer(self, inquiry: int, answer: dict[str, Any]) -> None:
        """What we know of an operation that we were asked about; see ``wire.control``."""
        self._send("op_answer", inquiry=inquiry, **answer)

    def post_failed(self, question: dict[str, Any]) -> bool:
        """A message came to its deadline; whether somebody heard it, so that a verdict follows."""
        self._send("post_failed", **question)
        return self.connected

    def want_link(self, peer: int) -> None:
        """Ask for a data connection to ``peer``: the lower of both ranks is told to dial."""
        self._send("want_link", peer=peer)

    def request_status(self) -> asyncio.Future[dict[str, Any]]:
        """Ask for the whole group's state.

        Returns:
            A future; it fails with RendezvousError when the rendezvous is gone.
        """
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        if self._connection is None:
            future.set_exception(RendezvousError("the rendezvous is not connected"))
            return future
        self._last_request += 1
        self._requests[self._last_request] = future
        self._send("status", request=self._last_request)
        return future

    def leave(self) -> None:
        """Say goodbye and end the connection; may be called twice. No event comes after it."""
        self._comeback.end()
        connection = self._connection
        self._send("leave")
        self._connection_gone("we left it")
        if connection is not None:
            connection.close()

    def _join_as(self, advertised: Address) -> None:
        info, claim = self._info, self._unsaid.completed(self._continuity.on_claim())
        self._send(
            "join",
            address=[advertised.host, advertised.port],
            version=info.version,
            pid=info.pid,
            host=info.host,
            sizes=list(self._sizes),
            claim=claim_fields(claim),
        )
        for frame in self._unsaid.to_say(0 if claim is None else claim.epoch):
            self._send_frame(frame)

    def _report(self, epoch: int, frame: bytes) -> None:
        """Say it now, or when the rendezvous is back."""
        if self._connection is None:
            self._unsaid.report(epoch, frame)
        self._send_frame(frame)

    def _send(self, kind: str, **fields: Any) -> None:
        self._send_frame(message(kind, **fields))

    def _send_frame(self, frame: bytes) -> None:
        if self._connection is not None:
            self._connection.send_frame(frame)

    def _fall_silent(self) -> None:
        """Nothing came for too long."""
        assert self._connection is not None
        self._connection.abort()
        self.lose(TimeoutError(f"it was silent for {self._settings.dead_after_s:g} s"))

    # What the rendezvous says

    def hear(self, kind: str, fields: dict[str, Any]) -> None:
        """Take one message.

        Raises:
            FrameError: unknown, or malformed.
        """
        if self._connection is None:  # we left; more frames of the read in which we did
            return
        self._heart.heard()
        hearing = _HEARINGS.get(kind)
        if hearing is None:
            raise FrameError(f"unknown message {kind[:32]!r} from the rendezvous")
        hearing(self, fields)

    def lose(self, error: BaseException | None) -> None:
        """The connection ended by itself."""
        reason = "it closed the connection" if error is None else describe(error)
        if error is not None and not isinstance(error, OSError | FrameError):
            self._log.error("taking a message of the rendezvous failed", exc_info=error)
        self._connection_gone(reason)
        self._continuity.on_coordinator_lost(reason)
        self._comeback.begin()

    def _hear_heartbeat(self, fields: dict[str, Any]) -> None:
        """It lives."""

    def _hear_members(self, fields: dict[str, Any]) -> None:
        members = list(places_of(fields, "members"))
        seat = fields.get("embedded")
        self.places.seat = seat if type(seat) is int else None
        self.places.daemons |= dict(members)
        self._events.on_members(members)

    def _hear_waiting(self, fields: dict[str, Any]) -> None:
        names = ("joined", "attached", "running")
        joined, attached, running = (int_list(fields, name) for name in names)
        self._events.on_waiting(Presence(joined, attached, running, _int(fields, "epoch")))

    def _hear_refused(self, fields: dict[str, Any]) -> None:
        self._events.on_refused(control.field(fields, "text", str))

    def _hear_start(self, fields: dict[str, Any]) -> None:
        attempt, start = _int(fields, "attempt"), start_of(fields)
        if self._unsaid.fulfilled(attempt):
            self._events.on_start(start)

    def _hear_changed(self, fields: dict[str, Any]) -> None:
        self._events.on_changed(_int(fields, "epoch"), _int(fields, "rank"))

    def _hear_not_reformed(self, fields: dict[str, Any]) -> None:
        if self._unsaid.fulfilled(_int(fields, "attempt")):
            facts = {
                "quorum": control.field(fields, "quorum", bool),
                "epoch": _int(fields, "epoch"),
                "here": int_list(fields, "here"),
                "missing": int_list(fields, "missing"),
            }
            self._events.on_not_reformed(control.field(fields, "text", str), facts)

    def _hear_left(self, fields: dict[str, Any]) -> None:
        rank, epoch, next_seq = (_int(fields, name) for name in ("rank", "epoch", "next_seq"))
        self._events.on_left(rank, epoch, {0: next_seq, **dict(pairs(fields, "groups"))})

    def _hear_lost(self, fields: dict[str, Any]) -> None:
        lost = lost_of(fields)
        self._unsaid.heard(lost.number)
        self._events.on_lost(lost)

    def _hear_abort(self, fields: dict[str, Any]) -> None:
        names = ("epoch", "group", "lowest", "seq")
        epoch, group, lowest, seq = (_int(fields, name) for name in names)
        error = control.field(fields, "error", dict)
        facts = error.get("fields")
        if isinstance(facts, dict):
            self._unsaid.heard(facts.get("verdict"))
        self._events.on_abort(epoch, group, lowest, seq, error)

    def _hear_inquire(self, fields: dict[str, Any]) -> None:
        names = ("inquiry", "epoch", "group", "lowest", "seq")
        self._events.on_inquiry(*(_int(fields, name) for name in names))

    def _hear_inquire_post(self, fields: dict[str, Any]) -> None:
        self._events.on_post_inquiry(question_of(fields))

    def _hear_post_verdict(self, fields: dict[str, Any]) -> None:
        verdict = post_verdict_of(fields)
        self._unsaid.heard(verdict["verdict"])
        self._events.on_post_verdict(verdict)

    def _hear_dial(self, fields: dict[str, Any]) -> None:
        self._events.on_dial(_int(fields, "peer"))

    def _hear_report(self, fields: dict[str, Any]) -> None:
        self._send("state", request=_int(fields, "request"), state=self._events.on_report())

    def _hear_status(self, fields: dict[str, Any]) -> None:
        future = self._requests.pop(_int(fields, "request"), None)
        status: dict[str, Any] = control.field(fields, "status", dict)
        if future is not None and not future.done():
            future.set_result(status)

    # The end

    def _connection_gone(self, reason: str) -> None:
        self._connection = None
        self._heart.end()
        requests, self._requests = self._requests, {}
        for future in requests.values():
            if not future.done():
                future.set_exception(RendezvousError(f"the rendezvous is gone: {reason}"))

    def _forget_connection(self) -> None:
        """Joining failed or was cancelled, perhaps after the rendezvous had accepted us."""
        connection = self._connection
        self._connection_gone("joining ended early")
        if connection is not None:
            connection.abort()


def _int(fields: dict[str, Any], name: str) -> int:
    return control.field(fields, name, int)


_HEARINGS: dict[str, Callable[[Agent, dict[str, Any]], None]] = {
    "heartbeat": Agent._hear_heartbeat,
    "members": Agent._hear_members,
    "waiting": Agent._hear_waiting,
    "refused": Agent._hear_refused,
    "start": Agent._hear_start,
    "changed": Agent._hear_changed,
    "not_reformed": Agent._hear_not_reformed,
    "left": Agent._hear_left,
    "lost": Agent._hear_lost,
    "abort": Agent._hear_abort,
    "inquire": Agent._hear_inquire,
    "inquire_post": Agent._hear_inquire_post,
    "post_verdict": Agent._hear_post_verdict,
    "dial": Agent._hear_dial,
    "report": Agent._hear_report,
    "status": Agent._hear_status,
}


class _Conversation(FrameCollector):
    """The frames of the control connection, as the agent takes them."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def on_message(self, kind: int, header: Any) -> None:
        self._agent.hear(*control.read(kind, header))

    def on_closed(self, error: BaseException | None) -> None:
        self._agent.lose(error)
