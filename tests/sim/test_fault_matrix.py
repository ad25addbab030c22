"""More faults, at each rank, in each phase: those that must not show, and those of two at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ringd.errors import CollectiveTimeoutError, PeerLostError
from ringd.rendezvous.bounds import DEAD_AFTER_S
from ringd.rendezvous.inquiries import INQUIRY_S
from ringd.sim.invariants import disagreement
from ringd.transport.memory import Death
from ringd.vocabulary import OpSpec
from tests.engine.scene import DELAY_S, TICK_S, Ended, Scene
from tests.sim.matrix import (
    ALGORITHMS,
    DEADLINE_S,
    HEARTBEAT_S,
    LARGE,
    MOST_SIZES,
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

RENDEZVOUS = "rendezvous"


def exact(scene: Scene, ended: Sequence[Ended]) -> None:
    """Every call completed, and no contribution is missing or double."""
    total = sum(range(1, scene.n + 1))
    for one in ended:
        assert one.error is None, one.error
        assert (one.array == total).all()


# Faults that are over before the deadline: no call notices


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("n", MOST_SIZES)
def test_a_link_that_is_reset_goes_on_where_it_was(n: int, algorithm: str, phase: str) -> None:
    spec = replace(LARGE, algorithm=algorithm)
    resumed = []

    async def play(scene: Scene, victim: int) -> None:
        ends = (scene.host(victim), scene.host((victim + 1) % n))
        calls, _ = await strike_in(
            phase, scene, victim, lambda scene, _: scene.network.reset(ends), spec, 60.0
        )
        exact(scene, await scene.all(calls))
        resumed.append(scene.cluster.resumed())
        await goes_on(scene)

    each_victim(n, play)
    assert any(resumed)


@pytest.mark.parametrize("after_bytes", [1, 1000, 20_000])
@pytest.mark.parametrize("algorithm", ["ring", "direct"])
@pytest.mark.parametrize("n", MOST_SIZES)
def test_a_link_that_is_reset_amid_frames_again_and_again_loses_and_doubles_nothing(
    n: int, algorithm: str, after_bytes: int
) -> None:
    async def play(scene: Scene, victim: int) -> None:
        ends = [scene.host(victim), scene.host((victim + 1) % n)]
        calls = [
            scene.call(rank, replace(LARGE, algorithm=algorithm), timeout_s=60.0)
            for rank in range(n)
        ]
        for _ in range(5):
            scene.network.fuse(ends[0], ends[1], after_bytes)
            ends.reverse()
            await asyncio.sleep(0.06)
        exact(scene, await scene.all(calls))
        assert scene.cluster.resumed()
        scene.network.lift()
        await goes_on(scene)

    each_victim(n, play)


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("n", MOST_SIZES)
def test_a_link_that_takes_nothing_for_a_while_only_takes_time(
    n: int, algorithm: str, both: bool
) -> None:
    async def play(scene: Scene, victim: int) -> None:
        ends = scene.host(victim), scene.host((victim + 1) % n)
        calls, _ = await strike_in(
            "amid",
            scene,
            victim,
            lambda scene, _: scene.network.clog(*ends, both=both),
            replace(LARGE, algorithm=algorithm),
            DEADLINE_S,
        )
        await asyncio.sleep(1.0)
        scene.network.unclog(*ends)
        exact(scene, await scene.all(calls))
        await goes_on(scene)

    each_victim(n, play)


@pytest.mark.parametrize("n", SIZES)
def test_a_slow_reader_only_takes_time(n: int) -> None:
    async def play(scene: Scene, victim: int) -> None:
        scene.network.slow(scene.host(victim), 0.002, 1000)
        calls = [scene.call(rank, LARGE, timeout_s=60.0) for rank in range(n)]
        ended = await scene.all(calls)
        exact(scene, ended)
        assert max(one.took_s for one in ended) > 0.1, "it was slow"
        scene.network.lift()
        await goes_on(scene)

    each_victim(n, play)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("n", SIZES)
def test_a_daemon_that_pauses_only_takes_time(n: int, phase: str) -> None:
    async def play(scene: Scene, victim: int) -> None:
        name = scene.host(victim)
        calls, _ = await strike_in(
            phase, scene, victim, lambda scene, _: scene.network.stall(name), LARGE, DEADLINE_S
        )
        await asyncio.sleep(1.0)
        scene.network.resume(name)
        exact(scene, await scene.all(calls))
        await goes_on(scene)

    each_victim(n, play)


# Links that hold a call up


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("n", MOST_SIZES)
def test_a_clogged_link_is_named(n: int, algorithm: str, phase: str, both: bool) -> None:
    async def play(scene: Scene, victim: int) -> None:
        ends = (victim, (victim + 1) % n)
        source, target = map(scene.host, ends)
        calls, _ = await strike_in(
            phase,
            scene,
            victim,
            lambda scene, _: scene.network.clog(source, target, both=both),
            replace(LARGE, algorithm=algorithm),
            DEADLINE_S,
        )
        named = link_named(await scene.all(calls), ends)
        scene.network.unclog(source, target)
        await scene.quiet()
        await goes_on(scene)
        assert named or algorithm != "ring"

    each_victim(n, play)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("n", MOST_SIZES)
def test_a_link_that_is_cut_against_the_ring_is_named(n: int, algorithm: str, phase: str) -> None:
    """The way back of a ring's link carries credit and acknowledgements."""

    async def play(scene: Scene, victim: int) -> None:
        ends = ((victim + 1) % n, victim)
        source, target = map(scene.host, ends)
        calls, _ = await strike_in(
            phase,
            scene,
            victim,
            lambda scene, _: scene.network.cut(source, target, both=False),
            replace(LARGE, algorithm=algorithm),
            DEADLINE_S,
        )
        link_named(await scene.all(calls), ends)
        scene.network.heal(source, target)
        await scene.quiet()
        await goes_on(scene)

    each_victim(n, play)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("n", MOST_SIZES)
