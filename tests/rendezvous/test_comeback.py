"""Where a daemon looks for the rendezvous that it lost, in which order, and when it becomes it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ringd.errors import HandshakeRefusedError
from ringd.rendezvous.comeback import SEAT_TIMEOUT_S, Comeback, Places
from ringd.rendezvous.reach import RetrySettings
from ringd.sim.clock import VirtualLoop, run
from ringd.transport.base import Address

HOME = Address("home", 7000)
LOG = logging.getLogger("tests.comeback")


def daemon(rank: int) -> Address:
    return Address(f"host{rank}", 4000)


class World:
    """What answers where: "here", "refused" (by a reason), "gone" or "silent"."""

    def __init__(self, own: int, n: int, *, seat: int | None, at: Address = HOME) -> None:
        self.answers: dict[Address, str] = {}
        self.tried: list[Address] = []
        self.succeeded: list[frozenset[int]] = []
        self.taken: list[Address] = []
        self.places = Places(own, HOME, at, seat, {r: daemon(r) for r in range(n)})
        self.comeback = Comeback(
            self.places,
            self._join,
            self._succeed,
            rng=random.Random(3),
            log=LOG,
            settings=RetrySettings(),
        )

    async def _join(self, address: Address, until: float) -> Address:
        self.tried.append(address)
        answer = self.answers.get(address, "gone")
        if answer == "silent":
            await asyncio.sleep(until - asyncio.get_running_loop().time())
            raise TimeoutError
        if answer == "gone":
            raise ConnectionRefusedError(111, "refused")
        if answer.startswith("at "):  # referred, and taken there
            address = daemon(int(answer[3:]))
        elif answer != "here":
            raise HandshakeRefusedError("no", reason=answer)
        self.taken.append(address)
        return address

    def _succeed(self, silent: frozenset[int]) -> Address:
        self.succeeded.append(silent)
        self.answers[daemon(self.places.own)] = "here"
        return daemon(self.places.own)

    async def until_taken(self) -> Address:
        self.comeback.begin()
        self.comeback.begin()  # one search at a time
        while not self.taken:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert len(self.taken) == 1
        return self.taken[0]


def play(act: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run(act(), loop=VirtualLoop(start_s=0.0))


def test_a_service_of_its_own_is_sought_at_its_address_alone_until_it_is_there() -> None:
    async def act() -> None:
        world = World(1, 3, seat=None)
        asyncio.get_running_loop().call_later(20.0, world.answers.update, {HOME: "here"})
        assert await world.until_taken() == HOME
        assert set(world.tried) == {HOME}
        assert not world.succeeded
        assert asyncio.get_running_loop().time() < 20.0 + 2.1

    play(act)


@pytest.mark.parametrize("reason", ["rank_taken", "secret", "version"])
def test_a_refusal_is_tried_again_too(reason: str) -> None:
    async def act() -> None:
        world = World(1, 3, seat=None)
        world.answers[HOME] = reason
        asyncio.get_running_loop().call_later(5.0, world.answers.update, {HOME: "here"})
        assert await world.until_taken() == HOME

    play(act)


@pytest.mark.parametrize(
    ("own", "seat", "silent"),
    [(1, 0, {0}), (0, 2, {2}), (2, 0, {0, 1}), (1, 4, {0, 4}), (0, 1, {1})],
)
def test_who_comes_to_its_own_seat_with_nobody_before_it_becomes_the_rendezvous(
    own: int, seat: int, silent: set[int]
) -> None:
    async def act() -> None:
        world = World(own, 5, seat=seat)
        assert await world.until_taken() == daemon(own)
        assert world.succeeded == [frozenset(silent)]
        assert world.places.at == daemon(own)

    play(act)


@pytest.mark.parametrize("reason", ["not_rendezvous", "role", "rank_taken"])
def test_nobody_passes_over_a_lower_rank_that_lives(reason: str) -> None:
    async def act() -> None:
        world = World(2, 4, seat=0)
        world.answers[daemon(1)] = reason
        asyncio.get_running_loop().call_later(9.0, world.answers.update, {daemon(1): "here"})
        assert await world.until_taken() == daemon(1)
        assert not world.succeeded

    play(act)


@pytest.mark.parametrize("reason", ["job", "secret", "version"])
def test_a_stranger_at_a_lower_ranks_address_is_passed_over(reason: str) -> None:
    async def act() -> None:
        world = World(2, 4, seat=0)
        world.answers[daemon(1)] = reason
        assert await world.until_taken() == daemon(2)

    play(act)


def test_while_a_lower_rank_lives_a_higher_one_may_have_it() -> None:
    async def act() -> None:
        world = World(1, 4, seat=0)
        world.answers |= {daemon(0): "not_rendezvous", daemon(3): "here"}
        assert await world.until_taken() == daemon(3)
        assert not world.succeeded

    play(act)


def test_a_higher_rank_that_answered_in_an_earlier_search_does_not_come_before_us() -> None:
    async def act() -> None:
        world = World(1, 3, seat=0)
        world.answers |= {daemon(0): "not_rendezvous", daemon(2): "not_rendezvous"}
        asyncio.get_running_loop().call_later(1.0, world.answers.update, {daemon(0): "here"})
        assert await world.until_taken() == daemon(0)
        world.taken.clear()
        world.answers[daemon(0)] = "gone"
        assert await world.until_taken() == daemon(1)

    play(act)


@pytest.mark.parametrize("reason", ["not_rendezvous", "role"])
def test_a_lower_rank_waits_for_no_higher_one_that_had_it_and_has_it_no_longer(reason: str) -> None:
    """That one waits for the lower one."""

    async def act() -> None:
        world = World(1, 4, seat=2, at=daemon(2))
        world.answers |= {daemon(2): reason, daemon(3): "role"}
        assert await world.until_taken() == daemon(1)
        assert world.succeeded == [frozenset({0})]

    play(act)


@pytest.mark.parametrize("reason", ["here", "rank_taken"])
def test_to_whom_a_higher_rank_has_yielded_it_is_found_before_a_lower_one_becomes_it(
    reason: str,
) -> None:
    async def act() -> None:
        world = World(1, 4, seat=2, at=daemon(2))
        world.answers |= {daemon(2): "not_rendezvous", daemon(3): reason}
        asyncio.get_running_loop().call_later(9.0, world.answers.update, {daemon(3): "here"})
        assert await world.until_taken() == daemon(3)
        assert not world.succeeded

    play(act)


def test_a_higher_rank_that_had_it_last_and_can_t_take_us_yet_may_have_it() -> None:
    async def act() -> None:
        world = World(1, 4, seat=2, at=daemon(2))
        world.answers[daemon(2)] = "rank_taken"
        asyncio.get_running_loop().call_later(9.0, world.answers.update, {daemon(2): "here"})
        assert await world.until_taken() == daemon(2)
        assert not world.succeeded

    play(act)


def test_who_holds_it_comes_back_to_itself_though_others_live_before_it() -> None:
    async def act() -> None:
        world = World(2, 4, seat=0)
        world.places.held = True
        world.answers |= {daemon(0): "not_rendezvous", daemon(1): "not_rendezvous"}
        assert await world.until_taken() == daemon(2)

    play(act)


@pytest.mark.parametrize("seat", [0, 3])
def test_who_refuses_where_the_rendezvous_began_does_not_come_before_us_for_that(seat: int) -> None:
    async def act() -> None:
        world = World(1, 4, seat=seat, at=daemon(seat))
        world.answers |= {HOME: "not_rendezvous", daemon(2): "not_rendezvous"}
        assert await world.until_taken() == daemon(1)

    play(act)


def test_where_it_was_referred_to_is_where_the_rendezvous_is() -> None:
    async def act() -> None:
        world = World(1, 3, seat=None)
        world.answers[HOME] = "at 2"
        assert await world.until_taken() == daemon(2)
        assert world.places.at == daemon(2)

    play(act)


def test_the_holder_that_answers_at_its_own_port_is_no_silent_one() -> None:
    async def act() -> None:
        world = World(1, 3, seat=0)
        world.answers[daemon(0)] = "not_rendezvous"
        asyncio.get_running_loop().call_later(1.0, world.answers.update, {daemon(0): "gone"})
        assert await world.until_taken() == daemon(1)
        assert world.succeeded == [frozenset({0})]

    play(act)


def test_places_that_keep_silent_cost_a_second_each_and_only_once() -> None:
    async def act() -> None:
        world = World(2, 3, seat=0)
        world.answers |= dict.fromkeys((HOME, daemon(0)), "silent")
        world.answers[daemon(1)] = "not_rendezvous"
        later = 2 * SEAT_TIMEOUT_S + 0.1  # it becomes the rendezvous just after it was asked
        asyncio.get_running_loop().call_later(later, world.answers.update, {daemon(1): "here"})
        assert await world.until_taken() == daemon(1)
        assert asyncio.get_running_loop().time() < 2 * SEAT_TIMEOUT_S + 0.5

    play(act)


def test_a_search_that_was_ended_tries_nothing_more() -> None:
    async def act() -> None:
        world = World(1, 3, seat=None)
        world.comeback.begin()
        await asyncio.sleep(1.0)
        world.comeback.end()
        world.comeback.end()
        tried = len(world.tried)
        await asyncio.sleep(10.0)
        assert 0 < tried == len(world.tried)

    play(act)
