"""The rendezvous is killed, and does not come back: data goes on, and verdicts are partial."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.processes.drills import LATE_S, LONG_S, SHORT_S, Drill, Point, all_sum
from tests.processes.harness import Daemons, until
from tests.processes.programs import faults

Make = Callable[..., Daemons]


def cells(always: tuple[int, int, Point]) -> Iterator[object]:
    points: tuple[Point, ...] = ("before", "amid", "between")
    for n in (3, 4, 5):
        for point in points:
            cell = (n, n - 1, point)
            yield pytest.param(*cell, marks=() if cell == always else pytest.mark.slow)


def without_a_rendezvous(group: Daemons) -> None:
    """Kill it, and await that every daemon knows."""
    group.kill_rendezvous()
    for rank in range(group.n):
        until(
            lambda rank=rank: "the rendezvous is out of reach" in group.log(f"daemon{rank}"),  # type: ignore[misc]
            f"rank {rank} knows that the rendezvous is gone",
        )


@pytest.mark.parametrize(("n", "victim", "point"), list(cells((4, 3, "amid"))))
def test_calls_go_on_when_the_rendezvous_is_killed(
    daemons: Make, n: int, victim: int, point: Point
) -> None:
    group = daemons(n)
    group.connect()
    drill = Drill(group, victim, point)
    drill.strike(group.kill_rendezvous, LONG_S)
    drill.victim_joins(LONG_S)
    drill.calls_go_on()
    drill.end_of_work()
    all_sum(group)


@pytest.mark.parametrize("n", [3, pytest.param(4, marks=pytest.mark.slow), 5])
def test_who_never_enters_is_named_by_a_partial_verdict(daemons: Make, n: int) -> None:
    group = daemons(n)
    group.connect()
    all_sum(group)
    without_a_rendezvous(group)
    victim = n - 1
    group.start(faults.call, but=victim, timeout_s=SHORT_S, algorithm="exchange")
    for told in group.results(but=victim):
        assert told["error"] == "CollectiveTimeoutError", told
        assert SHORT_S - 0.1 < told["took_s"] < SHORT_S + LATE_S
        assert told["fields"]["partial"] is True, told
        assert told["fields"]["culprits"] == [victim], told
    late = group.trainer(victim).do(faults.call, timeout_s=LONG_S, algorithm="exchange")
    assert late["error"] == "CollectiveTimeoutError", late
    assert late["took_s"] < LATE_S
    all_sum(group)


def test_a_trainer_that_dies_then_is_no_reason_to_blame_a_healthy_rank(daemons: Make) -> None:
    group = daemons(4)
    group.connect()
    all_sum(group)
    without_a_rendezvous(group)
    group.kill_trainer(2)
    group.start(faults.call, but=2, timeout_s=SHORT_S)
    for told in group.results(but=2):
        assert told["error"] in ("CollectiveTimeoutError", "PeerLostError"), told
        assert told["took_s"] < SHORT_S + LATE_S
        assert set(told["fields"]["culprits"]) <= {2}, told
        assert told["fields"]["partial"] is True, told
