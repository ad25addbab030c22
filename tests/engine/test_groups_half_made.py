"""Groups whose making failed on some members: they are over on the others, and disturb none."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from ringd.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    InvalidArgumentError,
    PeerLostError,
)
from ringd.vocabulary import OpSpec
from tests.engine.grouping import MISMATCH_WITHIN_S, found, new_group, sums
from tests.engine.mail_scene import MailScene, message
from tests.engine.scene import ALL_REDUCE, BARRIER, Scene


def test_a_group_that_is_made_on_some_members_only_is_void_on_them_too() -> None:
    scene = Scene(4)

    async def main() -> None:
        spec = new_group(0, 1, 2)
        futures = [scene.call(r, spec, np.zeros(1, "int64"), timeout_s=10.0) for r in range(3)]
        refusal = InvalidArgumentError("rank 99 is none")
        scene.engine(3).endings.refuse(OpSpec("new_group", "", "", ()), refusal)
        ended = await scene.all(futures)
        await asyncio.sleep(0.5)
        for rank, one in enumerate(ended):
            if one.error is None:  # it had its group before it could know
                number = int(one.array[0])
                call = await scene.call(rank, replace(ALL_REDUCE, group=number), np.zeros(5, "f4"))
                one = call
            assert isinstance(one.error, CollectiveMismatchError), (rank, one)
            assert one.took_s <= MISMATCH_WITHIN_S

    scene.run(main)


OVER = {
    "a rank of the parent dies": (PeerLostError, 0.1),
    "a rank of the parent leaves": (PeerLostError, 0.1),
    "the deadline passes": (CollectiveTimeoutError, 0.6),
}


@pytest.mark.parametrize("how", OVER)
def test_a_group_that_its_making_left_to_some_members_is_over_on_them(how: str) -> None:
    error, within_s = OVER[how]
    scene = Scene(4)

    async def main() -> None:
        old = await found(scene, (0, 1, 2))
        await sums(scene, old, (0, 1, 2))
        scene.network.delay(scene.host(0), scene.host(2), 60.0, both=False)
        spec, limit_s = new_group(0, 1, 2), 0.5 if error is CollectiveTimeoutError else 60.0
        zero, one, two = [
            scene.call(r, spec, np.zeros(1, "int64"), timeout_s=limit_s) for r in range(3)
        ]
        made = await scene.all((zero, one))
        assert [ended.error for ended in made] == [None, None]
        spec = replace(ALL_REDUCE, group=int(made[0].array[0]))
        waiting = scene.call(0, spec)
        if "dies" in how:
            scene.trainer(3).die()
        elif "leaves" in how:
            scene.trainer(3).goodbye()
        ended = [await two, await waiting, await scene.call(1, spec)]
        for call in ended:
            assert type(call.error) is error, call.error
            assert call.took_s <= within_s
        for call in ended[1:]:
            assert "failed on other ranks" in str(call.error)
        scene.network.delay(scene.host(0), scene.host(2), 0.0, both=False)
        await sums(scene, old, (0, 1, 2))  # what was made before goes on

    scene.run(main)


@pytest.mark.parametrize("early", [True, False])
def test_what_comes_for_a_group_that_failed_here_does_not_meet_another_of_its_number(
    early: bool,
) -> None:
    scene = MailScene(4)

    async def main() -> None:
        await scene.passes(0, 2)  # over a link that is no ring neighbour's
        scene.network.delay(scene.host(0), scene.host(2), 5.0, both=False)
        spec = new_group(0, 1, 2)
        calls = [scene.call(r, spec, np.zeros(1, "int64"), timeout_s=0.5) for r in range(4)]
        made = await calls[0]
        assert made.error is None
        number = int(made.array[0])
        # What rank 0 sends to the group is under way when that turns out to have failed on rank 2.
        scene.call(0, replace(ALL_REDUCE, algorithm="exchange", group=number), timeout_s=0.1)
        large = scene.send(0, 2, message(100_000, sender=0), group=number)
        assert isinstance((await calls[2]).error, CollectiveTimeoutError)
        scene.network.delay(scene.host(0), scene.host(2), 0.0, both=False)
        assert isinstance((await large).error, CollectiveTimeoutError)
        if early:
            await asyncio.sleep(10.0)
        assert await found(scene, (2, 3)) == number
        receive = scene.recv_any(3, 5, group=number)
        await asyncio.sleep(10.0)
        barrier = scene.call(2, replace(BARRIER, group=number))
        await asyncio.sleep(1.0)
        for ended in await scene.all((barrier, scene.call(3, replace(BARRIER, group=number)))):
            assert ended.error is None, ended.error
        assert (await scene.send(2, 1, message(5, sender=2), group=number)).error is None
        assert (await receive).error is None
        assert scene.engine(2).router.early.held_bytes == 0
        assert scene.engine(2).mail.parked_bytes == 0
        await sums(scene, await found(scene, (0, 2, 3)), (0, 2, 3))

    scene.run(main)
