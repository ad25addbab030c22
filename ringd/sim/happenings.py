"""What happens to an elastic job: each takes a rank out, or might, and brings it back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ringd.sim.cluster import RENDEZVOUS_AT, host
from ringd.sim.elastic import CALL_S, REFORM_S, Job
from ringd.transport.memory import Death

RENDEZVOUS = RENDEZVOUS_AT.host
DEATHS: tuple[Death, ...] = ("reset", "eof", "silence")
AWAY_S = 8.0
"""A rank is gone for up to so long."""
DOWN_S = 4.0
"""So is a rendezvous that is restarted."""
BACK_S = 10.0
"""Until every daemon is at a rendezvous that was restarted."""
SUCCESSION_S = 20.0
"""Longer than it takes the others to go on without the rendezvous' daemon."""
STALLED_S = 12.0
"""The rendezvous' daemon stands still for up to so long."""
CRASHES_TOO = 0.5
"""So often another rank is lost after it, whose fresh daemon looks where the rendezvous was."""
REFORMED = 0.7
"""So often the others go on before it is back; else it may come while they form an epoch."""


@dataclass(frozen=True, slots=True)
class Happening:
    """One kind.

    Attributes:
        run: from the strike until every rank that is to come back has been let in.
        harmless: no call fails, and the epoch goes on.
        least: of how many ranks a job must be.
        embedded: a daemon holds the rendezvous.
        central: it is at a host of its own, or one daemon's loss would leave no majority.
    """

    name: str
    run: Callable[[Job, random.Random], Awaitable[None]]
    harmless: bool = False
    least: int = 2
    embedded: bool = False
    central: bool = False


def _victim(job: Job, rng: random.Random) -> int:
    seat = rng.randrange(job.cluster.n)
    job.note("strike", seat)
    return seat


def _holder(job: Job) -> int:
    (seat,) = job.cluster.holders()
    job.note("strike", seat)
    job.cluster.network.lift()  # a fuse that is left might hit a way to its successor
    return seat


async def _crash(job: Job, rng: random.Random) -> None:
    await _all_crash(job, rng, [_victim(job, rng)])


async def _two_crash(job: Job, rng: random.Random) -> None:
    await _all_crash(job, rng, rng.sample(range(job.cluster.n), 2))


async def _all_crash(job: Job, rng: random.Random, seats: list[int]) -> None:
    for seat in seats:
        job.cluster.crash(seat, rng.choice(DEATHS))
        job.end(seat)
        await asyncio.sleep(rng.choice((0.0, rng.uniform(0.0, 4.0))))
    await asyncio.sleep(rng.uniform(0.0, AWAY_S))
    await asyncio.gather(*(job.bring_back(seat, daemon=True) for seat in seats))


async def _trainer_dies(job: Job, rng: random.Random) -> None:
    seat = _victim(job, rng)
    job.cluster.trainers[seat].die()
    job.end(seat)
    await asyncio.sleep(rng.uniform(0.0, AWAY_S))
    await job.bring_back(seat, daemon=False)


async def _trainer_leaves(job: Job, rng: random.Random) -> None:
    seat = _victim(job, rng)
    job.workers[seat].leaves = True
    await job.until(lambda: job.is_over(seat), f"rank {seat} leaves", 5.0)
    await asyncio.sleep(rng.uniform(0.0, AWAY_S))
    await job.bring_back(seat, daemon=False)


async def _late(job: Job, rng: random.Random) -> None:
    """A rank is busy for so long that the others may go on without it; then it comes as it is."""
    job.workers[_victim(job, rng)].asleep_s = rng.uniform(0.5, 12.0)


async def _stall(job: Job, rng: random.Random) -> None:
    """A host stands still, and goes on: it may find that it was given up."""
    seat = _victim(job, rng)
    job.struck.add(seat)
    job.cluster.network.stall(host(seat))
    await asyncio.sleep(rng.uniform(1.0, AWAY_S))
    job.cluster.network.resume(host(seat))
    await _come_to_terms(job)


async def _control_reset(job: Job, rng: random.Random) -> None:
    seat = _victim(job, rng)
    job.struck.add(seat)
    job.cluster.network.reset((host(seat), RENDEZVOUS))
    await _come_to_terms(job)


async def _split(job: Job, rng: random.Random) -> None:
    """The network falls into two parts; the rendezvous is in one, or still seen by both."""
    seats = rng.sample(range(job.cluster.n), job.cluster.n)
    at = rng.randint(1, len(seats) - 1)
    here, there = seats[:at], seats[at:]
    job.note("split", str(here), str(there))
    seen_by_both = rng.random() < 0.5
    job.struck.update(seats if seen_by_both else there)
    for seat in there:
        for other in here:
            job.cluster.network.cut(host(seat), host(other))
        if not seen_by_both:
            job.cluster.network.cut(host(seat), RENDEZVOUS)
    before = job.commits()
    await asyncio.sleep(rng.uniform(10.0, 20.0))
    went_on = [[s for s in side if job.commits()[s] > before[s] + 1] for side in (here, there)]
    if all(went_on) or not any(went_on):
        job.wrong(f"of a network split into {here} and {there}, {went_on} went on")
    job.cluster.network.lift()
    await _come_to_terms(job)


