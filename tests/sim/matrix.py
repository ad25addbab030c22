"""What tests of faults share: a job for each victim, a strike in a phase, what must follow.

Calm weather, so that every bound is exact. The phases: the fault strikes before the call, in the
midst of it, or between a call that completed and the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ringd.errors import CollectiveTimeoutError, PeerLostError, RingdError
from ringd.sim.cluster import SimTrainer
from ringd.sim.invariants import disagreement, leftovers
from ringd.vocabulary import OpSpec
from tests.engine.scene import ALL_REDUCE, TICK_S, VERDICT_S, Ended, Scene

SIZES = (2, 3, 4, 5)
MOST_SIZES = (2, 3, 4, pytest.param(5, marks=pytest.mark.slow))
"""Of the tables that have every algorithm."""
PHASES = ("before", "amid", "after")
DEADLINE_S = 2.0
HEARTBEAT_S = 1.0
AMID_S = 0.004
"""When the fault strikes in the midst of a call: its first segments are under way."""
LARGE = replace(ALL_REDUCE, shape=(60_000,), algorithm="ring")
SMALL = replace(ALL_REDUCE, algorithm="exchange")
ALGORITHMS = ("ring", "tree", "direct", "exchange", "recursive_doubling", "chain")

Strike = Callable[[Scene, int], None]
Calls = list[asyncio.Future[Ended]]
Told = tuple[RingdError | None, dict[str, Any] | None]
"""The error of a reform, or its facts."""


def scene_of(n: int) -> Scene:
    return Scene(n, pipe_bytes=16 * 1024, segment_bytes=16 * 1024)


def each_victim(n: int, play: Callable[[Scene, int], Any]) -> None:
    """Run ``play`` once for each victim, each in a job of its own."""
    for victim in range(n):
        scene = scene_of(n)
        scene.run(lambda scene=scene, victim=victim: play(scene, victim))  # type: ignore[misc]


async def strike_in(
    phase: str, scene: Scene, victim: int, strike: Strike, spec: OpSpec, timeout_s: float
) -> tuple[Calls, float]:
    """All ranks call; the fault strikes in its phase. The calls, and when it struck."""
    if phase == "after":
        await scene.sum_works()
    if phase != "amid":
        strike(scene, victim)
    struck_at = scene.loop.time()
    calls = [scene.call(rank, spec, timeout_s=timeout_s) for rank in range(scene.n)]
    if phase == "amid":
        await asyncio.sleep(AMID_S)
        strike(scene, victim)
        struck_at = scene.loop.time()
    return calls, struck_at


async def but_the(victim: int, scene: Scene, calls: Calls) -> list[Ended]:
    """How the calls of the other ranks ended."""
    return await scene.all(call for rank, call in enumerate(calls) if rank != victim)


def one_verdict(ended: Sequence[Ended], within_s: float = VERDICT_S) -> dict[str, Any]:
    """All of these ended at their deadline, with one verdict: its fields."""
    for one in ended:
        assert isinstance(one.error, CollectiveTimeoutError), one.error
        assert DEADLINE_S - 0.001 <= one.took_s <= DEADLINE_S + TICK_S + within_s
        assert one.error.fields["partial"] is False, one.error
    errors = [one.error for one in ended if one.error is not None]
    assert disagreement(errors) is None
    return errors[0].fields


def link_named(ended: Sequence[Ended], ends: tuple[int, int]) -> dict[str, Any]:
    """Those that failed, if any did, blame the link between these ranks: fields of the verdict."""
    failed = [one for one in ended if one.error is not None]
    if not failed:  # not every algorithm uses every link
        return {}
    fields = one_verdict(failed)
    assert fields["case"] == "link down", fields
    assert set(fields["link"]) == set(ends)
    return fields


async def goes_on(scene: Scene) -> None:
    """The next call of the same epoch is an ordinary one, and nothing is left of the last."""
    await scene.sum_works()
    await scene.quiet()
    assert [leftovers(node.engine) for node in scene.cluster.nodes] == [[]] * scene.n


async def next_epoch_works(scene: Scene, restarted: int | None = None) -> None:
    """All come again, the victim's daemon anew if it crashed, and the second epoch works."""
    nodes, trainers = scene.cluster.nodes, scene.cluster.trainers
    for rank, trainer in enumerate(trainers):
        if rank != restarted:
            trainer.goodbye()
    if restarted is not None:
        nodes[restarted] = scene.cluster.make_node(restarted)
        await nodes[restarted].start(scene.loop.time() + 30)
    scene.cluster.trainers = [SimTrainer(node) for node in nodes]
    await asyncio.gather(*(trainer.attach(30.0) for trainer in scene.cluster.trainers))
    assert {node.engine.world.epoch for node in nodes} == {2}
    await goes_on(scene)


async def reform(scene: Scene, ranks: Sequence[int], timeout_s: float = 20.0) -> list[Told]:
    """All of ``ranks`` ask for the next epoch: what each was told."""
    futures: list[asyncio.Future[Told]] = []
    for rank in ranks:
        future: asyncio.Future[Told] = scene.loop.create_future()
        scene.cluster.nodes[rank].reform(
            scene.trainer(rank),
            1,
            timeout_s,
            lambda error, facts, future=future: future.set_result((error, facts)),  # type: ignore[misc]
        )
        futures.append(future)
    return list(await asyncio.gather(*futures))


def all_lost(
    ended: Sequence[Ended], victim: int, case: str, struck_at: float, within_s: float
) -> None:
    errors = [one.error for one in ended if one.error is not None]
    assert len(errors) == len(ended)
    for one in ended:
        assert isinstance(one.error, PeerLostError), one.error
        assert (one.error.fields["rank"], one.error.fields["culprits"]) == (victim, [victim])
        assert one.error.fields["case"] == case
        assert not one.error.fields["partial"]
        assert one.at - struck_at <= within_s
    assert disagreement(errors) is None
    assert len({error.fields["verdict"] for error in errors}) == 1