def test_a_link_that_was_quick_and_is_slow_now_is_named(n: int, algorithm: str) -> None:
    async def play(scene: Scene, victim: int) -> None:
        ends = [victim, (victim + 1) % n]
        source, target = map(scene.host, ends)
        calls, _ = await strike_in(
            "after",
            scene,
            victim,
            lambda scene, _: scene.network.delay(source, target, 0.15, both=False),
            replace(LARGE, algorithm=algorithm, shape=(200_000,)),
            DEADLINE_S,
        )
        failed = [one for one in await scene.all(calls) if one.error is not None]
        if failed:
            fields = one_verdict(failed)
            assert (fields["case"], sorted(fields["link"])) == ("slow link", sorted(ends))
        scene.network.lift()
        await scene.quiet()
        await goes_on(scene)
        assert failed or algorithm != "ring"

    each_victim(n, play)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("n", SIZES)
def test_a_host_that_nobody_reaches_is_named_by_all_others(n: int, phase: str) -> None:
    async def play(scene: Scene, victim: int) -> None:
        peers = [scene.host(rank) for rank in range(n) if rank != victim] + [RENDEZVOUS]

        def isolate(scene: Scene, victim: int) -> None:
            for peer in peers:
                scene.network.cut(scene.host(victim), peer)

        calls, _ = await strike_in(phase, scene, victim, isolate, LARGE, DEADLINE_S)
        others = await but_the(victim, scene, calls)
        fields = one_verdict(others, within_s=INQUIRY_S + 2 * DELAY_S)
        assert (fields["case"], fields["culprits"]) == ("daemon does not answer", [victim])
        alone = await calls[victim]
        assert isinstance(alone.error, CollectiveTimeoutError)
        assert alone.error.fields["partial"] is True
        assert alone.took_s <= DEADLINE_S + 0.25
        scene.network.lift()
        await scene.quiet()
        await goes_on(scene)

    each_victim(n, play)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("n", SIZES)
