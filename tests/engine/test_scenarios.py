"""Whole jobs drawn from seeds: every rank gets the exact result, or an error in time."""

from __future__ import annotations

import pytest

from ringd.sim.faults import JUDGED
from ringd.sim.scenario import Scenario

SAMPLE = range(1000, 1060)


@pytest.mark.parametrize("seed", SAMPLE)
def test_a_job_drawn_from_a_seed_ends_as_it_may(seed: int) -> None:
    Scenario(seed).run()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("start", range(2000, 2500, 25))
def test_many_jobs_drawn_from_seeds_end_as_they_may(start: int) -> None:
    for seed in range(start, start + 25):
        Scenario(seed).run()


@pytest.mark.parametrize("fault", sorted(JUDGED))
@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_verdicts_of_a_job_with_a_fault_name_who_or_what_is_to_blame(
    n: int, fault: str
) -> None:
    failed = sum(Scenario(seed, n=n, fault=fault).run().failed for seed in range(3000, 3005))
    assert failed


@pytest.mark.parametrize("fault", ["none", "crash", "stall", *sorted(JUDGED)])
def test_the_same_seed_gives_the_same_trace(fault: str) -> None:
    runs = []
    for _ in range(2):
        scenario = Scenario(77, n=4, fault=fault)
        outcome = scenario.run()
        runs.append((outcome.steps, outcome.virtual_s, scenario.network.trace))
    assert runs[0] == runs[1]
    assert runs[0][2]
