"""Cuts in one direction, and of one pair of hosts: what one sends the other does not get."""

from __future__ import annotations

import pytest

from tests.lan.conftest import MakeGroup, MakeLab
from tests.processes.drills import LATE_S, Drill, all_sum, next_epoch_works
from tests.processes.programs import faults

SHORT_S = 5.0
"""Of calls that come to their deadline: long for a large one that is slow only for the machine."""
ENDS = [1, 2]
"""The ranks at the ends of the link that is cut."""


@pytest.mark.parametrize("both_ways", [False, True])
def test_a_link_that_is_cut_ends_calls_at_their_deadline_and_only_its_ends_are_named(
    lab: MakeLab, group: MakeGroup, both_ways: bool
) -> None:
    made = lab("5x1gbit,switch=user")
    job = group(made, apart=True, dead_after_s=30)
    drill = Drill(job, 1, "amid")

    def cut() -> None:
        made.change(sources=[1], targets=[2], cut=True)
        if both_ways:
            made.change(sources=[2], targets=[1], cut=True)

    drill.strike(cut, SHORT_S)
    told = [*drill.results(), drill.result(1)]
    for one in told:
        assert one["error"] in ("CollectiveTimeoutError", "PeerLostError"), one
        assert one["took_s"] < SHORT_S + LATE_S, one
        assert one["fields"]["culprits"], one
        assert set(one["fields"]["culprits"]) <= set(ENDS), one
    made.heal([1])
    next_epoch_works(job)


def test_a_rank_that_only_hears_is_named(lab: MakeLab, group: MakeGroup) -> None:
    made = lab("5x1gbit,switch=user")
    job = group(made, apart=True, dead_after_s=30)
    all_sum(job)
    made.change(sources=[1], cut=True)
    told = job.do(faults.call, timeout_s=SHORT_S)
    for rank, one in enumerate(told):
        assert one["took_s"] < SHORT_S + LATE_S, one
        if rank == 1 and one["error"] is None:
            assert one["value"] == 4.0, "it heard from all, and can't know that nobody hears it"
            continue
        assert one["error"] == "CollectiveTimeoutError", one
        if rank != 1:
            assert one["fields"]["culprits"] == [1], one
    made.heal([1])
    next_epoch_works(job)


def test_a_link_that_is_back_in_time_has_lost_nothing(lab: MakeLab, group: MakeGroup) -> None:
    made = lab("5x1gbit,switch=user")
    job = group(made, apart=True, dead_after_s=30)
    drill = Drill(job, 1, "amid")
    drill.strike(lambda: made.change(sources=[1], targets=[2], cut=True), 60.0)
    drill.a_call_is_held_up()
    made.heal([1])
    drill.calls_go_on()
    drill.end_of_work()
    all_sum(job)