def test_a_link_that_does_not_come_back_ends_the_epoch_for_all_alike(n: int, phase: str) -> None:
    async def play(scene: Scene, victim: int) -> None:
        ends = (victim, (victim + 1) % n)
        names = scene.host(ends[0]), scene.host(ends[1])

        def breaks(scene: Scene, victim: int) -> None:
            scene.network.reset(names)
            scene.network.cut(*names)

        calls, struck_at = await strike_in(phase, scene, victim, breaks, LARGE, 60.0)
        ended = await scene.all(calls)
        errors = [one.error for one in ended if one.error is not None]
        assert len(errors) == n
        assert disagreement(errors) is None
        for one in ended:
            assert isinstance(one.error, PeerLostError), one.error
            assert set(one.error.fields["culprits"]) <= set(ends)
            assert not one.error.fields["partial"]
            assert one.at - struck_at <= 12.0
        scene.network.lift()
        await scene.quiet()
        await next_epoch_works(scene, restarted=None)

    each_victim(n, play)


# Trainers


@pytest.mark.parametrize("n", SIZES)
def test_a_trainer_that_enters_too_late_is_named(n: int) -> None:
    async def play(scene: Scene, victim: int) -> None:
        await scene.sum_works()
        others = [rank for rank in range(n) if rank != victim]
        spec = replace(LARGE, shape=(600_000,))
        calls = [scene.call(rank, spec, timeout_s=DEADLINE_S) for rank in others]
        await asyncio.sleep(DEADLINE_S - 0.01)
        late = scene.call(victim, spec, timeout_s=DEADLINE_S)
        fields = one_verdict(await scene.all(calls))
        assert (fields["case"], fields["culprits"]) == ("entered late", [victim])
        its_own = (await late).error
        assert its_own is not None
        assert its_own.fields["verdict"] == fields["verdict"]
        assert str(its_own).endswith(": this rank came late itself.")
        assert "itself" not in "".join(str(call.result().error) for call in calls)
        await goes_on(scene)

    each_victim(n, play)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("n", SIZES)
def test_a_trainer_that_raised_is_named_with_what_it_raised(n: int, phase: str) -> None:
    async def play(scene: Scene, victim: int) -> None:
        calls, struck_at = await strike_in(
            phase, scene, victim, lambda scene, v: scene.trainer(v).fail(), LARGE, 60.0
        )
        others = await but_the(victim, scene, calls)
        all_lost(others, victim, "trainer raised", struck_at, 3 * DELAY_S)
        assert all("no more data (train.py:7)" in str(one.error) for one in others)
        await next_epoch_works(scene, restarted=None)

    each_victim(n, play)


@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize("n", SIZES)
def test_a_trainer_that_left_is_named_by_all_who_call_without_it(n: int, phase: str) -> None:
    async def play(scene: Scene, victim: int) -> None:
        if phase == "after":
            await scene.sum_works()
        scene.trainer(victim).goodbye()
        struck_at = scene.loop.time()
        calls = [scene.call(rank, LARGE, timeout_s=60.0) for rank in range(n) if rank != victim]
        for one in await scene.all(calls):
            assert isinstance(one.error, PeerLostError)
            assert one.error.fields["culprits"] == [victim]
            assert one.error.fields["case"] == "it left the job"
            assert one.at - struck_at <= 3 * DELAY_S
        await next_epoch_works(scene, restarted=None)

    each_victim(n, play)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("n", [3, 4, 5])
def test_two_trainers_that_die_at_once_end_the_epoch_with_one_verdict(n: int, phase: str) -> None:
    async def play(scene: Scene, victim: int) -> None:
        second = (victim + 1) % n

        def die(scene: Scene, victim: int) -> None:
            scene.trainer(victim).die()
            scene.trainer(second).die()

        calls, struck_at = await strike_in(phase, scene, victim, die, LARGE, 60.0)
        others = await scene.all(calls[rank] for rank in range(n) if rank not in (victim, second))
        errors = [one.error for one in others if one.error is not None]
        assert len(errors) == n - 2
        assert disagreement(errors) is None
        for one in others:
            assert isinstance(one.error, PeerLostError)
            assert one.error.fields["rank"] in (victim, second)
            assert one.at - struck_at <= 3 * DELAY_S
        await next_epoch_works(scene, restarted=None)

    each_victim(n, play)


