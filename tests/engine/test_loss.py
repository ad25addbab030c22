"""Ranks that die, leave, or lose their link, with exact bounds; and the epochs that follow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ringd.errors import PeerLostError
from ringd.rendezvous.bounds import DEAD_AFTER_S
from ringd.rendezvous.membership import GATHER_LINK_REPORTS_S
from ringd.sim.cluster import SimTrainer
from ringd.vocabulary import OpSpec
from ringd.wire.raised import Raised
from tests.engine.scene import ALL_REDUCE, DELAY_S, TICK_S, VERDICT_S, Ended, Scene

STUCK = OpSpec("all_reduce", "float32", "sum", (200_000,), algorithm="ring")
VICTIM = 2
HEARTBEAT_S = 1.0


def all_lost(ended: list[Ended], rank: int, since: float, within_s: float) -> None:
    for one in ended:
        assert isinstance(one.error, PeerLostError), one.error
        assert one.error.fields["rank"] == rank
        assert one.at - since <= within_s


async def the_epoch_is_over(scene: Scene, survivors: list[int]) -> None:
    for ended in await scene.all(scene.call(r) for r in survivors):
        assert isinstance(ended.error, PeerLostError)
        assert ended.error.retry == "new_epoch"
        assert ended.took_s == 0


FAULTS = {
    "its trainer dies": ("died", 3 * DELAY_S),
    "its host crashes, connections are reset": ("reset", 3 * DELAY_S),
    "its process is killed, connections end": ("eof", 3 * DELAY_S),
    "its host vanishes without a word": ("silence", DEAD_AFTER_S + HEARTBEAT_S),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("n", [3, 4, 5])
def test_t1_every_survivor_hears_of_a_loss_in_time_with_all_its_pending_calls(
    n: int, fault: str
) -> None:
    how, within_s = FAULTS[fault]
    scene = Scene(n)
    survivors = [rank for rank in range(n) if rank != VICTIM]

    async def main() -> None:
        await scene.sum_works()
        pending = [scene.call(r, spec) for spec in (STUCK, ALL_REDUCE, STUCK) for r in survivors]
        await asyncio.sleep(0.1)
        struck_at = scene.loop.time()
        if how == "died":
            scene.trainer(VICTIM).die()
        else:
            scene.network.crash(scene.host(VICTIM), how)  # type: ignore[arg-type]
        all_lost(await scene.all(pending), VICTIM, struck_at, within_s)
        await the_epoch_is_over(scene, survivors)

    scene.run(main)


def test_t1_a_link_that_does_not_come_back_ends_the_epoch_and_one_of_its_ends_is_blamed() -> None:
    scene = Scene(4, resume_s=0.0)

    async def main() -> None:
        pending = [scene.call(r, STUCK) for r in range(3)]
        await asyncio.sleep(0.1)
        struck_at = scene.loop.time()
        scene.network.reset((scene.host(1), scene.host(2)))
        ended = await scene.all(pending)
        ranks = {one.error.fields["rank"] for one in ended if one.error is not None}
        assert len(ranks) == 1
        assert ranks <= {1, 2}
        all_lost(ended, ranks.pop(), struck_at, GATHER_LINK_REPORTS_S + 4 * DELAY_S)
        assert all("link" in str(one.error) for one in ended)
        assert len({one.error.fields["verdict"] for one in ended if one.error is not None}) == 1

    scene.run(main)


def test_a_stalled_rank_is_no_loss_while_it_is_short() -> None:
    scene = Scene(3)

    async def main() -> None:
        scene.network.stall(scene.host(1))
        pending = [scene.call(r) for r in (0, 2)]
        scene.loop.call_later(1.5, scene.network.resume, scene.host(1))
        await asyncio.sleep(1.0)
        pending.append(scene.call(1))
        assert [one.code for one in await scene.all(pending)] == ["ok"] * 3

    scene.run(main)


# ---------------------------------------------------------------- goodbyes


def test_a_goodbye_fails_nothing_that_is_done_and_everything_that_comes() -> None:
    scene = Scene(3)

    async def main() -> None:
        await scene.sum_works()
        scene.trainer(2).goodbye()
        await scene.quiet()
        for one in await scene.all(scene.call(r) for r in (0, 1)):
            assert isinstance(one.error, PeerLostError)
            assert one.error.fields["rank"] == 2
            assert "said goodbye before operation 1" in str(one.error)
            assert one.took_s == 0

    scene.run(main)


def test_a_goodbye_ends_what_is_unfinished_and_needs_the_rank() -> None:
    scene = Scene(3)

    async def main() -> None:
        pending = [scene.call(r, STUCK) for r in (0, 1)]
        await asyncio.sleep(0.1)
        left_at = scene.loop.time()
        scene.trainer(2).goodbye()
        all_lost(await scene.all(pending), 2, left_at, 3 * DELAY_S)

    scene.run(main)


def test_what_was_fed_before_a_goodbye_completes_after_it() -> None:
    scene = Scene(3)
    cast = OpSpec("broadcast", "float32", "", (1000,), root=0)

    async def main() -> None:
        assert (await scene.call(0, cast)).error is None
        scene.trainer(0).goodbye()
        await scene.quiet()
        for one in await scene.all(scene.call(r, cast) for r in (1, 2)):
            assert one.error is None
            assert (one.array == 1).all()

    scene.run(main)


# ---------------------------------------------------------------- epochs


async def next_epoch(scene: Scene, rank: int, old: SimTrainer | None) -> None:
    if old is not None:
        old.goodbye()
    scene.cluster.trainers[rank] = SimTrainer(scene.cluster.nodes[rank])


async def all_attach(scene: Scene) -> None:
    await asyncio.gather(*(trainer.attach(60.0) for trainer in scene.cluster.trainers))


def test_calls_of_an_epoch_that_is_over_end_and_its_late_frames_are_dropped_and_counted() -> None:
    scene = Scene(3)

    async def main() -> None:
        # Frames of epoch 1 are under way, slowly, from rank 0 to rank 1 when epoch 2 begins.
        scene.network.delay(scene.host(0), scene.host(1), 5.0, both=False)
        stale = [scene.call(0) for _ in range(3)]
        await asyncio.sleep(0.1)
        before = scene.engine(1).router.dropped_frames
        for rank in range(3):
            await next_epoch(scene, rank, scene.trainer(rank))
        await all_attach(scene)
        assert {t.epoch for t in scene.cluster.trainers} == {2}
        assert all(one.error is not None for one in await scene.all(stale))
        await scene.sum_works()
        assert scene.engine(1).router.dropped_frames > before

    scene.run(main)


def test_a_frame_of_the_next_epoch_waits_for_a_rank_that_is_late_to_hear_of_it() -> None:
    scene = Scene(2)

    async def main() -> None:
        for rank in range(2):
            await next_epoch(scene, rank, scene.trainer(rank))
        scene.network.delay("rendezvous", scene.host(1), 0.5, both=False)
        attach = asyncio.gather(*(trainer.attach(60.0) for trainer in scene.cluster.trainers))
        await asyncio.sleep(0.1)
        assert scene.engine(0).world.epoch == 2
        assert scene.engine(1).world.epoch == 1
        early = scene.call(0)
        await attach
        late = scene.call(1)
        for one in await scene.all([early, late]):
            assert one.error is None
            assert (one.array == 3).all()

    scene.run(main)


@pytest.mark.parametrize("how", ["reset", "eof", "silence"])
def test_a_daemon_that_is_started_again_joins_and_the_next_epoch_works(how: Any) -> None:
    scene = Scene(3)

    async def main() -> None:
        await scene.sum_works()
        pending = [scene.call(r, STUCK) for r in (0, 2)]
        scene.network.crash(scene.host(1), how)
        assert [one.code for one in await scene.all(pending)] == ["peer_lost"] * 2
        node = scene.cluster.nodes[1] = scene.cluster.make_node(1)
        await node.start(scene.loop.time() + 30)
        for rank in range(3):
            await next_epoch(scene, rank, scene.trainer(rank) if rank != 1 else None)
        await all_attach(scene)
        await scene.sum_works()

    scene.run(main)


def test_a_hundred_epochs_in_a_row_work_and_nothing_is_left_of_them() -> None:
    scene = Scene(3)

    async def main() -> None:
        for _ in range(100):
            await scene.sum_works()
            for rank in range(3):
                await next_epoch(scene, rank, scene.trainer(rank))
            await all_attach(scene)
        assert scene.trainer(0).epoch == 101
        for rank in range(3):
            engine = scene.engine(rank)
            assert not engine.live
            assert not engine.world.verdicts
            assert engine.router.early.held_bytes == 0

    scene.run(main)


def test_a_deadline_that_falls_into_the_tick_is_not_missed_after_an_idle_time() -> None:
    scene = Scene(2)

    async def main() -> None:
        for idle_s in (0.0, 0.013, 7.0):
            await asyncio.sleep(idle_s)
            ended = await scene.call(0, timeout_s=0.1)
            assert 0.1 <= ended.took_s <= 0.1 + TICK_S + VERDICT_S
            await asyncio.sleep(0.1)
            assert (await scene.call(1)).code == "timeout"
        await scene.sum_works()

    scene.run(main)


def test_a_daemon_that_is_started_again_elsewhere_is_dialled_there_at_once() -> None:
    scene = Scene(4)
    exchange = OpSpec("all_reduce", "float32", "sum", (5,), algorithm="exchange")

    async def main() -> None:
        # Ranks 0 and 2 are no neighbours: the call below makes 0 dial 2, which is just gone.
        scene.network.crash(scene.host(2), "reset")
        pending = [scene.call(r, exchange) for r in (0, 1, 3)]
        assert [one.code for one in await scene.all(pending)] == ["peer_lost"] * 3
        old = scene.cluster.nodes[2].address
        node = scene.cluster.nodes[2] = scene.cluster.make_node(2)
        await node.start(scene.loop.time() + 30)
        assert node.address != old
        for rank in range(4):
            await next_epoch(scene, rank, scene.trainer(rank) if rank != 2 else None)
        await all_attach(scene)
        for one in await scene.all(scene.call(r, exchange) for r in range(4)):
            assert one.error is None, one.error
            assert one.took_s < 0.1

    scene.run(main)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_what_a_trainer_raised_is_told_to_all_in_parts_and_in_one_line(n: int) -> None:
    scene = Scene(n)
    raised = Raised("ValueError", "the loss is not a number", "/job/train.py", 41)

    async def main() -> None:
        calls = [scene.call(rank) for rank in range(n - 1)]
        await asyncio.sleep(0.1)
        victim = scene.trainer(n - 1)
        victim.node.detach(victim, "raised", str(raised), raised)
        ended = await scene.all(calls)
        late = await scene.all(scene.call(rank) for rank in range(n - 1))
        for one in [*ended, *late]:
            assert one.code == "peer_lost"
            assert one.error is not None
            assert "(ValueError: the loss is not a number (train.py:41))" in str(one.error)
            assert one.error.rank == n - 1
            assert one.error.case == "trainer raised"
            assert one.error.exception_type == "ValueError"
            assert one.error.exception_message == "the loss is not a number"
            assert (one.error.file, one.error.line) == ("/job/train.py", 41)
        assert len({one.error.verdict for one in ended if one.error is not None}) == 1

    scene.run(main)
