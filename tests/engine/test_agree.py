"""agree: yes of all, and what a rank remembers of it for the next epoch (ADR 15)."""

from __future__ import annotations

import numpy as np
import pytest

from ringd.errors import InvalidArgumentError
from ringd.schedules.select import ONE_HOST
from ringd.vocabulary import OpSpec, agree_spec, check_spec
from tests.engine.scene import BARRIER, Ended, Scene

AGREE = agree_spec(0)


def say(scene: Scene, *flags: bool) -> list[object]:
    """Begin an agree on the first ranks, with what each says."""
    return [scene.call(r, AGREE, np.array([flag], "uint8")) for r, flag in enumerate(flags)]


@pytest.mark.parametrize("one_host", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7])
def test_it_is_true_where_all_say_so_and_nowhere_else(n: int, one_host: bool) -> None:
    scene = Scene(n)

    async def main() -> None:
        if one_host:
            for rank in range(n):
                scene.engine(rank).choose_by(ONE_HOST)
        for refuser in (None, *range(n)):
            flags = [rank != refuser for rank in range(n)]
            ended = await scene.all(say(scene, *flags))
            assert [one.code for one in ended] == ["ok"] * n
            assert [one.array[0] for one in ended] == [refuser is None] * n
            for rank in range(n):
                world = scene.engine(rank).world
                assert world.agreed == (world.next_seq - 1, refuser is None)
                assert world.agree_cut is None

    scene.run(main)


def test_nobody_passes_before_the_last_one_has_entered() -> None:
    scene = Scene(5)

    async def main() -> None:
        early = say(scene, True, True, True, True)
        await scene.quiet()
        assert not any(future.done() for future in early)
        late = scene.call(4, AGREE, np.array([False], "uint8"))
        assert [one.array[0] for one in await scene.all([*early, late])] == [0] * 5

    scene.run(main)


def test_another_call_is_a_mismatch_and_is_no_agreement_that_others_may_know() -> None:
    scene = Scene(3)

    async def main() -> None:
        ended = await scene.all([*say(scene, True, True), scene.call(2, BARRIER)])
        assert [one.code for one in ended] == ["mismatch"] * 3
        for one in ended:
            assert "called agree" in str(one.error)
            assert "called barrier" in str(one.error)
        assert [scene.engine(rank).world.agree_cut for rank in range(3)] == [None] * 3
        assert [one.array[0] for one in await scene.all(say(scene, True, True, True))] == [1] * 3

    scene.run(main)


def test_one_that_ran_out_of_time_is_remembered_until_a_later_one_completes() -> None:
    scene = Scene(3)

    async def main() -> None:
        early = [scene.call(r, AGREE, np.ones(1, "uint8"), timeout_s=0.5) for r in (0, 1)]
        assert [one.code for one in await scene.all(early)] == ["timeout"] * 2
        late = await scene.call(2, AGREE, np.ones(1, "uint8"))
        assert late.code == "timeout"
        worlds = [scene.engine(rank).world for rank in range(3)]
        assert [world.agree_cut for world in worlds] == [0, 0, None]  # rank 2 has not entered
        assert [world.first_cut for world in worlds] == [None] * 3  # the epoch stands
        await scene.all(say(scene, True, False, True))
        assert [world.agree_cut for world in worlds] == [None] * 3
        assert [world.agreed for world in worlds] == [(1, False)] * 3

    scene.run(main)


def test_how_far_a_rank_came_is_what_completed_and_what_the_end_of_the_epoch_cut_short() -> None:
    scene = Scene(3)

    async def main() -> None:
        done: list[Ended] = await scene.calls([BARRIER] * 3)
        assert [one.code for one in done] == ["ok"] * 3
        cut = [*say(scene, True, True), scene.call(0, BARRIER)]
        await scene.quiet()
        scene.trainer(2).die()
        assert {one.code for one in await scene.all(cut)} == {"peer_lost"}
        facts = [
            (w.last_done, w.first_cut, w.agreed, w.agree_cut)
            for w in (scene.engine(rank).world for rank in (0, 1))
        ]
        assert facts == [(0, 1, None, 1)] * 2
        world = scene.engine(0).world
        world.begin_epoch(9)
        assert (world.last_done, world.first_cut, world.agree_cut) == (-1, None, None)

    scene.run(main)


@pytest.mark.parametrize(
    "spec",
    [
        OpSpec("agree", "uint8", "min", (2,)),
        OpSpec("agree", "uint8", "sum", (1,)),
        OpSpec("agree", "float32", "min", (1,)),
        OpSpec("agree", "uint8", "min", (1,), deterministic=True),
    ],
)
def test_it_has_one_form(spec: OpSpec) -> None:
    check_spec(AGREE, 3)
    with pytest.raises(InvalidArgumentError, match="one form"):
        check_spec(spec, 3)
