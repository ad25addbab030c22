"""From where the rendezvous was to where it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ringd.errors import HandshakeRefusedError
from ringd.rendezvous.referral import MAX_REFERRALS, follow, referral_of
from ringd.transport.base import Address


def at(number: int) -> Address:
    return Address(f"host{number}", 7000 + number)


def moved(to: Address) -> HandshakeRefusedError:
    return HandshakeRefusedError("moved", reason="moved", to=[to.host, to.port], epoch=3)


def attempts(leads: Callable[[int], int | None], tried: list[Address]) -> tuple[str, Address]:
    """Follow from place 0: place n refers to ``leads(n)``, and takes us where that is None."""

    async def attempt(address: Address) -> str:
        tried.append(address)
        to = leads(address.port - 7000)
        if to is not None:
            raise moved(at(to))
        return "taken"

    return asyncio.run(follow(at(0), attempt))


@pytest.mark.parametrize("hops", range(MAX_REFERRALS + 1))
def test_a_referral_is_followed_to_its_end(hops: int) -> None:
    tried: list[Address] = []
    leads = attempts(lambda n: n + 1 if n < hops else None, tried)
    assert leads == ("taken", at(hops))
    assert tried == [at(n) for n in range(hops + 1)]


def test_too_many_are_not() -> None:
    tried: list[Address] = []
    with pytest.raises(ConnectionError, match="more than 4 referrals: host0:7000, which refers to"):
        attempts(lambda n: n + 1, tried)
    assert len(tried) == MAX_REFERRALS + 1


@pytest.mark.parametrize("size", [1, 2, 3])
def test_who_is_sent_round_is_told_by_whom(size: int) -> None:
    tried: list[Address] = []
    with pytest.raises(ConnectionError, match="the referrals go round: host0:7000, which") as told:
        attempts(lambda n: (n + 1) % size, tried)
    assert len(tried) == size
    assert str(told.value).count("host0:7000") == 2


def test_a_referral_to_one_that_is_not_the_rendezvous_may_be_tried_again() -> None:
    async def attempt(address: Address) -> None:
        if address == at(0):
            raise moved(at(1))
        raise HandshakeRefusedError("not here", reason="not_rendezvous")

    with pytest.raises(ConnectionError, match="host0:7000, which refers to host1:7001: not here"):
        asyncio.run(follow(at(0), attempt))


@pytest.mark.parametrize("reason", ["not_rendezvous", "secret", "rank_taken"])
def test_other_refusals_pass(reason: str) -> None:
    error = HandshakeRefusedError("no", reason=reason)
    assert referral_of(error) is None

    async def attempt(address: Address) -> None:
        raise error

    with pytest.raises(HandshakeRefusedError) as caught:
        asyncio.run(follow(at(0), attempt))
    assert caught.value is error
