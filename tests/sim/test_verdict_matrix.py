"""Each fault, at each rank, in each phase of an operation: who is named, when, and what follows."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest

from ringd.engine.endings import ASK_S
from ringd.engine.endings import VERDICT_S as PATIENCE_S
from ringd.errors import CollectiveTimeoutError
from ringd.rendezvous.bounds import DEAD_AFTER_S
from ringd.rendezvous.inquiries import INQUIRY_S
from ringd.transport.memory import Death
from ringd.vocabulary import OpSpec
from tests.engine.scene import DELAY_S, TICK_S, Scene
from tests.sim.matrix import (
    ALGORITHMS,
    DEADLINE_S,
    HEARTBEAT_S,
    LARGE,
    PHASES,
    SIZES,
    SMALL,
    all_lost,
    but_the,
    each_victim,
    goes_on,
    link_named,
    next_epoch_works,
    one_verdict,
    strike_in,
)

# Trainers


@pytest.mark.parametrize("state", ["running", "stopped"])
@pytest.mark.parametrize("spec", [SMALL, LARGE])
@pytest.mark.parametrize("n", SIZES)
def test_a_trainer_that_never_enters_is_named_with_what_it_does(
    n: int, spec: OpSpec, state: Any
) -> None:
    case = "trainer stopped" if state == "stopped" else "never entered"

    async def play(scene: Scene, victim: int) -> None:
        await scene.sum_works()
        scene.trainer(victim).state = state
        others = [rank for rank in range(n) if rank != victim]
        calls = [scene.call(rank, spec, timeout_s=DEADLINE_S) for rank in others]
        fields = one_verdict(await scene.all(calls))
        assert (fields["case"], fields["culprits"]) == (case, [victim])
        assert fields["stacks"] == (
            {} if state == "stopped" else {str(victim): ["train.py:1 in main"]}
        )
        scene.trainer(victim).state = "running"
        late = await scene.call(victim, spec, timeout_s=DEADLINE_S)
        assert late.took_s == 0
        assert late.error is not None
        assert late.error.fields["verdict"] == fields["verdict"]
        assert f" Rank {victim} had not made this call when it ended" in str(late.error)
        await goes_on(scene)

    each_victim(n, play)


@pytest.mark.parametrize("n", [3, 4, 5])
def test_two_trainers_that_never_enter_are_both_named(n: int) -> None:
    async def play(scene: Scene, victim: int) -> None:
        absent = sorted({victim, (victim + 1) % n})
        others = [rank for rank in range(n) if rank not in absent]
        calls = [scene.call(rank, LARGE, timeout_s=DEADLINE_S) for rank in others]
        fields = one_verdict(await scene.all(calls))
        assert (fields["case"], fields["culprits"]) == ("never entered", absent)

    each_victim(n, play)


# Daemons


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("n", SIZES)
def test_a_stalled_daemon_is_named_at_the_deadline(n: int, phase: str) -> None:
    async def play(scene: Scene, victim: int) -> None:
        def stall(scene: Scene, victim: int) -> None:
            scene.network.stall(scene.host(victim))

        calls, _ = await strike_in(phase, scene, victim, stall, LARGE, DEADLINE_S)
        others = await but_the(victim, scene, calls)
        fields = one_verdict(others, within_s=INQUIRY_S + 2 * DELAY_S)
        assert (fields["case"], fields["culprits"]) == ("daemon does not answer", [victim])
        scene.network.resume(scene.host(victim))
        assert (await calls[victim]).code == "timeout"
        await goes_on(scene)

    each_victim(n, play)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("n", SIZES)
def test_a_daemon_stalled_for_longer_than_the_limit_is_lost(n: int, phase: str) -> None:
    async def play(scene: Scene, victim: int) -> None:
        def stall(scene: Scene, victim: int) -> None:
            scene.network.stall(scene.host(victim))

        calls, struck_at = await strike_in(phase, scene, victim, stall, LARGE, 60.0)
        others = await but_the(victim, scene, calls)
        all_lost(others, victim, "daemon lost", struck_at, DEAD_AFTER_S + HEARTBEAT_S)

    each_victim(n, play)


CRASHES: dict[Death, float] = {
    "reset": 3 * DELAY_S,
    "eof": 3 * DELAY_S,
    "silence": DEAD_AFTER_S + HEARTBEAT_S,
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("how", CRASHES)
@pytest.mark.parametrize("n", SIZES)
def test_a_crashed_daemon_is_named_by_all_and_the_next_epoch_works(
    n: int, how: Death, phase: str
) -> None:
    async def play(scene: Scene, victim: int) -> None:
        def crash(scene: Scene, victim: int) -> None:
            scene.network.crash(scene.host(victim), how)

        calls, struck_at = await strike_in(phase, scene, victim, crash, LARGE, 60.0)
        others = await but_the(victim, scene, calls)
        all_lost(others, victim, "daemon lost", struck_at, CRASHES[how])
        await next_epoch_works(scene, restarted=victim)

    each_victim(n, play)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("n", SIZES)
def test_a_trainer_that_dies_is_named_by_all_and_the_next_epoch_works(n: int, phase: str) -> None:
    async def play(scene: Scene, victim: int) -> None:
        def die(scene: Scene, victim: int) -> None:
            scene.trainer(victim).die()

        calls, struck_at = await strike_in(phase, scene, victim, die, LARGE, 60.0)
        others = await but_the(victim, scene, calls)
        all_lost(others, victim, "trainer died", struck_at, 3 * DELAY_S)
        await next_epoch_works(scene, restarted=None)

    each_victim(n, play)


# Links


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("n", SIZES)
def test_a_cut_link_is_named_and_no_rank_is_called_absent(
    n: int, algorithm: str, phase: str, both: bool
) -> None:
    spec = replace(LARGE, algorithm=algorithm)

    async def play(scene: Scene, victim: int) -> None:
        ends = (victim, (victim + 1) % n)
        source, target = map(scene.host, ends)

        def cut(scene: Scene, victim: int) -> None:
            scene.network.cut(source, target, both=both)

        calls, _ = await strike_in(phase, scene, victim, cut, spec, DEADLINE_S)
        named = link_named(await scene.all(calls), ends)
        assert not named or named["culprits"] == named["link"][:1]
        scene.network.heal(source, target)
        await scene.quiet()
        await goes_on(scene)
        assert named or algorithm != "ring" or n == 2

    each_victim(n, play)


@pytest.mark.parametrize("silent", [True, False])
@pytest.mark.parametrize("phase", ["before", "amid"])
@pytest.mark.parametrize("n", SIZES)
def test_a_link_that_can_not_be_made_anew_is_named_by_the_address_that_is_dialled(
    n: int, phase: str, silent: bool
) -> None:
    async def play(scene: Scene, victim: int) -> None:
        dialler, dialled = sorted((victim, (victim + 1) % n))
        source, target = map(scene.host, (dialler, dialled))
        address = scene.engine(dialler).links[dialled].connection.channel.peer

        def strike(scene: Scene, victim: int) -> None:
            scene.network.reset((source, target))
            if silent:
                scene.network.cut(source, target)
            else:
                scene.network.refuse(target, address.port)

        calls, _ = await strike_in(phase, scene, victim, strike, LARGE, DEADLINE_S)
        ended = await scene.all(calls)
        fields = one_verdict([one for one in ended if one.error is not None])
        assert (fields["case"], fields["culprits"]) == ("link down", [dialled])
        assert fields["link"] == [dialled, dialler]
        why = "no answer" if silent else f"ConnectionRefusedError: .*{address}"
        said = f"rank {dialler} can't reach rank {dialled} at {address}: {why}"
        assert re.search(said, str(ended[dialler].error)), ended[dialler].error
        scene.network.lift()
        await asyncio.sleep(2.0)  # longer than the pause between two attempts
        await goes_on(scene)

    each_victim(n, play)


@pytest.mark.parametrize("phase", ["before", "amid"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("n", SIZES)
def test_a_slow_link_is_named_with_its_rate(n: int, algorithm: str, phase: str) -> None:
    spec = replace(LARGE, algorithm=algorithm, shape=(200_000,))

    async def play(scene: Scene, victim: int) -> None:
        ends = [victim, (victim + 1) % n]
        source, target = map(scene.host, ends)

        def slow(scene: Scene, victim: int) -> None:
            scene.network.delay(source, target, 0.15, both=False)

        calls, _ = await strike_in(phase, scene, victim, slow, spec, DEADLINE_S)
        failed = [one for one in await scene.all(calls) if one.error is not None]
        if failed:
            fields = one_verdict(failed)
            assert (fields["case"], sorted(fields["link"])) == ("slow link", sorted(ends))
            assert "MB/s" in str(failed[0].error)
            assert "raise timeout_s" in str(failed[0].error)
        scene.network.delay(source, target, 0.0, both=False)
        await scene.quiet()
        await goes_on(scene)
        assert failed or algorithm != "ring"

    each_victim(n, play)


# The coordinator


@pytest.mark.parametrize("n", [3, 4, 5])
def test_a_rank_without_the_coordinator_names_the_absent_one_too(n: int) -> None:
    async def play(scene: Scene, victim: int) -> None:
        for cut_off in (rank for rank in range(n) if rank != victim):
            scene.network.cut(scene.host(cut_off), "rendezvous")
            others = [rank for rank in range(n) if rank != victim]
            calls = {rank: scene.call(rank, LARGE, timeout_s=DEADLINE_S) for rank in others}
            alone = await calls.pop(cut_off)
            fields = one_verdict(await scene.all(calls.values()), within_s=INQUIRY_S + 2 * DELAY_S)
            assert fields["culprits"] == sorted([victim, cut_off])
            assert alone.error is not None
            told = alone.error.fields
            if told["partial"]:
                assert told["culprits"] == [victim]
            else:  # it asked its peers, who had the verdict
                assert told["verdict"] == fields["verdict"]
            assert alone.took_s <= DEADLINE_S + TICK_S + PATIENCE_S + ASK_S
            scene.network.heal(scene.host(cut_off), "rendezvous")
            assert (await scene.call(victim, LARGE)).took_s == 0
            await goes_on(scene)

    each_victim(n, play)


@pytest.mark.parametrize("gone", ["stopped", "silent"])
@pytest.mark.parametrize("spec", [SMALL, LARGE])
@pytest.mark.parametrize("n", SIZES)
def test_without_a_coordinator_every_rank_names_the_absent_one_from_its_own_view(
    n: int, spec: OpSpec, gone: str
) -> None:
    async def play(scene: Scene, victim: int) -> None:
        if gone == "stopped":
            await scene.cluster.stop_rendezvous()
            await scene.quiet()
        else:
            for rank in range(n):
                scene.network.cut(scene.host(rank), "rendezvous")
        others = [rank for rank in range(n) if rank != victim]
        calls = [scene.call(rank, spec, timeout_s=DEADLINE_S) for rank in others]
        for one in await scene.all(calls):
            assert isinstance(one.error, CollectiveTimeoutError)
            assert one.error.fields["partial"] is True
            assert one.error.fields["culprits"] == [victim], one.error
            assert one.took_s <= DEADLINE_S + 0.25
        await asyncio.sleep(2 * DELAY_S)
        late = await scene.call(victim, spec)
        assert (late.code, late.took_s) == ("timeout", 0)
        for rank in range(n):
            scene.network.heal(scene.host(rank), "rendezvous")
        await goes_on(scene)

    each_victim(n, play)
