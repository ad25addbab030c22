"""The rendezvous is restarted while the job runs: calls go on, and verdicts come as before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from ringd.errors import CollectiveTimeoutError, PeerLostError, RendezvousError
from ringd.rendezvous.bounds import DEAD_AFTER_S
from ringd.rendezvous.recovery import NOT_BACK
from ringd.sim.cluster import RENDEZVOUS_AT, SimTrainer
from ringd.sim.invariants import disagreement
from ringd.transport.memory import Death
from ringd.vocabulary import OpSpec
from tests.engine.scene import ALL_REDUCE, DELAY_S, TICK_S, VERDICT_S, Ended, Scene
from tests.sim.matrix import but_the, goes_on, next_epoch_works, reform

SIZES = [2, 3, 4, 5, 7]
LARGE = replace(ALL_REDUCE, shape=(60_000,), algorithm="ring")
SMALL = replace(ALL_REDUCE, algorithm="exchange")
DEADLINE_S = 2.0
HEARTBEAT_S = 1.0
BACK_S = 0.5
"""Until every daemon is back at a rendezvous that was down for a moment: pauses begin at 50 ms."""

Play = Callable[[Scene], Coroutine[Any, Any, None]]


def in_job(n: int, play: Play) -> None:
    scene = Scene(n, pipe_bytes=16 * 1024, segment_bytes=16 * 1024)
    scene.run(lambda: play(scene))


def connected(scene: Scene) -> list[bool]:
    return [node.in_reach() for node in scene.cluster.nodes]


async def restart(scene: Scene, down_s: float = 0.0) -> None:
    await scene.cluster.kill_rendezvous()
    await asyncio.sleep(down_s)
    await scene.cluster.start_rendezvous()


async def back(scene: Scene) -> None:
    await asyncio.sleep(BACK_S)
    assert all(connected(scene))


def one_loss(ended: list[Ended], victim: int, case: str) -> str:
    """All have one verdict that names the victim: its id."""
    errors = [one.error for one in ended if one.error is not None]
    assert len(errors) == len(ended)
    for error in errors:
        assert isinstance(error, PeerLostError), error
        assert (error.fields["rank"], error.fields["case"]) == (victim, case), error
        assert error.fields["partial"] is False
    assert disagreement(errors) is None
    return str(errors[0].fields["verdict"])


@pytest.mark.parametrize("down_s", [0.0, 0.3, 2.0, 30.0])
@pytest.mark.parametrize("spec", [SMALL, LARGE])
@pytest.mark.parametrize("n", SIZES)
def test_no_call_fails_while_the_rendezvous_is_away_and_it_comes_back_to_the_same_epoch(
    n: int, spec: Any, down_s: float
) -> None:
    async def play(scene: Scene) -> None:
        calls = [scene.call(rank, spec) for rank in range(n)]
        await asyncio.sleep(0.002)
        restarting = asyncio.create_task(restart(scene, down_s))
        for one in await scene.all(calls):
            assert one.error is None, one.error
        for _ in range(3):
            await scene.sum_works()
        await restarting
        await asyncio.sleep(BACK_S + 2.0)  # the longest pause between attempts
        assert all(connected(scene))
        await goes_on(scene)
        assert {node.engine.world.epoch for node in scene.cluster.nodes} == {1}
        await next_epoch_works(scene)

    in_job(n, play)


@pytest.mark.parametrize("gone_after_s", [0.0, DELAY_S / 2, 1.5 * DELAY_S])
@pytest.mark.parametrize("down_s", [0.0, 1.0])
def test_a_link_that_was_asked_for_is_made_though_the_request_was_lost_with_the_rendezvous(
    down_s: float, gone_after_s: float
) -> None:
    """The lower rank dials, and the higher one asks it to through the rendezvous."""
    send = OpSpec("send", "float32", "", (5,), root=0)
    recv = OpSpec("recv", "float32", "", (5,), root=2)

    async def play(scene: Scene) -> None:
        assert 0 not in scene.engine(2).links, "they are no neighbours in the ring of four"
        sending = scene.call(2, send, local=7)
        await asyncio.sleep(gone_after_s)
        await restart(scene, down_s)
        receiving = scene.call(0, recv, local=7)
        for one in await scene.all([sending, receiving]):
            assert one.error is None, one.error
            assert one.took_s <= down_s + BACK_S + 2.0
            assert (one.array == 3).all()

    in_job(4, play)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_after_the_restart_a_loss_has_one_verdict_with_an_id_above_the_last(n: int) -> None:
    async def play(scene: Scene) -> None:
        # A timeout first: verdict 1.1.
        absent = await scene.all(
            scene.call(rank, SMALL, timeout_s=DEADLINE_S) for rank in range(1, n)
        )
        assert {one.error.fields["verdict"] for one in absent if one.error} == {"1.1"}
        assert (await scene.call(0, SMALL)).code == "timeout"
        await restart(scene)
        await back(scene)
        await scene.sum_works()
        calls = [scene.call(rank, LARGE) for rank in range(1, n)]
        await asyncio.sleep(0.004)
        scene.trainer(0).die()
        assert one_loss(await scene.all(calls), 0, "trainer died") == "1.2"

    in_job(n, play)


@pytest.mark.parametrize("when", ["before", "while", "after"])
@pytest.mark.parametrize("how", ["reset", "silence"])
@pytest.mark.parametrize(("n", "victim"), [(n, v) for n in (2, 3, 4, 5) for v in range(n)])
def test_a_daemon_that_dies_around_the_restart_is_named_by_all_with_a_verdict(
    n: int, victim: int, how: Death, when: str
) -> None:
    async def play(scene: Scene) -> None:
        calls = [scene.call(rank, LARGE, timeout_s=60.0) for rank in range(n)]
        await asyncio.sleep(0.004)
        if when == "before":
            scene.network.crash(scene.host(victim), how)
        await scene.cluster.kill_rendezvous()
        if when == "while":
            scene.network.crash(scene.host(victim), how)
        await asyncio.sleep(0.2)
        await scene.cluster.start_rendezvous()
        if when == "after":
            assert all(one.error is None for one in await scene.all(calls))
            await asyncio.sleep(BACK_S)
            calls = [scene.call(rank, LARGE, timeout_s=60.0) for rank in range(n)]
            await asyncio.sleep(0.004)
            scene.network.crash(scene.host(victim), how)
        begun = scene.loop.time()
        others = [calls[rank] for rank in range(n) if rank != victim]
        ended = await scene.all(others)
        detail = {one.error.fields["detail"] for one in ended if one.error is not None}
        one_loss(ended, victim, "daemon lost")
        if when != "after":
            assert detail == {NOT_BACK}
        assert scene.loop.time() - begun <= BACK_S + DEAD_AFTER_S + HEARTBEAT_S
        await next_epoch_works(scene, restarted=victim)

    in_job(n, play)


@pytest.mark.parametrize(("n", "victim"), [(n, v) for n in (2, 3, 5) for v in range(n)])
def test_a_trainer_that_dies_while_the_rendezvous_is_away_is_named_when_it_is_back(
    n: int, victim: int
) -> None:
    async def play(scene: Scene) -> None:
        calls = [scene.call(rank, LARGE, timeout_s=60.0) for rank in range(n)]
        await asyncio.sleep(0.004)
        await scene.cluster.kill_rendezvous()
        scene.trainer(victim).die()
        await asyncio.sleep(0.5)
        await scene.cluster.start_rendezvous()
        ended = await but_the(victim, scene, calls)
        one_loss(ended, victim, "trainer died")
        await next_epoch_works(scene)

    in_job(n, play)


@pytest.mark.parametrize("n", [3, 5])
def test_a_goodbye_that_was_said_before_the_restart_is_still_known_after_it(n: int) -> None:
    async def play(scene: Scene) -> None:
        await scene.sum_works()
        scene.trainer(0).goodbye()
        await restart(scene)
        await back(scene)
        ended = await scene.all(scene.call(rank) for rank in range(1, n))
        for one in ended:
            assert isinstance(one.error, PeerLostError)
            assert "goodbye" in str(one.error)
            assert one.took_s == 0

    in_job(n, play)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_timeout_while_it_is_away_is_partial_and_names_the_absent_one(n: int) -> None:
    async def play(scene: Scene) -> None:
        await scene.cluster.kill_rendezvous()
        ended = await scene.all(
            scene.call(rank, SMALL, timeout_s=DEADLINE_S) for rank in range(1, n)
        )
        for one in ended:
            assert isinstance(one.error, CollectiveTimeoutError)
            assert (one.error.fields["partial"], one.error.fields["culprits"]) == (True, [0])
            assert one.took_s <= DEADLINE_S + 0.25
        await scene.cluster.start_rendezvous()
        await asyncio.sleep(2.0 + BACK_S)
        assert all(connected(scene))
        late = await scene.call(0, SMALL)
        assert (late.code, late.took_s) == ("timeout", 0)
        await goes_on(scene)
        # And with it back a timeout has a verdict again.
        again = await scene.all(
            scene.call(rank, SMALL, timeout_s=DEADLINE_S) for rank in range(1, n)
        )
        for one in again:
            assert one.error is not None
            assert not one.error.fields["partial"]
            assert one.took_s <= DEADLINE_S + TICK_S + VERDICT_S

    in_job(n, play)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_trainers_that_attach_while_it_is_away_wait_for_it(n: int) -> None:
    async def play(scene: Scene) -> None:
        for trainer in scene.cluster.trainers:
            trainer.goodbye()
        await scene.quiet()
        await scene.cluster.kill_rendezvous()
        await asyncio.sleep(0.1)
        scene.cluster.trainers = [SimTrainer(node) for node in scene.cluster.nodes]
        waiting = asyncio.gather(*(t.attach(30.0) for t in scene.cluster.trainers))
        await asyncio.sleep(5.0)
        assert not waiting.done()
        await scene.cluster.start_rendezvous()
        await waiting
        assert [t.epoch for t in scene.cluster.trainers] == [2] * n
        await goes_on(scene)

    in_job(n, play)


def test_a_trainer_that_waited_in_vain_is_told_that_the_rendezvous_is_out_of_reach() -> None:
    async def play(scene: Scene) -> None:
        for trainer in scene.cluster.trainers:
            trainer.goodbye()
        await scene.cluster.kill_rendezvous()
        await asyncio.sleep(0.1)
        begun = scene.loop.time()
        again = SimTrainer(scene.cluster.nodes[1])
        with pytest.raises(RendezvousError, match="rendezvous at rendezvous:7000 is out of reach"):
            await again.attach(4.0)
        assert scene.loop.time() - begun == pytest.approx(4.0)
        await scene.cluster.start_rendezvous()
        await asyncio.sleep(2.5)
        scene.cluster.trainers = [SimTrainer(node) for node in scene.cluster.nodes]
        await asyncio.gather(*(t.attach(30.0) for t in scene.cluster.trainers))
        await goes_on(scene)

    in_job(3, play)


@pytest.mark.parametrize("towards", ["the daemon", "the rendezvous"])
@pytest.mark.parametrize("n", [3, 4])
def test_silence_one_way_is_known_to_both_sides_within_the_limit(n: int, towards: str) -> None:
    async def play(scene: Scene) -> None:
        ends = (RENDEZVOUS_AT.host, scene.host(0))
        source, target = ends if towards == "the daemon" else ends[::-1]
        scene.network.cut(source, target, both=False)
        await asyncio.sleep(DEAD_AFTER_S + HEARTBEAT_S + 3 * DELAY_S)
        assert connected(scene) == [False] + [True] * (n - 1)
        ended = await scene.all(scene.call(rank) for rank in range(1, n))
        one_loss(ended, 0, "daemon lost")
        scene.network.heal(source, target, both=False)
        await asyncio.sleep(5.0)
        assert all(connected(scene))
        own = await scene.call(0)
        assert isinstance(own.error, PeerLostError), "its epoch is over, and it was told so"
        assert own.error.fields["verdict"] == ended[0].error.fields["verdict"]  # type: ignore[union-attr]
        await next_epoch_works(scene)

    in_job(n, play)


@pytest.mark.parametrize("when", ["asked before", "asked while", "asked after"])
@pytest.mark.parametrize(("n", "victim"), [(n, v) for n in (2, 3, 4) for v in (0, n - 1)])
def test_survivors_reform_across_a_restart(n: int, victim: int, when: str) -> None:
    others = [rank for rank in range(n) if rank != victim]

    async def play(scene: Scene) -> None:
        await scene.sum_works()
        scene.network.crash(scene.host(victim))
        await asyncio.sleep(0.1)
        if when == "asked before":
            # One of them has asked, and all know that the epoch is over.
            asking = asyncio.create_task(reform(scene, others[:1]))
            await asyncio.sleep(0.1 if n > 2 else 0.0)
            await scene.cluster.kill_rendezvous()
            rest = asyncio.create_task(reform(scene, others[1:]))
            await asyncio.sleep(0.5)
            await scene.cluster.start_rendezvous()
            told = [*await asking, *await rest]
        else:
            await scene.cluster.kill_rendezvous()
            asking = asyncio.create_task(reform(scene, others if when == "asked while" else []))
            await asyncio.sleep(0.5)
            await scene.cluster.start_rendezvous()
            told = await asking
            if when == "asked after":
                await asyncio.sleep(BACK_S)
                told = await reform(scene, others)
        for error, facts in told:
            assert error is None, error
            assert facts["ranks"] == others
        assert {facts["epoch"] for _, facts in told} == {2}
        ended = await scene.all(scene.call(rank) for rank in others)
        for one in ended:
            assert one.error is None
            assert (one.array == sum(rank + 1 for rank in others)).all()

    in_job(n, play)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_reform_that_nobody_forced_goes_through_a_restart_with_all(n: int) -> None:
    async def play(scene: Scene) -> None:
        await scene.sum_works()
        await scene.cluster.kill_rendezvous()
        asking = asyncio.create_task(reform(scene, range(n)))
        await asyncio.sleep(1.0)
        await scene.cluster.start_rendezvous()
        for error, facts in await asking:
            assert error is None, error
            assert (facts["epoch"], facts["ranks"]) == (2, list(range(n)))
        await goes_on(scene)

    in_job(n, play)


def test_an_epoch_of_which_only_some_had_heard_goes_on_without_the_others() -> None:
    async def play(scene: Scene) -> None:
        scene.network.cut(RENDEZVOUS_AT.host, scene.host(2), both=False)
        asking = [asyncio.create_task(reform(scene, [rank])) for rank in range(3)]
        for task in asking[:2]:
            ((error, facts),) = await task
            assert error is None
            assert facts["epoch"] == 2
        await scene.cluster.kill_rendezvous("silence")
        await asyncio.sleep(DEAD_AFTER_S + HEARTBEAT_S)
        await scene.cluster.start_rendezvous()
        scene.network.heal(RENDEZVOUS_AT.host, scene.host(2), both=False)
        await asyncio.sleep(2.0 + BACK_S)
        assert [n.engine.world.epoch for n in scene.cluster.nodes] == [2, 2, 1]
        ended = await scene.all(scene.call(rank) for rank in (0, 1))
        one_loss(ended, 2, "daemon lost")
        for error, facts in [*await reform(scene, [0, 1]), *await asking[2]]:
            assert error is None, error
            assert (facts["epoch"], facts["ranks"]) == (3, [0, 1, 2])
        await goes_on(scene)

    in_job(3, play)
