"""Jobs that go on while ranks are lost and come back: committed steps, and epochs in time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from ringd.engine.probing import PROBE_S
from ringd.errors import PeerLostError, QuorumLostError
from ringd.rendezvous.bounds import DEAD_AFTER_S, LAST_CALL_S
from ringd.rendezvous.service_settings import ServiceSettings
from ringd.sim import clock
from ringd.sim.cluster import JOIN_LIMIT_S, RENDEZVOUS_AT, Cluster, SimTrainer, host
from ringd.sim.draw import scenario_of
from ringd.sim.elastic import Job, Worker
from ringd.sim.elastic_scenario import ELASTIC
from ringd.sim.weather import CalmWeather
from ringd.sim.world import WrongOutcome
from ringd.transport.memory import Death, MemoryNetwork

DELAY_S = 1 / 1024
TICK_S = 0.02
HEARTBEAT_S = 1.0
WORK_S = 0.25
SEEN_S = 4 * DELAY_S + TICK_S
"""Until an end that shows has been told to all."""
SIZES = (2, 3, 5)


@pytest.mark.parametrize("kind", ELASTIC)
def test_members_of_the_last_epoch_have_committed_the_same_steps(kind: str) -> None:
    for seed in range(6000, 6002):
        outcome = scenario_of(seed, fault=kind).run()
        assert outcome.tally.completed


def play(
    n: int,
    story: Callable[[Job], Coroutine[Any, Any, None]],
    settings: ServiceSettings | None = None,
) -> None:
    """Run ``story`` with a cluster of ``n`` seats in calm weather, that is not started."""

    async def whole() -> None:
        network = MemoryNetwork(asyncio.get_running_loop(), CalmWeather(DELAY_S))
        cluster = Cluster(network, n, random.Random(n), settings=settings)
        job = Job(1, cluster, WORK_S)
        job.disturbed = True
        try:
            await story(job)
        finally:
            job.cancel()
        assert not cluster.violations
        await cluster.stop()

    clock.run(whole())


async def begin(job: Job) -> None:
    """All seats work, and have committed something."""
    await job.cluster.start()
    for seat in range(job.cluster.n):
        job.begin(seat, steps=0)
    await job.until(lambda: job.steps >= 3, "steps", 5.0)


def goes_on(job: Job, seats: Sequence[int], epoch: int) -> Callable[[], bool]:
    """Whether these have committed a step together in that epoch."""
    marks = {seat: job.workers[seat].steps or 0 for seat in seats}

    def holds() -> bool:
        workers = [job.workers[seat] for seat in seats]
        return all(
            w.trainer.epoch == epoch
            and len(w.trainer.ranks) == len(seats)
            and (w.steps or 0) > marks[w.seat] + 1
            for w in workers
        )

    return holds


DEATHS: dict[Death, float] = {
    "reset": SEEN_S,
    "eof": SEEN_S,
    "silence": DEAD_AFTER_S + HEARTBEAT_S + SEEN_S,
}


@pytest.mark.parametrize("how", DEATHS)
@pytest.mark.parametrize("n", SIZES)
def test_e1_survivors_go_on_in_time_and_the_dead_one_comes_back(n: int, how: Death) -> None:
    """Calls have 2 s: a vanished host is given up at the deadline, or when it is called lost."""
    for victim in range(n):

        async def story(job: Job, victim: int = victim) -> None:
            await begin(job)
            survivors = [seat for seat in range(n) if seat != victim]
            job.cluster.crash(victim, how)
            job.end(victim)
            took_s = await job.until(goes_on(job, survivors, 2), "epoch 2", 10.0)
            assert took_s <= DEATHS[how] + PROBE_S + 3 * WORK_S + 0.1
            await job.bring_back(victim, daemon=True)
            took_s = await job.until(goes_on(job, [*survivors, victim], 3), "epoch 3", 10.0)
            assert took_s <= SEEN_S + 4 * WORK_S + 0.1
            order = (*survivors, victim)
            assert all(w.trainer.ranks == order for w in job.workers.values())
            await job.finish(3)

        play(n, story)


@pytest.mark.parametrize("n", [3, 4, 5])
def test_e3_of_a_split_network_the_side_of_the_rendezvous_goes_on(n: int) -> None:
    for alone in range(n):

        async def story(job: Job, alone: int = alone) -> None:
            await begin(job)
            others = [seat for seat in range(n) if seat != alone]
            job.struck.add(alone)
            for peer in (*map(host, others), RENDEZVOUS_AT.host):
                job.cluster.network.cut(host(alone), peer)
            began = job.loop.time()
            took_s = await job.until(goes_on(job, others, 2), "epoch 2", 10.0)
            assert took_s <= DEAD_AFTER_S + HEARTBEAT_S + PROBE_S + SEEN_S + 4 * WORK_S
            await job.until(lambda: job.is_over(alone), "the one that is alone gives up", 20.0)
            # Its call has 2 s, its reform() 5 s, and what is told comes within 0.25 s.
            assert job.loop.time() - began <= 2.0 + 0.25 + 5.0 + 0.25 + WORK_S
            cut_off = job.workers[alone]
            assert isinstance(cut_off.out, Exception)
            steps = cut_off.steps or 0
            await job.until(lambda: job.steps >= steps + 5, "steps of the others", 10.0)
            assert cut_off.steps == steps

        play(n, story)


@pytest.mark.parametrize("n", [3, 4, 5])
def test_e3_both_sides_reach_the_rendezvous_and_one_has_lost_the_quorum(n: int) -> None:
    for alone in range(n):

        async def story(job: Job, alone: int = alone) -> None:
            await begin(job)
            others = [seat for seat in range(n) if seat != alone]
            job.struck.add(alone)
            for seat in others:
                job.cluster.network.cut(host(alone), host(seat))
            await job.until(goes_on(job, others, 2), "epoch 2", 10.0)
            await job.until(lambda: job.is_over(alone), "it is told", 10.0)
            lost = job.workers[alone].out
            assert isinstance(lost, QuorumLostError)
            assert lost.fields["missing"] == others

        play(n, story)


@pytest.mark.parametrize("how", DEATHS)
def test_e3_two_that_come_after_one_died_form_the_first_epoch_alone(how: Death) -> None:
    async def story(job: Job) -> None:
        cluster, loop = job.cluster, job.loop
        await cluster.start_rendezvous()
        cluster.nodes = [cluster.make_node(seat) for seat in range(3)]
        cluster.trainers = [SimTrainer(node) for node in cluster.nodes]
        await cluster.nodes[0].start(loop.time() + JOIN_LIMIT_S)
        waits = asyncio.create_task(cluster.trainers[0].attach(JOIN_LIMIT_S))
        await asyncio.sleep(1.0)
        cluster.crash(0, how)
        waits.cancel()
        if how == "silence":  # until then it counts as one that is there
            await asyncio.sleep(DEAD_AFTER_S + HEARTBEAT_S)
        begun = loop.time()
        await asyncio.gather(*(cluster.nodes[s].start(begun + JOIN_LIMIT_S) for s in (1, 2)))
        await asyncio.gather(*(cluster.trainers[s].attach(JOIN_LIMIT_S) for s in (1, 2)))
        assert loop.time() - begun <= LAST_CALL_S + 0.5
        assert {cluster.trainers[seat].ranks for seat in (1, 2)} == {(1, 2)}
        for seat in (1, 2):
            job.begin(seat, steps=0)
        await job.until(lambda: job.steps >= 3, "steps", 5.0)

    play(3, story, ServiceSettings(min_size=2))


# That a check can fail


def test_a_step_that_one_has_and_another_has_not_is_found() -> None:
    async def story(job: Job) -> None:
        await begin(job)
        worker = job.workers[1]
        worker.total += 1  # as if it had committed something else
        job.cluster.trainers[2].die()
        job.end(2)
        with pytest.raises(WrongOutcome, match="rank 1 has committed"):
            await job.until(lambda: False, "never", 10.0)

    play(3, story)


def test_an_error_without_a_cause_is_found() -> None:
    async def story(job: Job) -> None:
        job.disturbed = False
        await begin(job)
        job.cluster.trainers[2].die()
        with pytest.raises(WrongOutcome, match="nothing explains PeerLostError"):
            await job.until(lambda: False, "never", 10.0)

    play(3, story)


def test_a_rank_that_is_well_and_gives_up_is_found() -> None:
    async def story(job: Job) -> None:
        await begin(job)
        worker: Worker = job.workers[0]
        with pytest.raises(WrongOutcome, match="rank 0 is well"):
            job.gives_up(worker, QuorumLostError("as if"))
        job.excuse(0, PeerLostError("as if", rank=1))

    play(2, story)
