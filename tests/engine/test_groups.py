"""Groups: how they are agreed on, what they share, what a disagreement costs, how they are lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from ringd.engine.groups import MAX_GROUPS
from ringd.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    InvalidArgumentError,
    PeerLostError,
)
from ringd.vocabulary import OpSpec
from tests.engine.grouping import MISMATCH_WITHIN_S, found, new_group, sums
from tests.engine.scene import ALL_REDUCE, Scene


@pytest.mark.parametrize(
    "members", [(1, 3), (3, 1), (0, 2, 4), (4, 2, 1, 0), (2,), (0, 1, 2, 3, 4)]
)
def test_members_reduce_among_themselves_and_the_others_never_wait(
    members: tuple[int, ...],
) -> None:
    scene = Scene(5)

    async def main() -> None:
        number = await found(scene, members)
        for rank in range(5):
            group = scene.engine(rank).groups.numbered(number)
            assert (group is not None) == (rank in members)
            if group is not None:
                assert group.ranks == members
        await sums(scene, number, members)
        root = OpSpec("broadcast", "float32", "", (5,), root=len(members) - 1, group=number)
        for one in await scene.all(scene.call(rank, root) for rank in members):
            assert (one.array == members[-1] + 1).all()
        await scene.sum_works()

    scene.run(main)


def test_a_rank_that_is_no_member_is_done_at_once_though_no_member_has_come() -> None:
    scene = Scene(4)

    async def main() -> None:
        ended = await scene.call(0, new_group(1, 3), np.zeros(1, "int64"))
        assert ended.error is None
        assert ended.took_s == 0.0
        assert await found(scene, (1, 3), ranks=(1, 2, 3)) > 0
        await scene.sum_works()

    scene.run(main)


def test_members_that_differ_raise_on_all_of_them_within_a_second_and_say_both() -> None:
    for other in ((1, 2, 3), (3, 1)):
        scene = Scene(4)
        specs = [new_group(1, 3), new_group(1, 3), new_group(1, 3), new_group(*other)]

        async def main(scene: Scene = scene, specs: list[OpSpec] = specs) -> None:
            zeros = [np.zeros(1, "int64") for _ in specs]
            one, three = await scene.all(
                scene.call(r, specs[r], zeros[r], timeout_s=5.0) for r in (1, 3)
            )
            for r in (0, 2):
                scene.call(r, specs[r], zeros[r])
            assert isinstance(one.error, CollectiveMismatchError)
            assert one.took_s <= MISMATCH_WITHIN_S
            assert str(list(specs[1].counts)) in str(one.error)
            assert str(list(specs[3].counts)) in str(one.error)
            assert isinstance(three.error, CollectiveMismatchError)

        scene.run(main)


def test_groups_of_groups_and_disjoint_ones_may_be_made_in_any_mixture() -> None:
    scene = Scene(6)

    async def main() -> None:
        evens, odds = await asyncio.gather(
            found(scene, (0, 2, 4), ranks=(0, 2, 4)), found(scene, (1, 3, 5), ranks=(1, 3, 5))
        )
        inner = new_group(2, 0, parent=evens)  # ranks of the parent: 4 and 0 of the world
        futures = [scene.call(r, inner, np.zeros(1, "int64")) for r in (0, 2, 4)]
        ended = await scene.all(futures)
        number = int(ended[0].array[0])
        assert scene.engine(4).groups.numbered(number).ranks == (4, 0)  # type: ignore[union-attr]
        await asyncio.gather(
            sums(scene, number, (4, 0)), sums(scene, odds, (1, 3, 5)), sums(scene, evens, (0, 2, 4))
        )
        across = await found(scene, (0, 1, 5))
        assert across > max(number, odds)
        await sums(scene, across, (0, 1, 5))

    scene.run(main)


def test_a_group_at_work_is_not_held_up_by_one_that_waits_on_the_same_link() -> None:
    scene = Scene(2)
    large = OpSpec("all_reduce", "float32", "sum", (300_000,))

    async def main() -> None:
        first, second = await found(scene, (0, 1)), await found(scene, (1, 0))
        waiting = scene.call(0, replace(large, group=first))
        for _ in range(20):
            await sums(scene, second, (0, 1))
            big = replace(large, group=second)
            for one in await scene.all(scene.call(r, big) for r in (0, 1)):
                assert one.error is None
        assert not waiting.done()
        last = await scene.call(1, replace(large, group=first))
        assert last.error is None
        assert (await waiting).error is None

    scene.run(main)


def test_frames_that_come_before_the_group_is_there_are_kept_for_it() -> None:
    # Rank 0 knows the group a while before rank 1 does, and begins at once.
    scene = Scene(2)

    async def main() -> None:
        scene.network.delay(scene.host(0), scene.host(1), 0.3, both=False)
        zeros = [np.zeros(1, "int64") for _ in range(2)]
        futures = [scene.call(r, new_group(0, 1), zeros[r]) for r in range(2)]
        first = await futures[0]
        number = int(first.array[0])
        assert not futures[1].done()
        early = scene.call(0, replace(ALL_REDUCE, group=number))
        assert (await futures[1]).error is None
        late = await scene.call(1, replace(ALL_REDUCE, group=number))
        assert late.error is None
        assert ((await early).array == 3).all()

    scene.run(main)


def test_deadlines_and_mismatches_of_a_group_stay_in_it() -> None:
    scene = Scene(3)

    async def main() -> None:
        number = await found(scene, (0, 2))
        in_group = replace(ALL_REDUCE, group=number)
        late = scene.call(0, in_group, timeout_s=1.0)
        await scene.sum_works()
        ended = await late
        assert isinstance(ended.error, CollectiveTimeoutError)
        assert ended.error.fields["group"] == number
        assert ended.error.fields["waiting_on"] == [2]
        assert f"group {number}" in str(ended.error)
        await asyncio.sleep(0.5)  # the verdict is on its way
        assert (await scene.call(2, in_group)).code == "timeout"
        await sums(scene, number, (0, 2))
        specs = {0: in_group, 2: replace(in_group, reduce_op="max")}
        for one in await scene.all(scene.call(r, spec) for r, spec in specs.items()):
            assert isinstance(one.error, CollectiveMismatchError)
            assert f"of group {number}" in str(one.error)
        await sums(scene, number, (0, 2))
        await scene.sum_works()

    scene.run(main)


def test_the_loss_of_a_rank_ends_its_groups_and_no_others() -> None:
    scene = Scene(4)

    async def main() -> None:
        without, with_it = await found(scene, (0, 1)), await found(scene, (1, 3))
        waiting = scene.call(1, replace(ALL_REDUCE, group=with_it))
        scene.trainer(3).die()
        ended = await waiting
        assert isinstance(ended.error, PeerLostError)
        assert ended.error.fields["rank"] == 3
        await sums(scene, without, (0, 1))
        for number in (0, with_it):
            again = await scene.call(1, replace(ALL_REDUCE, group=number))
            assert isinstance(again.error, PeerLostError)

    scene.run(main)


def test_a_goodbye_counts_by_the_calls_of_each_group() -> None:
    scene = Scene(3)

    async def main() -> None:
        number = await found(scene, (0, 1))
        await sums(scene, number, (0, 1))
        pending = scene.call(0, replace(ALL_REDUCE, group=number))
        scene.trainer(1).goodbye()
        ended = await pending
        assert isinstance(ended.error, PeerLostError)
        assert f"before operation 1 of group {number}" in str(ended.error)

    scene.run(main)


def test_one_group_is_made_after_the_other_and_the_number_of_groups_is_bounded() -> None:
    scene = Scene(2)

    async def main() -> None:
        zeros = [np.zeros(1, "int64") for _ in range(4)]
        first = scene.call(0, new_group(0, 1), zeros[0])
        second = await scene.call(0, new_group(1, 0), zeros[1])
        assert isinstance(second.error, InvalidArgumentError)
        theirs = [scene.call(1, new_group(*m), zeros[2 + i]) for i, m in enumerate([(0, 1)])]
        assert (await first).error is None
        assert (await theirs[0]).error is None
        refused = await scene.call(1, new_group(1, 0), zeros[3])
        assert isinstance(refused.error, CollectiveMismatchError)
        await scene.sum_works()
        for _ in range(MAX_GROUPS - 2):
            await found(scene, (0, 1))
        over = await scene.calls([new_group(0, 1)] * 2, array=np.zeros(1, "int64"))
        assert {one.code for one in over} <= {"invalid_argument", "mismatch"}
        await scene.sum_works()

    scene.run(main)
