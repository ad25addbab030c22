"""The judge of the simulation: which verdicts on messages it lets pass, and which not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ringd.errors import CollectiveTimeoutError
from ringd.sim.judging import Judge
from ringd.sim.scenario import Scenario

VICTIM, ASKER, OTHER = 0, 1, 2


def judge_of(fault: str) -> Judge:
    """Of a job of four ranks in which rank 0 is struck and all have made the call of step 0."""
    scenario = Scenario(1, n=4, fault=fault)
    scenario.fault.struck = True
    scenario.fault.victim, scenario.fault.other = VICTIM, 3
    scenario.fault.timeouts = (1.0,) * 4
    for rank in (ASKER, OTHER, 3):
        scenario.judge.enters(rank, 0)
    loop = scenario.world.loop
    loop.run_until_complete(asyncio.sleep(1.0))
    loop.close()
    return scenario.judge


def missed(**fields: Any) -> CollectiveTimeoutError:
    """A receive of ASKER that came to its deadline, by default rightly judged."""
    own = {"op": "recv", "rank": ASKER, "peer": VICTIM, "tag": 7, "link": None, "partial": False}
    told = {"verdict": "1.1", "case": "never entered", "culprits": [VICTIM]}
    return CollectiveTimeoutError("no message came", **{**own, **told, **fields})


@pytest.mark.parametrize(
    ("fault", "fields", "wrong"),
    [
        ("absent", {}, None),
        ("absent", {"culprits": [OTHER]}, "blames [2]"),
        ("absent", {"culprits": []}, "does not blame rank 0"),
        ("absent", {"peer": None, "culprits": []}, "blames nobody"),
        ("absent", {"case": "link down", "link": [0, 1]}, "calls it 'link down'"),
        ("absent", {"partial": True, "culprits": []}, "has no verdict"),
        ("absent", {"partial": True, "culprits": [0]}, "blames somebody"),
        ("absent", {"partial": True, "culprits": [], "rank": OTHER}, None),  # told by its peer
        ("coordinator dies", {"partial": True, "culprits": []}, None),
        ("silence", {"case": "daemon does not answer"}, None),
        ("silence", {"culprits": [OTHER]}, "blames [2]"),
        ("cut", {"case": "link down", "link": [3, 0], "culprits": [3]}, None),
    ],
)
def test_a_verdict_on_a_message(fault: str, fields: dict[str, Any], wrong: str | None) -> None:
    found = judge_of(fault).takes(ASKER, 0, missed(**fields))
    assert found is None if wrong is None else wrong in str(found)


def test_what_was_missed_before_excuses_its_own_channel_only() -> None:
    judge = judge_of("absent")
    judge.enters(ASKER, 1)
    assert judge.takes(ASKER, 0, missed()) is None
    assert judge.takes(ASKER, 1, missed(culprits=[OTHER])) is None
    other_tag = missed(culprits=[OTHER], tag=8)
    assert "does not blame rank 0" in str(judge.takes(ASKER, 1, other_tag))
