"""Long runs: sums stay right under skew, and neither memory nor descriptors nor threads grow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes.harness import Daemons, until
from tests.processes.inventory import inventory
from tests.processes.programs import faults

Standing = Callable[[int], Daemons]
MB = 1_000_000
DEADLINE_S = 60.0


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_t7_sums_of_mixed_sizes_under_skew_are_all_right(standing: Standing, n: int) -> None:
    results = standing(n).do(faults.soak, rounds=40, max_count=1_000_000, skew_ms=20)
    for told in results:
        assert told["wrong"] == []
        assert told["seq"] == 40
        assert told["slowest_s"] < DEADLINE_S


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_t7_two_thousand_of_them(standing: Standing, n: int) -> None:
    arguments = {"rounds": 2000, "max_count": 1_000_000, "skew_ms": 20}
    for told in standing(n).do(faults.soak, within_s=1100, **arguments):
        assert told["wrong"] == []
        assert told["seq"] == 2000


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("rounds", [2000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_daemon_and_its_trainer_stay_as_they_are_over_many_operations(
    daemons: Callable[..., Daemons], rounds: int
) -> None:
    group = daemons(2)
    group.connect()
    warm = group.do(faults.mixed, rounds=210)
    before = [inventory(group.daemon_pid(rank)) for rank in range(2)]
    trainers = [inventory(group.trainer(rank).pid) for rank in range(2)]
    results = group.do(faults.mixed, rounds=rounds, within_s=1100)
    for was, now in zip(warm, results, strict=True):
        # One segment more is no leak: calls that nobody waits for overlap for longer when the
        # machine is busy. One of a thousand calls would be ten.
        assert now["segments"] <= was["segments"] + 1
        assert (now["fds"], now["threads"]) == (was["fds"], was["threads"])
    for rank in range(2):
        after = inventory(group.daemon_pid(rank))
        assert after.mapped_segments <= before[rank].mapped_segments + 1
        assert after.fds - after.mapped_segments == before[rank].fds - before[rank].mapped_segments
        assert after.threads == before[rank].threads
        assert after.private_bytes - before[rank].private_bytes < 8 * MB
        trainer = inventory(group.trainer(rank).pid)
        assert trainer.private_bytes - trainers[rank].private_bytes < 8 * MB
    group.disconnect()
    for rank in range(2):

        def clean(rank: int = rank) -> bool:
            return inventory(group.daemon_pid(rank)).mapped_segments == 0

        until(clean, "the daemon has unmapped its trainer's memory")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("rounds", [1000, pytest.param(9000, marks=pytest.mark.slow)])
def test_f1_gathers_of_changing_sizes_leave_memory_as_it_was(
    daemons: Callable[..., Daemons], rounds: int
) -> None:
    group = daemons(2)
    group.connect()
    assert group.do(faults.gather_many, rounds=1000) == [[], []]
    pids = [group.daemon_pid(rank) for rank in range(2)]
    pids += [group.trainer(rank).pid for rank in range(2)]
    before = [inventory(pid) for pid in pids]
    assert group.do(faults.gather_many, rounds=rounds, within_s=1100) == [[], []]
    for was, pid in zip(before, pids, strict=True):
        now = inventory(pid)
        assert now.private_bytes - was.private_bytes < 20 * MB
        assert (now.fds, now.threads) == (was.fds, was.threads)
        assert now.mapped_segments == was.mapped_segments


def test_an_idle_daemon_is_small_and_has_no_torch(daemons: Callable[..., Daemons]) -> None:
    group = daemons(2)
    group.connect()
    for rank in range(2):
        pid = group.daemon_pid(rank)
        assert inventory(pid).private_bytes < 60 * MB
        assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
