"""A look at a group from outside: one question, one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ringd.errors import RendezvousError
from ringd.rendezvous.reach import describe
from ringd.rendezvous.referral import follow
from ringd.transport.base import Address, Transport
from ringd.transport.connection import Connection, ConnectionHandler, FrameCollector
from ringd.transport.handshaking import fresh_nonce, shake_hands_as_dialer
from ringd.wire import control
from ringd.wire.frame import FrameError, Limits
from ringd.wire.handshake import OBSERVER, RENDEZVOUS, Credentials, Expectation, Identity


def observer_credentials(job_id: str, secret: bytes) -> Credentials:
    """Who an observer is: it has no rank, and does not know the world size."""
    return Credentials(job_id, -1, 0, OBSERVER, secret)


@dataclass(frozen=True, slots=True)
class Standing:
    """How good a rendezvous is, as compared to another one of the same job.

    Attributes:
        enough: more than half of the last epoch's members are there.
        epoch: the last one that it knows of; 0: none, as it was started anew.
        seat: of the daemon that holds it; -1: none does.
    """

    enough: bool
    epoch: int
    seat: int

    def yields_to(self, other: Standing) -> bool:
        """Whether that one is to be the rendezvous; of equals the lower seat is."""
        ours, theirs = (self.enough, self.epoch), (other.enough, other.epoch)
        return theirs > ours or (theirs == ours and other.seat < self.seat)

    def to_fields(self) -> dict[str, Any]:
        """As the fields of the message "standing"."""
        return {"enough": self.enough, "epoch": self.epoch, "seat": self.seat}


async def ask_standing(
    transport: Transport,
    credentials: Credentials,
    address: Address,
    *,
    deadline: float,
    make_nonce: Callable[[], bytes] = fresh_nonce,
) -> Standing:
    """What a rendezvous at ``address`` says of itself; raises as :func:`ask_status` does."""
    fields = await _ask(transport, credentials, address, "standing", deadline, make_nonce)
    return Standing(
        control.field(fields, "enough", bool),
        control.field(fields, "epoch", int),
        control.field(fields, "seat", int),
    )


async def ask_status(
    transport: Transport,
    credentials: Credentials,
    rendezvous: Address,
    *,
    deadline: float,
    make_nonce: Callable[[], bytes] = fresh_nonce,
) -> dict[str, Any]:
    """The whole group's state, by the loop-time ``deadline``; one attempt, at ``rendezvous`` or
    where it refers to.

    Returns:
        The membership's snapshot, with "reports" (one state per daemon that answered) and
        "unanswered" (ranks that did not in time).

    Raises:
        HandshakeRefusedError: refused by name.
        RendezvousError: it can't be reached, is silent, or ended the connection.
    """

    async def ask(address: Address) -> dict[str, Any]:
        return await _ask(transport, credentials, address, "status", deadline, make_nonce)

    try:
        fields, _ = await follow(rendezvous, ask)
    except ConnectionError as exc:
        text = f"no status from the rendezvous at {rendezvous}: {exc}"
        raise RendezvousError(text, address=str(rendezvous)) from None
    status: dict[str, Any] = control.field(fields, "status", dict)
    return status


async def _ask(
    transport: Transport,
    credentials: Credentials,
    rendezvous: Address,
    question: str,
    deadline: float,
    make_nonce: Callable[[], bytes],
) -> dict[str, Any]:
    """The fields of the one answer to one question."""
    answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def establish(connection: Connection, peer: Identity) -> tuple[ConnectionHandler, Limits]:
        return _Answer(answer, question), Limits.for_control()

    try:
        channel = await transport.dial(rendezvous, deadline=deadline)
        connection, _ = await shake_hands_as_dialer(
            channel,
            credentials,
            expect=Expectation(RENDEZVOUS),
            establish=establish,
            deadline=deadline,
            nonce=make_nonce(),
        )
        connection.send_frame(control.message(question, request=1))
        try:
            async with asyncio.timeout_at(deadline):
                return await answer
        finally:
            connection.close()
    except OSError as exc:
        text = f"no {question} from the rendezvous at {rendezvous}: {describe(exc)}"
        raise RendezvousError(text, address=str(rendezvous)) from None


class _Answer(FrameCollector):
    """Takes the one answer."""

    def __init__(self, answer: asyncio.Future[dict[str, Any]], question: str) -> None:
        self._answer = answer
        self._question = question

    def on_message(self, kind: int, header: Any) -> None:
        name, fields = control.read(kind, header)
        if name != self._question:
            raise FrameError(f"unknown message {name[:32]!r} to an observer")
        if not self._answer.done():
            self._answer.set_result(fields)

    def on_closed(self, error: BaseException | None) -> None:
        if not self._answer.done():
            why = "it closed the connection" if error is None else describe(error)
            self._answer.set_exception(ConnectionResetError(why))
