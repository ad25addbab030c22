"""Epochs that follow one another, over the in-memory network in virtual time: cases E1 and E3."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from ringd.errors import (
    MembershipChangedError,
    PeerLostError,
    QuorumLostError,
    RendezvousError,
    RingdError,
)
from ringd.sim import clock
from ringd.sim.cluster import JOIN_LIMIT_S, RENDEZVOUS_AT, Cluster, SimTrainer, host
from ringd.sim.weather import CalmWeather
from ringd.transport.memory import MemoryNetwork
from ringd.vocabulary import OpSpec

HEARTBEAT_LIMIT_S = 3.0
VERDICT_S = 0.18
TIMEOUT_S = 60.0
COUNT = 1000
Answer = tuple[RingdError | None, dict[str, Any] | None]


def play(n: int, story: Callable[[Job], Coroutine[Any, Any, None]]) -> None:
    """Run ``story`` with a job of ``n`` ranks whose first epoch has begun."""

    async def whole() -> None:
        job = Job(n)
        await job.cluster.start()
        await story(job)
        assert not job.cluster.violations
        await job.cluster.stop()

    clock.run(whole())


class Job:
    """A cluster, and what its trainers do."""

    def __init__(self, n: int) -> None:
        self.loop = asyncio.get_running_loop()
        network = MemoryNetwork(self.loop, CalmWeather())
        self.cluster = Cluster(network, n, random.Random(n))

    def members(self, seat: int) -> tuple[int, ...]:
        return self.cluster.nodes[seat].engine.world.ranks

    async def all_reduce(self, *seats: int) -> dict[int, RingdError | None]:
        """Each of ``seats`` sums its own data; the sums of those without an error are checked."""
        spec = OpSpec("all_reduce", "float64", "sum", (COUNT,))
        data = {seat: np.arange(COUNT) * (seat + 1.0) for seat in seats}
        regions = {seat: values.copy() for seat, values in data.items()}
        answers = await asyncio.gather(
            *(
                self.cluster.trainers[seat].call(
                    spec, memoryview(regions[seat].view("uint8").data), TIMEOUT_S
                )
                for seat in seats
            )
        )
        errors = {seat: answer[0] for seat, answer in zip(seats, answers, strict=True)}
        for seat in seats:
            if errors[seat] is None:
                whole = sum((data[s] for s in self.members(seat)), np.zeros(COUNT))
                np.testing.assert_array_equal(regions[seat], whole)
        return errors

    async def agree(self, *flags: tuple[int, bool]) -> list[tuple[RingdError | None, bool]]:
        spec = OpSpec("agree", "uint8", "min", (1,))
        regions = [np.array([flag], np.uint8) for _, flag in flags]
        calls = (
            self.cluster.trainers[seat].call(spec, memoryview(region.data), TIMEOUT_S)
            for (seat, _), region in zip(flags, regions, strict=True)
        )
        answers = await asyncio.gather(*calls)
        return [(a[0], bool(region[0])) for a, region in zip(answers, regions, strict=True)]

    def reform(
        self, seat: int, min_size: int = 1, timeout_s: float = TIMEOUT_S
    ) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = self.loop.create_future()
        self.cluster.nodes[seat].reform(
            self.cluster.trainers[seat],
            min_size,
            timeout_s,
            lambda error, facts: future.set_result((error, facts)),
        )
        return future

    async def reformed(self, *seats: int, **how: Any) -> dict[int, dict[str, Any]]:
        answers = await asyncio.gather(*(self.reform(seat, **how) for seat in seats))
        facts = {}
        for seat, (error, fact) in zip(seats, answers, strict=True):
            assert error is None, error
            assert fact is not None
            facts[seat] = fact
        return facts

    async def fresh(self, seat: int) -> asyncio.Task[None]:
        """A new daemon and trainer at ``seat``; the task ends when it is let in."""
        node = self.cluster.nodes[seat] = self.cluster.make_node(seat)
        await node.start(self.loop.time() + JOIN_LIMIT_S)
        trainer = self.cluster.trainers[seat] = SimTrainer(node)
        return self.loop.create_task(trainer.attach(JOIN_LIMIT_S))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not holds():  # noqa: ASYNC110 - it is virtual time
                await asyncio.sleep(0.001)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7])
def test_e1_survivors_go_on_without_the_dead_and_with_it_again(n: int) -> None:
    for victim in range(n):

        async def story(job: Job, victim: int = victim) -> None:
            everyone = list(range(n))
            survivors = [seat for seat in everyone if seat != victim]
            assert not any((await job.all_reduce(*everyone)).values())

            calls = job.loop.create_task(job.all_reduce(*survivors))
            await asyncio.sleep(0.01)
            begun = job.loop.time()
            job.cluster.network.crash(host(victim), "reset")
            errors = await calls
            assert job.loop.time() - begun < 1.0
            assert all(isinstance(e, PeerLostError) and e.rank == victim for e in errors.values())

            facts = await job.reformed(*survivors)
            assert job.loop.time() - begun < 1.5
            for place, seat in enumerate(survivors):
                fact = facts[seat]
                assert (fact["epoch"], fact["rank"], fact["world_size"]) == (2, place, n - 1)
                assert (fact["ranks"], fact["lost"], fact["joined"]) == (survivors, [victim], [])
                assert (fact["completed_by_all"], fact["completed_by_any"]) == (0, 0)
            assert not any((await job.all_reduce(*survivors)).values())

            joining = await job.fresh(victim)
            first = survivors[0]
            await job.until(lambda: job.cluster.nodes[first].newcomers() == [victim])
            facts = await job.reformed(*survivors, min_size=n)
            await joining
            order = [*survivors, victim]  # an old member leads
            assert all(f["ranks"] == order and f["joined"] == [victim] for f in facts.values())
            assert job.cluster.trainers[victim].epoch == 3
            assert job.cluster.nodes[first].newcomers() == []
            assert not any((await job.all_reduce(*order)).values())

        play(n, story)


def test_one_that_asks_ends_the_epoch_for_all_and_data_in_flight_with_it() -> None:
    async def story(job: Job) -> None:
        calls = job.loop.create_task(job.all_reduce(0, 2))
        await asyncio.sleep(0.01)
        asked = job.reform(1)
        errors = await calls
        assert all(isinstance(e, MembershipChangedError) for e in errors.values())
        assert "rank 1 asked for the next one" in str(errors[0])
        (late,) = (await job.all_reduce(0)).values()
        assert isinstance(late, MembershipChangedError)
        assert not asked.done()
        facts = await job.reformed(0, 2)
        assert (await asked)[0] is None
        assert facts[0]["ranks"] == [0, 1, 2]
        assert not any((await job.all_reduce(0, 1, 2)).values())

    play(3, story)


def test_who_does_not_ask_in_time_is_left_out_and_may_come_back() -> None:
    async def story(job: Job) -> None:
        begun = job.loop.time()
        facts = await job.reformed(0, 1, timeout_s=5.0)
        assert 4.0 < job.loop.time() - begun < 5.0
        assert facts[0]["lost"] == [2]
        assert not any((await job.all_reduce(0, 1)).values())
        (error,) = (await job.all_reduce(2)).values()
        assert isinstance(error, MembershipChangedError)
        back = job.reform(2)
        await job.until(lambda: job.cluster.nodes[0].newcomers() == [2])
        facts = await job.reformed(0, 1)
        assert facts[0]["joined"] == [2]
        answer = (await back)[1]
        assert answer is not None
        assert (answer["ranks"], answer["completed_by_any"]) == ([0, 1, 2], -1)
        assert (answer["joined"], answer["agreed"]) == ([2], None)
        assert not any((await job.all_reduce(0, 1, 2)).values())

    play(3, story)


def test_too_few_is_an_error_at_the_end_of_the_time_and_reform_may_be_called_again() -> None:
    async def story(job: Job) -> None:
        job.cluster.network.crash(host(2), "reset")
        begun = job.loop.time()
        answers = await asyncio.gather(job.reform(0, 3, 60.0), job.reform(1, 2, 4.0))
        assert 3.0 < job.loop.time() - begun <= 4.0, "the shortest time is everybody's"
        for error, _ in answers:
            assert type(error) is RendezvousError
            assert "ranks 0 and 1 came together in the time that rank 1 gives" in str(error)
            assert "and rank 0 asked for 3 at least" in str(error)
        assert (await job.reformed(0, 1))[1]["ranks"] == [0, 1]
        assert not any((await job.all_reduce(0, 1)).values())

    play(3, story)


@pytest.mark.parametrize("cut_off", [0, 1, 2])
def test_e3_of_a_split_network_one_side_goes_on(cut_off: int) -> None:
    """The two sides reach the rendezvous, and not each other."""

    async def story(job: Job) -> None:
        side = [seat for seat in range(3) if seat != cut_off]
        assert not any((await job.all_reduce(0, 1, 2)).values())
        for seat in side:
            job.cluster.network.cut(host(seat), host(cut_off))
        begun = job.loop.time()
        answers = await asyncio.gather(*(job.reform(seat) for seat in range(3)))
        assert job.loop.time() - begun < HEARTBEAT_LIMIT_S
        for seat, (error, facts) in enumerate(answers):
            if seat == cut_off:
                assert isinstance(error, QuorumLostError)
                assert (error.here, error.missing) == ([cut_off], side)
            else:
                assert facts is not None
                assert facts["ranks"] == side
        assert not any((await job.all_reduce(*side)).values())
        for seat in side:
            job.cluster.network.heal(host(seat), host(cut_off))
        back = job.reform(cut_off)
        await job.until(lambda: job.cluster.nodes[side[0]].newcomers() == [cut_off])
        assert (await job.reformed(*side))[side[0]]["ranks"] == [*side, cut_off]
        error, facts = await back
        assert error is None
        assert facts is not None
        assert facts["joined"] == [cut_off]  # so it knows that its state is of old
        assert not any((await job.all_reduce(0, 1, 2)).values())

    play(3, story)


def test_e3_who_is_cut_off_from_the_rendezvous_too_has_lost_the_quorum() -> None:
    async def story(job: Job) -> None:
        for other in (host(0), host(1), RENDEZVOUS_AT.host):
            job.cluster.network.cut(host(2), other)
        calls = job.loop.create_task(job.all_reduce(0, 1))
        begun = job.loop.time()
        errors = await calls
        assert job.loop.time() - begun <= HEARTBEAT_LIMIT_S + 1.0
        assert all(isinstance(e, PeerLostError) and e.rank == 2 for e in errors.values())
        alone = job.reform(2, timeout_s=2.0)
        assert (await job.reformed(0, 1))[0]["ranks"] == [0, 1]
        error, _ = await alone
        assert isinstance(error, QuorumLostError | RendezvousError)
        assert not any((await job.all_reduce(0, 1)).values())

    play(3, story)


def test_an_agreement_that_one_got_and_another_did_not_is_told_by_reform() -> None:
    """Rank 2 dies when rank 0 has the answer and rank 1 has not: each commits the same steps."""

    async def story(job: Job) -> None:
        assert [ok for _, ok in await job.agree((0, True), (1, True), (2, False))] == [False] * 3
        nodes = job.cluster.nodes
        for node in nodes:  # as if the answer of the second one had come to rank 0 alone
            node.engine.world.next_seq = 2
        nodes[0].engine.world.agreed, nodes[0].engine.world.last_done = (1, True), 1
        nodes[1].engine.world.agree_cut = nodes[1].engine.world.first_cut = 1
        job.cluster.network.crash(host(2), "reset")
        facts = await job.reformed(0, 1)
        assert (facts[0]["agreed"], facts[1]["agreed"]) == (None, True)
        for fact in facts.values():
            assert (fact["completed_by_all"], fact["completed_by_any"]) == (0, 1)

    play(3, story)


def test_a_trainer_that_asks_again_is_answered_in_place_of_its_first_wish() -> None:
    async def story(job: Job) -> None:
        first = job.reform(0, timeout_s=2.0)
        await asyncio.sleep(1.0)
        again = job.reform(0)
        error, _ = await first
        assert type(error) is MembershipChangedError
        facts = await job.reformed(1, 2)
        assert facts[1]["ranks"] == [0, 1, 2]
        assert (await again)[0] is None
        assert not any((await job.all_reduce(0, 1, 2)).values())

    play(3, story)


@pytest.mark.parametrize("n", [2, 3])
def test_a_trainer_whose_program_was_not_told_of_an_epoch_is_told_again(n: int) -> None:
    """Its call was interrupted after the answer: nobody else has to call reform() again."""

    async def story(job: Job) -> None:
        first = await job.reformed(*range(n))
        node, trainer = job.cluster.nodes[1], job.cluster.trainers[1]
        told: list[Answer] = []
        node.reform(trainer, 1, TIMEOUT_S, lambda *answer: told.append(answer), known=1)
        assert told == [(None, first[1])]
        assert not any((await job.all_reduce(*range(n))).values())
        second: asyncio.Future[Answer] = job.loop.create_future()
        node.reform(trainer, 1, TIMEOUT_S, lambda *a: second.set_result(a), known=2)
        await job.reformed(*(seat for seat in range(n) if seat != 1))
        error, facts = await second
        assert error is None
        assert facts is not None
        assert facts["epoch"] == 3

    play(n, story)


@pytest.mark.parametrize("n", [2, 3])
def test_an_agreement_that_a_program_has_not_heard_is_told_though_its_daemon_has(n: int) -> None:
    async def story(job: Job) -> None:
        await job.agree(*((seat, True) for seat in range(n)))
        world = job.cluster.nodes[1].engine.world
        world.agree_unheard(world.epoch, 0)
        facts = await job.reformed(*range(n))
        assert [facts[seat]["agreed"] for seat in range(n)] == [None, True, None][:n]
        world.agree_unheard(1, 0)  # it is of the past
        assert {fact["agreed"] for fact in (await job.reformed(*range(n))).values()} == {None}

    play(n, story)


@pytest.mark.parametrize("n", [2, 3])
def test_a_wish_that_is_read_after_its_deadline_is_answered_and_nobody_is_asked(n: int) -> None:
    """Its daemon was stopped: its caller is gone, and has asked again, or soon will."""

    async def story(job: Job) -> None:
        node, trainer = job.cluster.nodes[0], job.cluster.trainers[0]

        def late() -> None:
            told: list[Answer] = []
            until = job.loop.time() - 0.1
            node.reform(trainer, 1, 1.0, lambda *a: told.append(a), None, until)
            ((error, facts),) = told
            assert type(error) is RendezvousError
            assert (error.fields["epoch"], facts) == (node.engine.world.epoch, None)

        late()
        assert not any((await job.all_reduce(*range(n))).values()), "the epoch goes on"
        late()
        facts = await job.reformed(*range(n))
        assert facts[0]["ranks"] == list(range(n))
        assert (facts[0]["lost"], facts[0]["joined"]) == ([], [])
        first = job.reform(0)
        late()
        assert not first.done()
        assert (await job.reformed(*range(1, n)))[1]["ranks"] == list(range(n))
        assert (await first)[0] is None
        assert not any((await job.all_reduce(*range(n))).values())

    play(n, story)
