"""Whole jobs drawn from seeds: every rank gets the exact result, or an error in time."""

from __future__ import annotations

import pytest

from ringd.sim.draw import scenario_of
from ringd.sim.kinds import KINDS

SAMPLE = range(1000, 1040)
"""`make sim` runs more."""
HELD_UP = [kind.name for kind in KINDS.values() if kind.effect == "held up"]
HARMLESS = [kind.name for kind in KINDS.values() if kind.effect == "none"]


@pytest.mark.parametrize("seed", SAMPLE)
def test_a_job_drawn_from_a_seed_ends_as_it_may(seed: int) -> None:
    scenario_of(seed).run()


@pytest.mark.parametrize("fault", HELD_UP)
@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_verdicts_of_a_job_with_a_fault_name_who_or_what_is_to_blame(
    n: int, fault: str
) -> None:
    tallies = [scenario_of(seed, n=n, fault=fault).run().tally for seed in range(3000, 3005)]
    assert sum(tally.failed for tally in tallies)


@pytest.mark.parametrize("fault", HARMLESS)
def test_a_fault_that_ends_before_the_deadline_shows_in_no_call(fault: str) -> None:
    for seed in range(3100, 3105):
        assert scenario_of(seed, fault=fault).run().tally.failed == 0
