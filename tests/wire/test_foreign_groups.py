"""Groups, and the links that only groups need, with a peer that was written from the page alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.wire.foreign.call import NewGroup, all_reduce
from tests.wire.foreign.frames import BUSY, GOODBYE, IDLE, Failed
from tests.wire.foreign_job import (
    a_group,
    both,
    in_thread,
    message,
    new_group,
    sum_is_right,
    summing,
    two_inputs,
)

# Groups


async def test_a_new_group_has_an_order_and_a_stream_of_its_own() -> None:
    async with both() as (real, peer):
        groups = []
        for number in (1, 2):
            region = np.full(1, -1, np.int64)
            ended = real.zero.call(new_group((1, 0)), region)
            group = await in_thread(NewGroup(peer.world, [1, 0]).run)
            assert (await ended).code == "ok"
            assert region[0] == group.number == number
            assert group.place == 0  # its ranks are in the order of the call
            groups.append(group)
        for group in (*groups, peer.world, *groups[::-1]):
            await sum_is_right(real, group)
        assert [g.seq for g in (peer.world, *groups)] == [3, 2, 2]


async def test_what_comes_for_a_group_that_is_not_there_yet_is_kept() -> None:
    async with both() as (real, peer):
        ours, theirs = two_inputs("float32", 50)
        letter = np.full(50, np.nan, np.float32)
        founding = NewGroup(peer.world, [0, 1])
        group = founding.open(1)  # in a fresh epoch no other number can come of it
        call = all_reduce(group, "float32", theirs.tobytes(), "exchange")
        group.mail.post(0, 7, "float32", theirs.tobytes())
        await in_thread(call.send_ahead)
        ended = real.zero.call(new_group((0, 1)), np.zeros(1, np.int64))
        assert (await in_thread(founding.run)).number == 1
        assert (await ended).code == "ok"
        expected = (ours + theirs).tobytes()
        received = real.zero.call(message("recv", letter, 1, group=1), letter, 7)
        summed = real.zero.call(summing(ours, group=1), ours)
        assert await in_thread(call.run) == expected
        assert (await summed).code == "ok"
        assert ours.tobytes() == expected
        assert (await received).code == "ok"
        assert letter.tobytes() == theirs.tobytes()


async def test_a_goodbye_counts_for_a_group_that_is_still_being_made() -> None:
    """The last word of a new_group may come after the news that its sender has left."""
    async with both() as (real, peer):
        founding = NewGroup(peer.world, [0, 1])
        await in_thread(founding.call.send_ahead)
        founding.open(1)
        peer.detach()
        await in_thread(peer.hear_from_all)
        assert (await real.zero.call(new_group((0, 1)), np.zeros(1, np.int64))).code == "ok"
        region = np.ones(3, np.float32)
        error = (await real.zero.call(summing(region, group=1), region)).error
        assert error is not None
        assert (error.code, error.rank, error.case) == ("peer_lost", 1, "it left the job")


async def test_a_mismatch_in_a_group_is_of_that_group_alone() -> None:
    async with both() as (real, peer):
        group = await a_group(real, peer, 0, 1)
        ours, theirs = two_inputs("float32", 9)
        ended = real.zero.call(summing(ours[:5], group=1), ours[:5])
        call = all_reduce(group, "float32", theirs.tobytes(), "exchange")
        with pytest.raises(Failed):
            await in_thread(call.run)
        error = (await ended).error
        assert error is not None
        assert (error.code, error.group, error.seq) == ("mismatch", 1, 0)
        for each in (peer.world, group):
            await sum_is_right(real, each)


async def test_groups_with_one_number_and_no_common_member_do_not_disturb_each_other() -> None:
    """In a world of 4, ranks 1 and 3 make a group, and ranks 0 and 2 another: both get number 1."""
    async with both(4) as (real, peer):
        group = await a_group(real, peer, 1, 3)
        regions = [np.zeros(1, np.int64) for _ in real.ranks]
        for made in [
            r.call(new_group((0, 2)), a) for r, a in zip(real.ranks, regions, strict=True)
        ]:
            assert (await made).code == "ok"
        peer.world.seq += 1  # no member: it only counts the call
        assert [int(region[0]) for region in regions] == [1, 0, 1]
        assert group.number == 1
        peer.fail(group, (1, peer.epoch, 0), "mismatch", "ours alone")
        await in_thread(peer.hear_from_all)
        values = np.arange(3, dtype=np.float32)
        calls = [(rank, values * (rank + 1)) for rank in (0, 2)]
        sums = [real.ranks[rank].call(summing(a, group=1), a) for rank, a in calls]
        assert [(await one).code for one in sums] == ["ok", "ok"]
        for _, region in calls:
            assert region.tobytes() == (values * 4).tobytes()
        void = real.ranks[1].call(summing(values, group=1), values)
        assert (await void).code == "mismatch"
        group.seq += 1
        await sum_is_right(real, group, rank=1)


# Links that nobody needs


async def test_an_unneeded_link_is_given_up_in_agreement_or_stands() -> None:
    """Ranks 1 and 3 of 4 are no neighbours: only a group of theirs needs their link."""
    async with both(4) as (real, peer):

        async def make(number: int) -> None:
            group = await a_group(real, peer, 1, 3)
            assert group.number == number
            await sum_is_right(real, group, rank=1)

        assert sorted(peer.accepted) == [0, 2]
        await make(1)
        assert peer.accepted[2:] == [1]
        kept = peer.links[1]
        real.ranks[1].engine.groups.free(1)
        await in_thread(peer.until, lambda: IDLE in kept.said)  # it is answered with BUSY
        await make(2)
        assert peer.links[1] is kept
        peer.answers_idle = GOODBYE
        real.ranks[1].engine.groups.free(2)
        await in_thread(peer.until, lambda: 1 not in peer.links)
        await make(3)
        assert peer.accepted[2:] == [1, 1]
        assert sorted(peer.links) == [0, 1, 2]


async def test_idle_is_answered_with_busy_between_neighbours_and_with_goodbye_elsewhere() -> None:
    async with both(4) as (_, peer):

        def ask(rank: int) -> list[int]:
            link = peer.link_to(rank)
            link.note(IDLE, [])
            peer.until(lambda: bool(link.said))
            return link.said

        assert await in_thread(ask, 0) == [BUSY]
        assert await in_thread(ask, 1) == [GOODBYE]
        await in_thread(peer.until, lambda: 1 not in peer.links)
        assert await in_thread(ask, 1) == [GOODBYE]  # a new link, asked for and dialled again
