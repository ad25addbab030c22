"""Groups whose number was agreed on elsewhere."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ringd.errors import (
    PeerLostError,
)
from tests.engine.grouping import found, opened, sums
from tests.engine.scene import ALL_REDUCE, DELAY_S, Scene


def test_a_group_that_was_agreed_on_elsewhere_is_like_any_other() -> None:
    scene = Scene(4)

    async def main() -> None:
        opened(scene, 3, (3, 1), (1, 3))
        await sums(scene, 3, (3, 1))
        # Numbers that are agreed on here go on above it, on its members and with others.
        assert await found(scene, (0, 1, 2)) == 4
        assert await found(scene, (0, 2)) == 5
        opened(scene, 6, (0, 1, 2, 3), range(4))
        await sums(scene, 6, (0, 1, 2, 3))
        for rank in (1, 3):
            scene.engine(rank).groups.free(3)
        await scene.sum_works()

    scene.run(main)


def test_frames_for_a_group_that_is_not_open_yet_are_kept() -> None:
    scene = Scene(3)

    async def main() -> None:
        opened(scene, 1, (0, 1, 2), (0, 1))
        early = [scene.call(rank, replace(ALL_REDUCE, group=1)) for rank in (0, 1)]
        await asyncio.sleep(10 * DELAY_S)
        opened(scene, 1, (0, 1, 2), (2,))
        for one in await scene.all([*early, scene.call(2, replace(ALL_REDUCE, group=1))]):
            assert one.error is None
            assert (one.array == 6).all()

    scene.run(main)


@pytest.mark.parametrize(
    ("number", "ranks", "words"),
    [
        (2, [0, 0, 1], "different ranks"),
        (2, [1, 2], "ours among them"),
        (2, [0, 9], "different ranks"),
        ("2", [0, 1], "a number"),
        (2, "01", "ranks"),
        (2, [0, True], "ranks"),
        (0, [0, 1], "proposed 0"),
        (1, [0, 1], "proposed 1"),
        (2**31, [0, 1], "proposed"),
    ],
)
def test_what_is_no_group_is_refused(number: object, ranks: object, words: str) -> None:
    scene = Scene(3)

    async def main() -> None:
        opened(scene, 1, (0, 1, 2), range(3))
        error = scene.engine(0).groups.open(number, ranks)
        assert error is not None
        assert words in error.message
        await sums(scene, 1, (0, 1, 2))

    scene.run(main)


def test_a_group_that_is_opened_after_a_member_was_lost_is_over() -> None:
    scene = Scene(4)

    async def main() -> None:
        opened(scene, 1, (0, 1), (0, 1))
        scene.trainer(3).die()
        await asyncio.sleep(1.0)
        opened(scene, 2, (0, 2, 3), (0, 2))
        opened(scene, 3, (0, 1, 2), (0, 1, 2))
        ended = await scene.call(0, replace(ALL_REDUCE, group=2))
        assert isinstance(ended.error, PeerLostError)
        assert ended.error.rank == 3
        await sums(scene, 3, (0, 1, 2))

    scene.run(main)
