"""The launcher waits for the verdict on a rank whose trainer it saw end first."""

from __future__ import annotations

from typing import Any

import pytest

from ringd.launch.run import _told_lost
from ringd.sim.clock import VirtualLoop, run

LOST = {"epoch": 1, "rank": 2, "case": "trainer died"}


def status(running: list[int], *verdicts: dict[str, Any], epoch: int = 1) -> dict[str, Any]:
    return {"epoch": epoch, "running": running, "verdicts": list(verdicts)}


@pytest.mark.parametrize(
    ("told", "lost"),
    [
        ([status([0, 1, 2]), status([0, 1, 2]), status([], LOST)], LOST),  # the daemon is later
        ([status([], LOST)], LOST),
        ([status([0, 1])], None),  # it had left
        ([status([0, 1, 2], LOST, epoch=2), status([0, 1], LOST, epoch=2)], None),  # an older one
        ([{}], None),  # nobody says it
    ],
)
def test_it_asks_until_the_rank_is_judged_or_in_no_epoch(
    told: list[dict[str, Any]], lost: dict[str, Any] | None
) -> None:
    left = iter(told)

    async def tell() -> dict[str, Any]:
        return next(left)

    assert run(_told_lost(2, tell), loop=VirtualLoop(start_s=0.0)) == lost
    assert list(left) == []
