"""A daemon holds the rendezvous, and goes: the lowest living one succeeds it (ADR 16)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ringd.errors import CollectiveTimeoutError, PeerLostError, QuorumLostError, RingdError
from ringd.rendezvous.bounds import DEAD_AFTER_S
from ringd.rendezvous.observer import ask_status, observer_credentials
from ringd.sim.cluster import JOB, SECRET, SimTrainer
from ringd.sim.invariants import disagreement, leftovers
from ringd.transport.memory import Death, MemoryTransport
from tests.engine.scene import ALL_REDUCE, Ended, Scene
from tests.sim.matrix import reform

LARGE = replace(ALL_REDUCE, shape=(60_000,), algorithm="ring")
SMALL = replace(ALL_REDUCE, algorithm="exchange")
HEARTBEAT_S = 1.0
AIM_S = 1.0
"""From the death of the process that held the rendezvous to the verdict on it."""
SEATS = [(n, seat) for n in (3, 4, 5, 7) for seat in range(n)]

Play = Callable[[Scene], Coroutine[Any, Any, None]]


def in_job(n: int, play: Play, *, embed: int = 0, majority: bool | None = None) -> None:
    scene = Scene(n, embed=embed, majority=majority, pipe_bytes=16 * 1024, segment_bytes=16 * 1024)
    scene.run(lambda: play(scene))


def holders(scene: Scene, ranks: Sequence[int] | None = None) -> list[int]:
    """Ranks whose daemon holds a rendezvous."""
    everyone = range(scene.n) if ranks is None else ranks
    nodes = scene.cluster.nodes
    return [rank for rank in everyone if nodes[rank].holds_rendezvous]


def one_loss(ended: Sequence[Ended], victim: int) -> None:
    errors = [one.error for one in ended if one.error is not None]
    assert len(errors) == len(ended)
    for error in errors:
        assert isinstance(error, PeerLostError), error
        assert (error.fields["rank"], error.fields["case"]) == (victim, "daemon lost"), error
        assert error.fields["partial"] is False, error
    assert disagreement(errors) is None


async def sum_of(scene: Scene, ranks: Sequence[int]) -> None:
    """The next call is an ordinary one, among ``ranks``."""
    for one in await scene.all(scene.call(rank) for rank in ranks):
        assert one.error is None, one.error
        assert (one.array == sum(rank + 1 for rank in ranks)).all()


@pytest.mark.parametrize("how", ["reset", "eof"])
@pytest.mark.parametrize(("n", "seat"), SEATS)
def test_when_the_holder_is_killed_all_survivors_have_one_verdict_on_it_soon(
    n: int, seat: int, how: Death
) -> None:
    async def play(scene: Scene) -> None:
        assert holders(scene) == [seat]
        others = [rank for rank in range(n) if rank != seat]
        calls = [scene.call(rank, LARGE, timeout_s=60.0) for rank in others]
        await asyncio.sleep(0.004)
        struck_at = scene.loop.time()
        await scene.cluster.kill(seat, how)
        ended = await scene.all(calls)
        one_loss(ended, seat)
        assert max(one.at for one in ended) - struck_at <= AIM_S
        assert holders(scene, others) == [others[0]]
        for error, facts in await reform(scene, others):
            assert error is None, error
            assert facts is not None
            assert (facts["epoch"], facts["ranks"]) == (2, others)
        await sum_of(scene, others)
        # And a rank that dies now has its verdict from the successor.
        calls = [scene.call(rank, LARGE, timeout_s=60.0) for rank in others[:-1]]
        scene.trainer(others[-1]).die()
        for one in await scene.all(calls):
            assert isinstance(one.error, PeerLostError)
            assert one.error.fields["verdict"].startswith("2.")

    in_job(n, play, embed=seat)


@pytest.mark.parametrize(("n", "seat"), [(3, 0), (3, 2), (4, 1), (5, 0), (5, 4)])
def test_when_the_holders_machine_vanishes_it_takes_the_limit_longer(n: int, seat: int) -> None:
    async def play(scene: Scene) -> None:
        others = [rank for rank in range(n) if rank != seat]
        calls = [scene.call(rank, LARGE, timeout_s=60.0) for rank in others]
        await asyncio.sleep(0.004)
        struck_at = scene.loop.time()
        await scene.cluster.kill(seat, "silence")
        ended = await scene.all(calls)
        one_loss(ended, seat)
        # Until the silence is noticed, then until two addresses did not answer.
        limit_s = DEAD_AFTER_S + HEARTBEAT_S + 3 * AIM_S
        assert max(one.at for one in ended) - struck_at <= limit_s
        assert holders(scene, others) == [others[0]]

    in_job(n, play, embed=seat)


@pytest.mark.parametrize("n", [4, 5, 7])
def test_successors_are_succeeded_as_long_as_more_than_half_of_an_epoch_go_on(n: int) -> None:
    async def play(scene: Scene) -> None:
        alive = list(range(n))
        while len(alive) > 2:
            victim = alive.pop(0)
            calls = [scene.call(rank, LARGE, timeout_s=60.0) for rank in alive]
            await asyncio.sleep(0.004)
            await scene.cluster.kill(victim)
            one_loss(await scene.all(calls), victim)
            assert all(error is None for error, _ in await reform(scene, alive))
            await sum_of(scene, alive)
            assert holders(scene, alive) == alive[:1]

    in_job(n, play)


def test_two_that_die_at_once_are_both_named_by_the_third() -> None:
    async def play(scene: Scene) -> None:
        calls = [scene.call(rank, LARGE, timeout_s=60.0) for rank in (2, 3, 4)]
        await asyncio.sleep(0.004)
        await scene.cluster.kill(0)
        await scene.cluster.kill(1)
        ended = await scene.all(calls)
        for one in ended:
            assert isinstance(one.error, PeerLostError)
            assert one.error.fields["rank"] in (0, 1)
            assert not one.error.fields["partial"]
        assert disagreement([one.error for one in ended if one.error]) is None
        assert holders(scene, [2, 3, 4]) == [2]
        assert all(error is None for error, _ in await reform(scene, [2, 3, 4]))
        await sum_of(scene, [2, 3, 4])

    in_job(5, play)


def test_of_two_ranks_the_one_that_is_left_has_no_majority_and_says_that_its_view_is_partial() -> (
    None
):
    async def play(scene: Scene) -> None:
        call = scene.call(1, LARGE, timeout_s=60.0)
        await asyncio.sleep(0.004)
        await scene.cluster.kill(0)
        ended = await call
        assert isinstance(ended.error, PeerLostError)
        assert (ended.error.fields["rank"], ended.error.fields["partial"]) == (0, True)
        ((error, _),) = await reform(scene, [1], timeout_s=5.0)
        assert isinstance(error, RingdError)

    in_job(2, play)


@pytest.mark.parametrize(("n", "dead"), [(2, (0,)), (2, (1,)), (4, (0, 1)), (5, (0, 2, 4))])
def test_where_any_number_may_go_on_a_minority_does(n: int, dead: tuple[int, ...]) -> None:
    """quorum=any, for whoever knows that there is no other side."""
    alive = [rank for rank in range(n) if rank not in dead]

    async def play(scene: Scene) -> None:
        calls = [scene.call(rank, LARGE, timeout_s=60.0) for rank in alive]
        await asyncio.sleep(0.004)
        for rank in dead:
            await scene.cluster.kill(rank)
        for ended in await scene.all(calls):
            assert isinstance(ended.error, PeerLostError)
            assert ended.error.fields["rank"] in dead
        told = await reform(scene, alive)
        for error, facts in told:
            assert error is None, error
            assert facts is not None
            assert facts["ranks"] == alive
        assert len(holders(scene, alive)) == 1
        await sum_of(scene, alive)

    in_job(n, play, majority=False)


def cut_off(scene: Scene, side: Sequence[int]) -> Callable[[], None]:
    """Cut ``side`` from all others; what heals it."""
    others = [rank for rank in range(scene.n) if rank not in side]
    pairs = [(scene.host(a), scene.host(b)) for a in side for b in others]
    for pair in pairs:
        scene.network.cut(*pair)

    def heal() -> None:
        for pair in pairs:
            scene.network.heal(*pair)

    return heal


@pytest.mark.parametrize(
    ("n", "side"), [(3, (2,)), (3, (1,)), (3, (0,)), (5, (3, 4)), (5, (0, 1)), (4, (0,))]
)
def test_of_a_split_network_only_the_larger_side_goes_on(n: int, side: tuple[int, ...]) -> None:
    larger = [rank for rank in range(n) if rank not in side]

    async def play(scene: Scene) -> None:
        calls = {rank: scene.call(rank, LARGE, timeout_s=30.0) for rank in range(n)}
        await asyncio.sleep(0.004)
        heal = cut_off(scene, side)
        ended = {rank: await call for rank, call in calls.items()}
        for rank in larger:
            error = ended[rank].error
            assert isinstance(error, PeerLostError), error
            assert error.fields["rank"] in side
        told = await reform(scene, range(n), timeout_s=20.0)
        for rank, (error, facts) in enumerate(told):
            if rank in larger:
                assert error is None, error
                assert facts is not None
                assert facts["ranks"] == larger
            else:
                assert isinstance(error, QuorumLostError), error
        await sum_of(scene, larger)
        heal()
        await asyncio.sleep(3 * DEAD_AFTER_S)
        held = holders(scene)
        assert len(held) == 1
        assert held[0] in larger
        assert all(node.in_reach() for node in scene.cluster.nodes)
        for rank in side:
            scene.trainer(rank).goodbye()
            scene.cluster.trainers[rank] = SimTrainer(scene.cluster.nodes[rank])
        joining = asyncio.gather(*(scene.trainer(rank).attach(30.0) for rank in side))
        await asyncio.sleep(0.1)
        assert scene.cluster.nodes[larger[0]].newcomers() == sorted(side)
        assert all(error is None for error, _ in await reform(scene, larger))
        await joining
        await sum_of(scene, range(n))
        await scene.quiet()
        assert [leftovers(node.engine) for node in scene.cluster.nodes] == [[]] * n

    in_job(n, play)


@pytest.mark.parametrize("n", [2, 4])
def test_of_two_equal_sides_neither_starts_an_epoch(n: int) -> None:
    side = range(n // 2)

    async def play(scene: Scene) -> None:
        heal = cut_off(scene, side)
        await asyncio.sleep(10.0)
        for error, _ in await reform(scene, range(n), timeout_s=15.0):
            assert isinstance(error, QuorumLostError), error
        heal()
        await asyncio.sleep(3 * DEAD_AFTER_S)
        assert len(holders(scene)) == 1
        assert all(node.in_reach() for node in scene.cluster.nodes)

    in_job(n, play)


@pytest.mark.parametrize("n", [3, 5])
def test_a_holder_that_is_started_anew_has_the_rendezvous_again(n: int) -> None:
    async def play(scene: Scene) -> None:
        await scene.cluster.kill(0)
        await asyncio.sleep(1.0)
        others = range(1, n)
        assert holders(scene, others) == [1]
        node = scene.cluster.nodes[0] = scene.cluster.make_node(0)
        starting = asyncio.create_task(node.start(scene.loop.time() + 60.0))
        await asyncio.sleep(2 * DEAD_AFTER_S)
        await starting
        assert holders(scene) == [0]
        assert all(node.in_reach() for node in scene.cluster.nodes)
        scene.cluster.trainers[0] = SimTrainer(node)
        joining = asyncio.create_task(scene.trainer(0).attach(30.0))
        await asyncio.sleep(1.0)
        for error, _ in await reform(scene, others):
            assert error is None, error
        await joining
        assert {n.engine.world.epoch for n in scene.cluster.nodes} == {2}
        await sum_of(scene, range(n))

    in_job(n, play)


def test_a_holder_that_is_started_anew_amid_the_succession_leaves_nobody_behind() -> None:
    async def play(scene: Scene) -> None:
        await scene.cluster.kill(3)
        # The last one finds the new one at the old address, the others have a successor.
        scene.network.stall(scene.host(4))
        await asyncio.sleep(1.0)
        assert holders(scene, [0, 1, 2]) == [0]
        for rank in range(3):
            scene.network.cut(scene.host(rank), scene.host(4))
        node = scene.cluster.nodes[3] = scene.cluster.make_node(3)
        starting = asyncio.create_task(node.start(scene.loop.time() + 60.0))
        scene.network.resume(scene.host(4))
        await asyncio.sleep(2.5)
        for rank in range(3):
            scene.network.heal(scene.host(rank), scene.host(4))
        await starting
        await asyncio.sleep(30.0)
        assert len(holders(scene)) == 1
        assert all(node.in_reach() for node in scene.cluster.nodes)

    in_job(5, play, embed=3)


def test_a_holder_that_stood_still_steps_down_when_it_goes_on() -> None:
    async def play(scene: Scene) -> None:
        scene.network.stall(scene.host(0))
        await asyncio.sleep(DEAD_AFTER_S + 2 * HEARTBEAT_S + 4.0)
        calls = [scene.call(rank, SMALL, timeout_s=5.0) for rank in (1, 2)]
        one_loss(await scene.all(calls), 0)
        scene.network.resume(scene.host(0))
        await asyncio.sleep(4 * DEAD_AFTER_S)
        assert holders(scene) == [1]
        assert all(node.in_reach() for node in scene.cluster.nodes)

    in_job(3, play)


async def yielded(scene: Scene) -> None:
    """Rank 0 holds the rendezvous, stands still, and steps down when it goes on."""
    scene.network.stall(scene.host(0))
    await asyncio.sleep(DEAD_AFTER_S + 2 * HEARTBEAT_S + 4.0)
    scene.network.resume(scene.host(0))
    await asyncio.sleep(4 * DEAD_AFTER_S)
    assert holders(scene) == [1]
    assert all(node.in_reach() for node in scene.cluster.nodes)


def test_a_fresh_rank_that_knows_only_where_the_rendezvous_was_is_referred_to_it() -> None:
    async def play(scene: Scene) -> None:
        await yielded(scene)
        scene.cluster.crash(2)
        await asyncio.sleep(DEAD_AFTER_S)  # it is missed
        fresh = scene.cluster.nodes[2] = scene.cluster.make_node(2)
        await fresh.start(scene.loop.time() + 5.0)
        scene.cluster.trainers[2] = SimTrainer(fresh)
        joining = asyncio.create_task(scene.trainer(2).attach(30.0))
        await asyncio.sleep(1.0)
        for error, _ in await reform(scene, [1, 3, 4]):
            assert error is None, error
        await joining
        await sum_of(scene, [1, 2, 3, 4])
        assert fresh.absence()["address"] == str(scene.cluster.nodes[1].address)

    in_job(5, play)


def test_an_observer_that_knows_only_where_the_rendezvous_was_is_referred_to_it() -> None:
    async def play(scene: Scene) -> None:
        await yielded(scene)
        transport = MemoryTransport(scene.network, "elsewhere")
        looker = observer_credentials(JOB, SECRET)
        at = scene.cluster.rendezvous_at
        status = await ask_status(transport, looker, at, deadline=scene.loop.time() + 5.0)
        assert status["joined"] == [0, 1, 2]

    in_job(3, play)


@pytest.mark.parametrize("how", ["reset", "silence"])
def test_one_that_was_yielded_to_and_dies_before_all_have_found_it_is_succeeded(how: Death) -> None:
    """Rank 0 comes from rank 1, which has yielded to rank 2, and has none but those two to ask."""

    async def play(scene: Scene) -> None:
        await yielded(scene)
        heal = cut_off(scene, (0, 1))
        await asyncio.sleep(3 * DEAD_AFTER_S)
        assert holders(scene) == [1, 2]
        heal()
        while 1 in holders(scene):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await scene.cluster.kill(2, how)
        others = [0, 1, 3, 4]
        await asyncio.sleep(6 * DEAD_AFTER_S)
        assert len(holders(scene, others)) == 1
        assert all(scene.cluster.nodes[rank].in_reach() for rank in others)

    in_job(5, play)


def test_a_daemon_that_ends_in_order_says_so_before_its_rendezvous_ends() -> None:
    async def play(scene: Scene) -> None:
        await scene.sum_works()
        await scene.cluster.nodes[0].stop()
        ended = await scene.all(scene.call(rank, timeout_s=5.0) for rank in (1, 2))
        for one in ended:
            assert isinstance(one.error, PeerLostError)
            assert one.error.fields["case"] == "daemon left"
        await asyncio.sleep(1.0)
        assert holders(scene, [1, 2]) == [1]
        scene.network.crash(scene.host(0))

    in_job(3, play)


@pytest.mark.parametrize("n", [3, 4])
def test_a_timeout_after_the_succession_has_one_verdict(n: int) -> None:
    async def play(scene: Scene) -> None:
        await scene.cluster.kill(0)
        await asyncio.sleep(1.0)
        others = list(range(1, n))
        assert all(error is None for error, _ in await reform(scene, others))
        ended = await scene.all(scene.call(rank, SMALL, timeout_s=2.0) for rank in others[1:])
        for one in ended:
            assert isinstance(one.error, CollectiveTimeoutError)
            assert one.error.fields["culprits"] == [1]
            assert not one.error.fields["partial"]

    in_job(n, play)