# Daemons


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("n", SIZES)
def test_a_daemon_that_leaves_in_order_is_named_by_all_who_need_it(n: int, phase: str) -> None:
    async def play(scene: Scene, victim: int) -> None:
        leaving = []

        def leave(scene: Scene, victim: int) -> None:
            leaving.append(asyncio.create_task(scene.cluster.nodes[victim].stop()))

        calls, struck_at = await strike_in(phase, scene, victim, leave, LARGE, 60.0)
        await asyncio.gather(*leaving)
        for one in await but_the(victim, scene, calls):
            assert isinstance(one.error, PeerLostError), one.error
            assert one.error.fields["culprits"] == [victim]
            assert one.at - struck_at <= 3 * DELAY_S
        await next_epoch_works(scene, restarted=victim)

    each_victim(n, play)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("n", SIZES)
def test_a_host_that_vanishes_is_named_at_a_deadline_that_comes_first(n: int, phase: str) -> None:
    async def play(scene: Scene, victim: int) -> None:
        calls, struck_at = await strike_in(
            phase,
            scene,
            victim,
            lambda scene, v: scene.network.crash(scene.host(v), "silence"),
            LARGE,
            DEADLINE_S,
        )
        others = [rank for rank in range(n) if rank != victim]
        ended = await scene.all(calls[rank] for rank in others)
        fields = one_verdict(ended, within_s=INQUIRY_S + 2 * DELAY_S)
        assert (fields["case"], fields["culprits"]) == ("daemon does not answer", [victim])
        again = [scene.call(rank, SMALL, timeout_s=60.0) for rank in others]
        limit_s = DEAD_AFTER_S + HEARTBEAT_S
        all_lost(await scene.all(again), victim, "daemon lost", struck_at, limit_s)
        await next_epoch_works(scene, restarted=victim)

    each_victim(n, play)


HOWS: tuple[Death, ...] = ("reset", "eof", "silence")


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("n", [3, 4, 5])
def test_two_daemons_that_crash_at_once_end_the_epoch_with_one_verdict(n: int, how: Death) -> None:
    async def play(scene: Scene, victim: int) -> None:
        both = (victim, (victim + 1) % n)

        def crash(scene: Scene, victim: int) -> None:
            for rank in both:
                scene.network.crash(scene.host(rank), how)

        calls, struck_at = await strike_in("amid", scene, victim, crash, LARGE, 60.0)
        ended = await scene.all(calls[rank] for rank in range(n) if rank not in both)
        errors = [one.error for one in ended if one.error is not None]
        assert len(errors) == n - 2
        assert disagreement(errors) is None
        for one in ended:
            assert isinstance(one.error, PeerLostError)
            assert one.error.fields["rank"] in both
            assert one.at - struck_at <= DEAD_AFTER_S + HEARTBEAT_S

    each_victim(n, play)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("n", SIZES)
def test_a_control_connection_that_is_reset_costs_the_epoch_and_is_named(
    n: int, phase: str
) -> None:
    async def play(scene: Scene, victim: int) -> None:
        calls, struck_at = await strike_in(
            phase,
            scene,
            victim,
            lambda scene, v: scene.network.reset((scene.host(v), RENDEZVOUS)),
            LARGE,
            DEADLINE_S,
        )
        ended = await scene.all(calls)
        others = [one for rank, one in enumerate(ended) if rank != victim]
        all_lost(others, victim, "daemon lost", struck_at, 3 * DELAY_S)
        own = ended[victim]
        assert own.error is not None
        assert own.took_s <= DEADLINE_S + 0.25
        scene.network.crash(scene.host(victim))
        await scene.quiet()
        await next_epoch_works(scene, restarted=victim)

    each_victim(n, play)


# The coordinator