async def _come_to_terms(job: Job, *, daemon: bool = True) -> None:
    """Who could not stay is started anew, with its daemon or only the trainer, once it knows: a
    call and a reform() later."""
    await asyncio.sleep(CALL_S + REFORM_S)
    await job.until(lambda: job.whole or all(map(job.is_settled, job.struck)), "settled", 60.0)
    out = [seat for seat in job.struck if job.workers[seat].out is not None]
    await asyncio.gather(*(job.bring_back(seat, daemon=daemon) for seat in out))


async def _resets(job: Job, rng: random.Random) -> None:
    """Links break amid frames, and are made anew; a control connection that breaks is a loss."""
    holders = job.cluster.holders()
    seats = [seat for seat in range(job.cluster.n) if seat not in holders]
    for _ in range(rng.randint(1, 5)):
        ends = [host(seat) for seat in rng.sample(seats, 2)]
        job.cluster.network.fuse(ends[0], ends[1], rng.choice((1, 100, 5000)))
        await asyncio.sleep(rng.uniform(0.0, 0.5))


async def _pause(job: Job, rng: random.Random) -> None:
    seat = _victim(job, rng)
    job.cluster.network.stall(host(seat))
    await asyncio.sleep(rng.uniform(0.0, 1.0))
    job.cluster.network.resume(host(seat))


async def _rendezvous_restarts(job: Job, rng: random.Random) -> None:
    await job.cluster.kill_rendezvous(rng.choice(DEATHS))
    await asyncio.sleep(rng.choice((0.0, rng.uniform(0.0, DOWN_S))))
    await job.cluster.start_rendezvous()
    await job.until(job.cluster.in_reach, "all are back", BACK_S)


async def _rendezvous_stalls(job: Job, rng: random.Random) -> None:
    job.cluster.network.stall(RENDEZVOUS)
    await asyncio.sleep(rng.uniform(0.0, AWAY_S))
    job.cluster.network.resume(RENDEZVOUS)
    await job.until(job.cluster.in_reach, "all are back", BACK_S)


async def _embedder_dies(job: Job, rng: random.Random) -> None:
    """Its successor leads the others into the next epoch; started anew it has its place again."""
    seat = _holder(job)
    others = [other for other in range(job.cluster.n) if other != seat]
    steps, epoch = job.steps, max(job.epochs)
    job.cluster.crash(seat, rng.choice(DEATHS))
    job.end(seat)
    if rng.random() < REFORMED:

        def go_on() -> bool:
            trainers = [job.workers[other].trainer for other in others]
            reformed = all(t.epoch > epoch and sorted(t.ranks) == others for t in trainers)
            return reformed and min(job.commits().values()) > steps + 1

        await job.until(go_on, f"the epoch of {others}", SUCCESSION_S)
        if job.cluster.holders() != others[:1]:
            job.wrong(f"ranks {job.cluster.holders()} hold the rendezvous after rank {seat}")
    await asyncio.sleep(rng.uniform(0.0, AWAY_S))
    await job.bring_back(seat, daemon=True)
    await job.until(lambda: len(job.cluster.holders()) == 1, "one rendezvous", SUCCESSION_S)


async def _embedder_stalls(job: Job, rng: random.Random) -> None:
    """Its host stands still, long enough for a successor or not. If there is one, it yields when it
    goes on, and fresh ranks that know only its address are referred."""
    seat = _holder(job)
    job.struck.add(seat)
    job.cluster.network.stall(host(seat))
    await asyncio.sleep(rng.uniform(1.0, STALLED_S))
    job.cluster.network.resume(host(seat))
    cluster = job.cluster

    def is_one() -> bool:
        return len(cluster.holders()) == 1 and cluster.in_reach()

    await job.until(is_one, "one rendezvous, and all are with it", SUCCESSION_S)
    await _come_to_terms(job, daemon=rng.random() < 0.3)
    if rng.random() < CRASHES_TOO:
        await job.until(lambda: job.whole, "all are members again", 60.0)
        others = [other for other in range(cluster.n) if other not in (seat, *cluster.holders())]
        await _all_crash(job, rng, [rng.choice(others)])


HAPPENINGS = (
    Happening("crash", _crash),
    Happening("two crash", _two_crash, least=3, central=True),
    Happening("trainer dies", _trainer_dies),
    Happening("trainer leaves", _trainer_leaves),
    Happening("late", _late),
    Happening("stall", _stall, central=True),
    Happening("control reset", _control_reset, central=True),
    Happening("split", _split, central=True),
    Happening("rendezvous restarts", _rendezvous_restarts, harmless=True, central=True),
    Happening("rendezvous stalls", _rendezvous_stalls, harmless=True, central=True),
    Happening("embedder dies", _embedder_dies, least=3, embedded=True),
    Happening("embedder stalls", _embedder_stalls, least=3, embedded=True),
    Happening("resets", _resets, harmless=True),
    Happening("pause", _pause, harmless=True),
)
