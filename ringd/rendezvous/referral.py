"""From where the rendezvous was to where it is: a daemon that has yielded it refers to the other.

A referral is a refusal of the handshake, by a peer that has proved the job secret (ADR 16). Where
it leads, the handshake begins anew, with all its checks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from ringd.errors import HandshakeRefusedError
from ringd.transport.base import Address

T = TypeVar("T")

MAX_REFERRALS = 4
"""In one attempt; each daemon that has held the rendezvous adds one at most."""


def referral_of(error: HandshakeRefusedError) -> Address | None:
    """Where a refusal sends us; None: nowhere."""
    to = error.fields.get("to")
    return None if to is None else Address(*to)


async def follow(address: Address, attempt: Callable[[Address], Awaitable[T]]) -> tuple[T, Address]:
    """Attempt at ``address``, and wherever it is referred to from there.

    Returns:
        What the attempt gave, and where it was made at last.

    Raises:
        ConnectionError: the referrals go round, are too many, or lead to a daemon that is not the
            rendezvous. It may pass: a succession is under way.
        HandshakeRefusedError: refused by name, without a referral.

    Whatever else ``attempt`` raises passes.
    """
    way = [address]
    while True:
        try:
            return await attempt(way[-1]), way[-1]
        except HandshakeRefusedError as exc:
            to = referral_of(exc)
            if to is None:
                if len(way) > 1 and exc.fields.get("reason") == "not_rendezvous":
                    raise ConnectionRefusedError(f"{_told(way)}: {exc}") from None
                raise
        way.append(to)
        if to in way[:-1]:
            raise ConnectionRefusedError(f"the referrals go round: {_told(way)}")
        if len(way) > MAX_REFERRALS + 1:
            raise ConnectionRefusedError(f"more than {MAX_REFERRALS} referrals: {_told(way)}")


def _told(way: list[Address]) -> str:
    return ", which refers to ".join(map(str, way))
