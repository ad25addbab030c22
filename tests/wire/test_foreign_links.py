"""Links that break, with a peer that was written from docs/wire-protocol.md alone."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tests.wire.foreign.call import all_reduce
from tests.wire.foreign.frames import Failed
from tests.wire.foreign.link import UNKNOWN, Link, Word, say
from tests.wire.foreign.rank import ForeignRank
from tests.wire.foreign_job import both, in_thread, sum_is_right, summing, two_inputs
from tests.wire.real_ranks import Ended, Real

COUNT = 1_310_723
"""Of float32: each of two chunks is 2.6 MB, in three segments by credit."""
CUT = 300_001
"""Bytes of a payload before the cut: more than ringd takes from its staging buffer."""

dialler = pytest.mark.parametrize(
    "foreign", [pytest.param(0, id="the peer dials"), pytest.param(1, id="ringd dials")]
)


def the_link(peer: ForeignRank) -> Link:
    return peer.links[1 - peer.rank]


class Sum:
    """An all_reduce of the real rank and the foreign one, begun by the real one."""

    def __init__(self, real: Real, peer: ForeignRank, *, timeout_s: float = 20.0) -> None:
        self.ours, theirs = two_inputs("float32", COUNT)
        self.expected = (self.ours + theirs).tobytes()
        spec = summing(self.ours, "direct")
        self.ended: asyncio.Future[Ended] = real.zero.call(spec, self.ours, timeout_s=timeout_s)
        self.call = all_reduce(peer.world, "float32", theirs.tobytes(), "direct")

    async def is_right(self) -> None:
        assert await in_thread(self.call.run) == self.expected
        assert (await self.ended).code == "ok"
        assert self.ours.tobytes() == self.expected


@dialler
async def test_a_payload_that_the_receiver_cut_goes_on_with_a_rest(foreign: int) -> None:
    async with both(foreign=foreign) as (real, peer):
        link = the_link(peer)
        link.break_taking_at = CUT
        await Sum(real, peer).is_right()
        assert the_link(peer) is link
        assert link.rests == [CUT]
        assert len(link.words) == 1
        assert not link.words[0].fresh
        await sum_is_right(real, peer.world)


@dialler
async def test_a_payload_that_the_sender_cut_goes_on_with_a_rest(foreign: int) -> None:
    async with both(foreign=foreign) as (real, peer):
        link = the_link(peer)
        link.break_sending_at = CUT
        await Sum(real, peer).is_right()
        assert the_link(peer) is link
        assert [word.partial for word in link.words] == [CUT]
        await sum_is_right(real, peer.world)


async def test_what_came_of_a_payload_still_counts_if_the_next_connection_breaks_at_once() -> None:
    async with both(foreign=0) as (real, peer):
        link, peer.mends = the_link(peer), False
        link.break_sending_at = CUT
        sum_ = Sum(real, peer)

        def go_on_to_the_cut() -> None:
            while not sum_.call.advance() and link.up:
                sum_.call.wait()

        await in_thread(go_on_to_the_cut)
        for _ in range(2):
            wire, word = await in_thread(peer.knock, 1, link.position())
            assert word.partial == CUT
            await in_thread(wire.end)
        peer.mends = True
        await sum_.is_right()
        assert [word.partial for word in link.words] == [CUT]
        await sum_is_right(real, peer.world)


@dialler
async def test_a_link_that_breaks_again_and_again_loses_nothing(foreign: int) -> None:
    async with both(foreign=foreign) as (real, peer):
        link = the_link(peer)
        for cut in (1, 70_000, 900_000):
            link.break_taking_at = link.break_sending_at = cut
            await Sum(real, peer).is_right()
        assert link.break_taking_at == link.break_sending_at == 0
        assert len(link.words) == 6
        await sum_is_right(real, peer.world)


@dialler
async def test_a_frame_of_an_operation_that_failed_meanwhile_is_void(foreign: int) -> None:
    async with both(foreign=foreign) as (real, peer):
        link = the_link(peer)
        link.break_taking_at, peer.mends = CUT, False
        sum_ = Sum(real, peer, timeout_s=1.5)  # time enough to come to the cut
        failed = asyncio.create_task(in_thread(sum_.call.run))
        assert (await sum_.ended).code == "timeout"
        with pytest.raises(Failed) as told:
            await failed
        assert told.value.code == "timeout"
        assert link.break_taking_at == 0, "the payload was cut"
        peer.mends = True
        await sum_is_right(real, peer.world)
        assert the_link(peer) is link
        assert link.rests == []
        assert link.voids > 0


async def test_ringd_answers_for_a_link_that_it_does_not_know() -> None:
    """And the one that it knows stands."""
    async with both(foreign=0) as (real, peer):
        link = the_link(peer)
        strange = Word(b"12345678", fresh=False, taken=3, partial=0)
        wire, answer = await in_thread(peer.knock, 1, strange)
        with wire.sock:
            assert answer == Word(b"12345678", fresh=False, taken=UNKNOWN, partial=0)
            with pytest.raises(EOFError):
                await in_thread(wire.read)
        await sum_is_right(real, peer.world)
        assert the_link(peer) is link
        assert link.words == []


async def test_ringd_begins_a_new_link_where_the_peer_does_not_know_it_any_more() -> None:
    async with both() as (real, peer):
        ours = np.ones(COUNT, np.float32)
        ended = real.zero.call(summing(ours), ours)
        peer.links.pop(0).wire.sock.close()
        await in_thread(peer.until, lambda: 0 in peer.links)
        assert peer.accepted == [0, 0]
        await in_thread(peer.until, lambda: bool(peer.lost))
        error = (await ended).error
        assert error is not None
        assert (error.code, error.case) == ("peer_lost", "link lost")
        assert error.verdict == peer.lost[0]["verdict"]
        assert peer.lost[0]["link"] == [0, 1]


@pytest.mark.parametrize(
    ("taken", "partial"),
    [
        pytest.param(1_000, 0, id="a frame that was not sent"),
        pytest.param(0, 0, id="less than was acknowledged"),
    ],
)
async def test_a_position_that_can_not_be_costs_the_link(taken: int, partial: int) -> None:
    async with both(foreign=0) as (real, peer):
        for _ in range(2):  # the second one's frames acknowledge the first one's
            await sum_is_right(real, peer.world)
        link, peer.mends = the_link(peer), False
        false = Word(link.link_id, False, taken, partial)
        wire = await in_thread(peer.call_on, 1)
        link.wire.sock.close()
        with wire.sock:
            say(wire, false)
            await in_thread(peer.until, lambda: bool(peer.lost))
        assert peer.lost[0]["case"] == "link lost"
        region = np.ones(3, np.float32)
        assert (await real.zero.call(summing(region), region)).code == "peer_lost"


@pytest.mark.parametrize(
    "word",
    [
        pytest.param([b"1234567", True, 0, 0], id="an id of seven bytes"),
        pytest.param([b"12345678", 1, 0, 0], id="a number for a truth value"),
        pytest.param([b"12345678", True, -2, 0], id="less than nothing"),
        pytest.param([b"12345678", True, 0], id="three items"),
        pytest.param(None, id="nothing"),
    ],
)
async def test_a_malformed_first_word_costs_the_connection_alone(word: Any) -> None:
    async with both(foreign=0) as (real, peer):
        wire = await in_thread(peer.call_on, 1)
        with wire.sock:
            wire.send(33, word)
            with pytest.raises((EOFError, ConnectionResetError)):
                await in_thread(wire.read)
        await sum_is_right(real, peer.world)


# Questions


async def test_who_did_not_make_the_call_says_so_when_it_is_asked() -> None:
    async with both() as (real, peer):
        region = np.ones(3, np.float32)
        ended = real.zero.call(summing(region), region, timeout_s=0.1)
        op = (0, peer.epoch, 0)
        await in_thread(peer.until, lambda: op in peer.failures)
        assert peer.inquired == [op]
        error = (await ended).error
        assert error is not None
        assert (error.code, error.case, error.culprits) == ("timeout", "never entered", [1])
        assert peer.failures[op]["fields"]["verdict"] == error.verdict
        peer.world.seq += 1
        await sum_is_right(real, peer.world)
