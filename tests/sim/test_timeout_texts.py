"""A rank never makes the call: what each of the others is told, word by word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from ringd.errors import CollectiveTimeoutError
from ringd.sim.invariants import disagreement
from ringd.vocabulary import OpSpec
from tests.engine.scene import ALL_REDUCE, TICK_S, VERDICT_S, Ended, Scene

DEADLINE_S = 2.0
ABSENT = 3
COUNT = 60_000
PART_BYTES = 4 * COUNT // 5
"""What a step of the ring moves: each of five ranks has a fifth."""
WORLD = tuple(range(5))
TEXT = re.compile(
    r"all_reduce \(operation (?P<seq>\d+) of (?:the world|group (?P<group>\d+)), "
    r"epoch (?P<epoch>\d+)\) "
    r"ended at its deadline of 2 s \(timeout_s of the call\): rank (?P<missing>\d+) never entered "
    r"it; .*"
    r"Rank (?P<rank>\d+) had (?P<done>\d+) of (?P<total>\d+) bytes after (?P<elapsed>\d+\.\d+) s\b"
)


async def group_of(scene: Scene, members: Sequence[int]) -> int:
    """The number of a new group."""
    spec = OpSpec("new_group", "int64", "max", (1,), counts=tuple(members))
    made = await scene.all(scene.call(r, spec, np.zeros(1, "int64")) for r in range(scene.n))
    return int(made[members[0]].array[0])


def told(one: Ended) -> dict[str, str]:
    """The facts in the text of a timeout."""
    assert isinstance(one.error, CollectiveTimeoutError), one.error
    found = TEXT.search(str(one.error))
    assert found is not None, str(one.error)
    return found.groupdict()


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("members", [WORLD, (6, 3, 0, 5, 1), (5, 0, 1, 6, 3)])
@pytest.mark.parametrize("algorithm", ["ring", "tree", "direct", "exchange"])
def test_t3_every_survivors_text_has_all_facts_and_the_same_culprit(
    algorithm: str, members: tuple[int, ...], before: int
) -> None:
    scene = Scene(max(members) + 1)

    async def main() -> None:
        number = 0 if members == WORLD else await group_of(scene, members)
        spec = replace(ALL_REDUCE, algorithm=algorithm, shape=(COUNT,), group=number)
        for _ in range(before):
            ended = await scene.all(scene.call(rank, spec) for rank in members)
            assert [one.code for one in ended] == ["ok"] * 5
        others = [rank for rank in members if rank != ABSENT]
        ended = await scene.all(scene.call(rank, spec, timeout_s=DEADLINE_S) for rank in others)
        assert disagreement([one.error for one in ended if one.error is not None]) is None
        for rank, one in zip(others, ended, strict=True):
            text, fields = told(one), one.error.fields  # type: ignore[union-attr]
            assert text["rank"] == str(rank)
            assert text["missing"] == str(ABSENT)
            assert text["group"] == (str(number) if number else None)  # the world goes unnamed
            assert (text["epoch"], text["seq"]) == ("1", str(before))
            assert DEADLINE_S - 0.01 <= float(text["elapsed"]) <= DEADLINE_S + TICK_S + VERDICT_S
            assert 0 <= int(text["done"]) < int(text["total"])
            assert (fields["rank"], fields["culprits"], fields["group"], fields["seq"]) == (
                (rank, [ABSENT], number, before)
            )
            assert [str(fields[key]) for key in ("bytes_done", "bytes_total")] == (
                [text["done"], text["total"]]
            )
            assert one.took_s <= DEADLINE_S + TICK_S + VERDICT_S

    scene.run(main)


@pytest.mark.parametrize("members", [WORLD, (6, 3, 0, 5, 1)])
def test_t3_in_a_ring_each_has_what_its_distance_from_the_absent_one_let_through(
    members: tuple[int, ...],
) -> None:
    """Only its right neighbour waits for it; the k-th to its right got k - 1 parts."""
    scene = Scene(max(members) + 1)

    async def main() -> None:
        number = 0 if members == WORLD else await group_of(scene, members)
        spec = replace(ALL_REDUCE, algorithm="ring", shape=(COUNT,), group=number)
        at = members.index(ABSENT)
        to_the_right = [members[(at + k) % 5] for k in range(1, 5)]
        calls = [scene.call(rank, spec, timeout_s=DEADLINE_S) for rank in to_the_right]
        for k, one in enumerate(await scene.all(calls)):
            text = told(one)
            assert (int(text["done"]), int(text["total"])) == (k * PART_BYTES, 8 * PART_BYTES)

    scene.run(main)
