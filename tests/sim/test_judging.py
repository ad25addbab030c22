"""The judge of the simulation: which verdicts on messages it lets pass, and which not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ringd.errors import CollectiveTimeoutError
from ringd.sim.cluster import SimTrainer
from ringd.sim.judging import Judge
from ringd.sim.scenario import Scenario

VICTIM, ASKER, OTHER = 0, 1, 2


def judge_of(fault: str, *, relay: int | None = None) -> Judge:
    """Of a job of four ranks in which rank 0 is struck and all have made the call of step 0; if
    that is a ``relay``, rank 0 has nothing sent yet."""
    scenario = Scenario(1, n=4, fault=fault)
    scenario.fault.struck = True
    scenario.fault.victim, scenario.fault.other = VICTIM, 3
    scenario.fault.timeouts = (1.0,) * 4
    scenario.judge._relay = relay
    for rank in (ASKER, OTHER, 3):
        scenario.judge.enters(rank, 0)

    async def a_second() -> None:
        cluster = scenario.fault.cluster
        cluster.trainers[:] = [SimTrainer(cluster.make_node(VICTIM))]
        scenario.fault.trainer.away = relay is not None
        await asyncio.sleep(1.0)

    loop = scenario.world.loop
    loop.run_until_complete(a_second())
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


def in_time(judge: Judge, **fields: Any) -> str | None:
    """What is wrong with a verdict on a barrier of OTHER's."""
    judge.enters(OTHER, 1)
    told = missed(op="barrier", rank=OTHER, **fields)
    return judge.takes(OTHER, 1, told)


@pytest.mark.parametrize(
    ("culprits", "wrong"),
    [([VICTIM], None), ([ASKER], "blames [1], who wait"), ([VICTIM, ASKER], "blames [1]")],
)
def test_a_verdict_on_a_call_goes_on_along_a_chain_of_messages(
    culprits: list[int], wrong: str | None
) -> None:
    judge = judge_of("chain", relay=0)
    found = in_time(judge, culprits=culprits, chain=[OTHER, ASKER])
    assert found is None if wrong is None else wrong in str(found)


@pytest.mark.parametrize("gave_up", [True, False])
@pytest.mark.parametrize("case", ["never entered", "deadlock"])
def test_who_gave_a_message_up_may_be_waited_for_by_a_chain_of_others(
    case: str, gave_up: bool
) -> None:
    judge = judge_of("chain", relay=0)
    if gave_up:
        assert judge.takes(ASKER, 0, missed()) is None
    judge._entered[1] = dict.fromkeys((ASKER, OTHER), 0.0)
    in_time(judge, case=case, culprits=[ASKER], chain=[OTHER, 3])
    assert (judge.judged([1]) is None) == gave_up
