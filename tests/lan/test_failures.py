"""When the network is the cause: calls end at their deadline, and name who is out of reach."""

from __future__ import annotations

import re
import statistics
import time
from typing import Any

import pytest

from ringd.lab.lab import Lab
from tests.lan.conftest import MakeGroup, MakeLab
from tests.lan.hosts import LanDaemons
from tests.processes.drills import (
    LATE_S,
    LONG_S,
    Drill,
    all_lost,
    all_sum,
    all_timed_out,
    next_epoch_works,
)
from tests.processes.harness import WIDER, until
from tests.processes.programs import faults

SHORT_S = 5.0
"""Of calls that come to their deadline: long for a large one that is slow only for the machine."""
DEAD_S = 3.5 * WIDER
"""Until the rendezvous misses a daemon's heartbeats, and all have heard."""
VICTIM = 2
Result = dict[str, Any]


@pytest.fixture
def made(lab: MakeLab) -> Lab:
    """Four hosts for ranks, one for the rendezvous."""
    return lab("5x1gbit")


def revive(job: LanDaemons, victim: int) -> None:
    """The host is back, and its daemon is started anew, since the others may have lost it."""
    job.lab.heal([victim])
    job.kill_daemon(victim)
    job.start_daemon(victim)
    job.await_daemon(victim)
    next_epoch_works(job)


@pytest.mark.parametrize("switch", ["kernel", "user"])
def test_a_host_whose_packets_vanish_is_named_by_all_at_the_deadline(
    lab: MakeLab, group: MakeGroup, switch: str
) -> None:
    made = lab(f"5x1gbit,switch={switch}")
    job = group(made, apart=True, dead_after_s=30)  # it is the deadline that comes first
    drill = Drill(job, VICTIM, "amid")
    drill.strike(lambda: made.cut([VICTIM]), SHORT_S)
    all_timed_out(drill, drill.results(), "daemon does not answer", SHORT_S)
    own = drill.result(VICTIM)
    assert own["error"] == "CollectiveTimeoutError", own
    assert own["took_s"] < SHORT_S + LATE_S
    assert own["fields"]["partial"] is True, "it can't know what the others were told"
    made.heal([VICTIM])
    next_epoch_works(job)


def test_t3_the_text_says_who_is_missing_in_what_and_since_when(
    made: Lab, group: MakeGroup
) -> None:
    job = group(made, apart=True)
    all_sum(job)
    job.start(faults.call, but=3, timeout_s=SHORT_S)
    for rank, told in enumerate(job.results(but=3)):
        assert told["error"] == "CollectiveTimeoutError", told
        assert told["fields"]["culprits"] == [3]
        for words in (
            r"all_reduce \(operation 1 of the world, epoch 1\) ended at ",
            "rank 3 never entered it",
            # Its deadline or that of a rank which called before it: 5 s, or a little less.
            rf"Rank {rank} had 40 of 60 bytes after [345]\.\d+ s",
        ):
            assert re.search(words, told["text"]), told["text"]
    job.trainer(3).do(faults.call, timeout_s=SHORT_S)
    all_sum(job)


def test_t1_a_process_that_dies_on_another_host_is_known_to_all_at_once(
    made: Lab, group: MakeGroup
) -> None:
    job = group(made, apart=True)
    drill = Drill(job, VICTIM, "amid")
    drill.strike(lambda: job.kill_trainer(VICTIM), LONG_S)
    drill.working.discard(VICTIM)
    all_lost(drill, drill.results(), "trainer died", within_s=1.0 * WIDER)
    next_epoch_works(job)


def test_a_host_that_stays_away_is_lost_and_takes_part_again_when_it_is_back(
    made: Lab, group: MakeGroup
) -> None:
    job = group(made, apart=True)
    drill = Drill(job, VICTIM, "between")
    drill.strike(lambda: made.cut([VICTIM]), LONG_S)
    all_lost(drill, drill.results(), "daemon lost", within_s=DEAD_S)
    revive(job, VICTIM)


def test_a_host_that_is_back_before_anybody_misses_it_has_lost_nothing(
    made: Lab, group: MakeGroup
) -> None:
    job = group(made, apart=True)
    drill = Drill(job, VICTIM, "amid")
    drill.strike(lambda: made.cut([VICTIM]), LONG_S)
    drill.a_call_is_held_up()
    made.heal([VICTIM])
    drill.calls_go_on()
    drill.end_of_work()
    all_sum(job)


def test_while_the_rendezvous_is_out_of_reach_calls_go_on(made: Lab, group: MakeGroup) -> None:
    job = group(made, apart=True)
    all_sum(job)
    made.cut([4])
    until(
        lambda: all("rendezvous" in job.log(f"daemon{rank}") for rank in range(4)),
        "the daemons miss the rendezvous",
    )
    all_sum(job)
    made.heal([4])
    job.disconnect()
    next_epoch_works(job)


def test_r7_a_path_that_dies_while_idle_ends_the_next_call_at_its_deadline(
    made: Lab, group: MakeGroup
) -> None:
    job = group(made, apart=True, dead_after_s=30)
    all_sum(job)
    made.cut([VICTIM])
    for told in job.do(faults.call, timeout_s=3.0):
        assert told["error"] in ("CollectiveTimeoutError", "PeerLostError"), told
        assert told["took_s"] < 3.0 + LATE_S
        assert told["untouched"]
    made.heal([VICTIM])
    next_epoch_works(job)


def test_with_a_tenth_of_the_rate_calls_take_longer_and_nobody_is_to_blame(
    made: Lab, group: MakeGroup
) -> None:
    job = group(made, apart=True)
    for rank in range(4):
        made.change_rate([rank], 200_000_000)
    before = seconds(job)
    made.change_rate([VICTIM], 20_000_000)
    slow = seconds(job)
    assert 2 < slow / before < 40
    made.change_rate([VICTIM], 200_000_000)
    assert seconds(job) < slow / 2
    assert job.complaints() == []


def seconds(job: LanDaemons) -> float:
    """The median time of a sum of 1 MB."""
    times = []
    for _ in range(3):
        begun = time.monotonic()
        assert [told["error"] for told in job.do(faults.call, count=250_000)] == [None] * job.n
        times.append(time.monotonic() - begun)
    return statistics.median(times)
