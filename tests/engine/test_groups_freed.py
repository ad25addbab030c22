"""Groups that are given back: what of theirs ends, and which links go or stay."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from ringd.engine.link import Link
from ringd.engine.reunion import Reunion
from ringd.errors import (
    GroupFreedError,
)
from ringd.vocabulary import OpSpec
from tests.engine.grouping import MISMATCH_WITHIN_S, found, links, sums
from tests.engine.scene import ALL_REDUCE, DELAY_S, Scene


def test_a_root_may_free_the_group_and_leave_while_others_still_take_its_data() -> None:
    scene = Scene(2)
    spec = OpSpec("broadcast", "float32", "", (5,), root=0)

    async def main() -> None:
        number = await found(scene, (0, 1))
        root = await scene.call(0, replace(spec, group=number))
        assert root.error is None
        scene.engine(0).groups.free(number)
        scene.trainer(0).goodbye()
        await asyncio.sleep(1.0)
        ended = await scene.call(1, replace(spec, group=number))
        assert ended.error is None
        assert (ended.array == 1).all()

    scene.run(main)


def test_a_freed_group_ends_what_is_in_flight_and_refuses_what_comes_after() -> None:
    scene = Scene(2)

    async def main() -> None:
        number = await found(scene, (0, 1))
        spec = OpSpec("all_reduce", "float32", "sum", (100_000,), group=number)
        flying = scene.call(0, spec)
        scene.engine(0).groups.free(number)
        for ended in (await flying, await scene.call(0, spec, np.zeros(0))):
            assert isinstance(ended.error, GroupFreedError)
            assert ended.error.fields["group"] == number
        other = await scene.call(1, spec, timeout_s=10.0)
        assert isinstance(other.error, GroupFreedError)
        assert other.error.fields["rank"] == 0
        assert other.took_s <= MISMATCH_WITHIN_S
        await scene.sum_works()

    scene.run(main)


def test_a_call_that_had_begun_when_a_member_freed_the_group_is_told() -> None:
    scene = Scene(3)

    async def main() -> None:
        number = await found(scene, (0, 1, 2))
        spec = OpSpec("all_reduce", "float32", "sum", (100_000,), group=number)
        begun = [scene.call(r, spec, timeout_s=10.0) for r in (1, 2)]
        await asyncio.sleep(0.1)
        scene.engine(0).groups.free(number)
        for ended in await scene.all(begun):
            assert isinstance(ended.error, GroupFreedError)
            assert ended.took_s <= 0.1 + MISMATCH_WITHIN_S
        await scene.sum_works()

    scene.run(main)


def test_freed_groups_give_back_their_links_in_agreement_and_two_hundred_rounds_leave_nothing() -> (
    None
):
    scene = Scene(5)
    members = (0, 2, 3)  # 0 and 2, 0 and 3 are no neighbours on the ring

    async def main() -> None:
        before = links(scene)
        for _ in range(200):
            number = await found(scene, members)
            await sums(scene, number, members)
            for rank in members:
                scene.engine(rank).groups.free(number)
        await asyncio.sleep(1.0)
        assert links(scene) == before
        for rank in range(5):
            engine = scene.engine(rank)
            assert len(engine.groups) == 1
            assert not engine.router.early.held_bytes
        await scene.sum_works()

    scene.run(main)


def test_a_link_that_one_side_still_needs_stays() -> None:
    scene = Scene(5)

    async def main() -> None:
        first, second = await found(scene, (0, 2)), await found(scene, (2, 0))
        await sums(scene, first, (0, 2))
        await sums(scene, second, (0, 2))
        for number in (first, second):
            scene.engine(0).groups.free(number)
        scene.engine(2).groups.free(first)
        await asyncio.sleep(1.0)
        assert 0 in scene.engine(2).links
        assert 2 in scene.engine(0).links
        scene.engine(2).groups.free(second)
        await asyncio.sleep(1.0)
        assert 0 not in scene.engine(2).links
        await sums(scene, await found(scene, (2, 0)), (2, 0))

    scene.run(main)


@pytest.mark.parametrize("wanting", [0, 2])
def test_a_link_that_is_wanted_while_it_is_given_up_comes_back(wanting: int) -> None:
    scene = Scene(5)

    async def main() -> None:
        number = await found(scene, (0, 2))
        again = await found(scene, (0, 2))
        await sums(scene, number, (0, 2))
        scene.engine(0).groups.free(number)
        scene.engine(2).groups.free(number)
        spec = replace(ALL_REDUCE, group=again)
        first = scene.call(wanting, spec)  # the same moment: IDLE is on its way in both directions
        await asyncio.sleep(3 * DELAY_S)
        second = await scene.call(2 - wanting, spec)
        for ended in (await first, second):
            assert ended.error is None
            assert (ended.array == 4).all()

    scene.run(main)


def test_a_link_that_is_given_up_as_soon_as_it_is_made_does_not_stay_with_its_dialler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The peer's IDLE comes in one read with the end of the handshake."""
    scene = Scene(5)
    begin = Reunion._begin
    given_up = []

    def begin_and_read_on(self: Reunion, link: Link) -> None:
        begin(self, link)
        if self._dials and not given_up:
            given_up.append(link)
            self._engine.leaving.on_idle(link)

    async def main() -> None:
        number, other = await found(scene, (0, 2)), await found(scene, (0, 2))
        for rank in (0, 2):
            scene.engine(rank).groups.free(other)
        await scene.quiet()
        assert 2 not in scene.engine(0).links
        monkeypatch.setattr(Reunion, "_begin", begin_and_read_on)
        scene.engine(0).want_link(2)
        await scene.quiet()
        (link,) = given_up
        assert link.engine.links.get(link.peer) is not link
        await sums(scene, number, (0, 2))

    scene.run(main)
