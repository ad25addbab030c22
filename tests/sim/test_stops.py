"""Daemons that end at any moment leave nothing open."""

from __future__ import annotations

import asyncio

import pytest

from ringd.sim.world import REST_S
from tests.engine.scene import DELAY_S, Scene

MOMENTS = range(14)
"""In half ways on the wire: from the wish for a link until it stands."""


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("first", [0, 2])
def test_a_link_that_comes_to_be_while_both_ends_stop_is_closed(first: int, moment: int) -> None:
    scene = Scene(4)

    async def main() -> None:
        nodes = scene.cluster.nodes
        assert 2 not in scene.engine(0).links
        nodes[2].want_link(0)
        await asyncio.sleep((moment + 0.5) * DELAY_S)
        await nodes[first].stop()
        await asyncio.sleep(DELAY_S / 4)
        await scene.cluster.stop()
        await asyncio.sleep(REST_S)
        assert scene.network.open_channels() == []
        assert not scene.loop.timers()

    scene.run(main)


def test_one_of_these_moments_is_after_the_link_stands_and_one_before_it_is_dialled() -> None:
    seen = []
    for moment in (MOMENTS[0], MOMENTS[-1]):
        scene = Scene(4)

        async def main(scene: Scene = scene, moment: int = moment) -> None:
            scene.cluster.nodes[2].want_link(0)
            await asyncio.sleep((moment + 0.5) * DELAY_S)
            seen.append(2 in scene.engine(0).links)

        scene.run(main)
    assert seen == [False, True]