@pytest.mark.parametrize("towards", [True, False])
@pytest.mark.parametrize("n", [3, 4, 5])
def test_a_rank_that_hears_or_reaches_the_coordinator_only_one_way_ends_in_time(
    n: int, towards: bool
) -> None:
    async def play(scene: Scene, victim: int) -> None:
        deaf = (victim + 1) % n
        ends = (scene.host(deaf), RENDEZVOUS) if towards else (RENDEZVOUS, scene.host(deaf))
        scene.network.cut(*ends, both=False)
        others = [rank for rank in range(n) if rank != victim]
        calls = [scene.call(rank, LARGE, timeout_s=DEADLINE_S) for rank in others]
        for rank, one in zip(others, await scene.all(calls), strict=True):
            assert isinstance(one.error, CollectiveTimeoutError)
            assert set(one.error.fields["culprits"]) <= {victim, deaf}
            assert victim in one.error.fields["culprits"]
            assert rank == deaf or not one.error.fields["partial"]
            assert one.took_s <= DEADLINE_S + 0.25
        scene.network.lift()
        assert (await scene.call(victim, LARGE)).took_s == 0
        await goes_on(scene)

    each_victim(n, play)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("n", SIZES)
def test_calls_go_on_without_a_coordinator(n: int, how: Death, phase: str) -> None:
    async def play(scene: Scene, victim: int) -> None:
        calls, _ = await strike_in(
            phase, scene, victim, lambda scene, _: scene.network.crash(RENDEZVOUS, how), LARGE, 60.0
        )
        exact(scene, await scene.all(calls))
        await asyncio.sleep(DEAD_AFTER_S + HEARTBEAT_S)
        await goes_on(scene)

    each_victim(n, play)


@pytest.mark.parametrize("n", [3, 4, 5])
def test_without_a_coordinator_a_cut_link_blames_nobody_who_is_well(n: int) -> None:
    async def play(scene: Scene, victim: int) -> None:
        await scene.cluster.stop_rendezvous()
        await scene.quiet()
        ends = (victim, (victim + 1) % n)
        calls, _ = await strike_in(
            "before",
            scene,
            victim,
            lambda scene, _: scene.network.cut(*map(scene.host, ends)),
            LARGE,
            DEADLINE_S,
        )
        for one in await scene.all(calls):
            assert isinstance(one.error, CollectiveTimeoutError)
            assert one.error.fields["partial"] is True
            assert set(one.error.fields["culprits"]) <= set(ends), one.error
            assert one.took_s <= DEADLINE_S + TICK_S + 0.25
        scene.network.lift()
        await scene.quiet()
        await goes_on(scene)

    each_victim(n, play)


@pytest.mark.parametrize("how", ["reset", "eof"])
@pytest.mark.parametrize("n", SIZES)
def test_without_a_coordinator_a_crash_is_named_by_all(n: int, how: Death) -> None:
    async def play(scene: Scene, victim: int) -> None:
        await scene.cluster.stop_rendezvous()
        await scene.quiet()
        calls, struck_at = await strike_in(
            "amid",
            scene,
            victim,
            lambda scene, v: scene.network.crash(scene.host(v), how),
            LARGE,
            60.0,
        )
        for one in await but_the(victim, scene, calls):
            assert isinstance(one.error, PeerLostError), one.error
            assert one.error.fields["partial"] is True
            assert one.error.fields["culprits"] == [victim], one.error
            assert one.at - struck_at <= 7.0

    each_victim(n, play)


@pytest.mark.parametrize("n", [3, 4, 5])
def test_without_a_coordinator_each_of_several_calls_in_flight_names_the_absent_one(n: int) -> None:
    """Their peers differ, and each peer is to be seen to live whichever call is the oldest."""

    async def play(scene: Scene, victim: int) -> None:
        await scene.cluster.stop_rendezvous()
        await scene.quiet()
        specs = [
            OpSpec("broadcast", "float32", "", (60_000,), root=victim, algorithm="chain"),
            replace(LARGE, algorithm="tree"),
            replace(LARGE, algorithm="direct"),
            SMALL,
        ]
        calls = [
            scene.call(rank, spec, timeout_s=DEADLINE_S)
            for spec in specs
            for rank in range(n)
            if rank != victim
        ]
        for one in await scene.all(calls):
            assert isinstance(one.error, CollectiveTimeoutError)
            assert one.error.fields["culprits"] == [victim], one.error
            assert one.took_s <= DEADLINE_S + TICK_S + 0.25

    each_victim(n, play)
