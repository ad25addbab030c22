"""A host that is cut off without a word: its packets are lost, nothing is closed or refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringd.bench.faults.network import Network
from ringd.errors import UnsupportedPlatformError
from tests.processes.drills import (
    LATE_S,
    LONG_S,
    POINTS,
    SHORT_S,
    Drill,
    Point,
    all_lost,
    all_sum,
    all_timed_out,
    next_epoch_works,
)
from tests.processes.harness import WIDER
from tests.processes.networks import NetworkedDaemons, hosts
from tests.processes.programs import faults

DEAD_S = 3.5 * WIDER
"""Until the rendezvous misses a daemon's heartbeats, and all have heard."""
Make = Callable[[int], NetworkedDaemons]


@pytest.fixture
def networked(folder: Path, owner: str) -> Iterator[Make]:
    """``networked(3)``: connected trainers on three hosts; skips where there can be none."""
    with contextlib.ExitStack() as stack:

        def make(n: int) -> NetworkedDaemons:
            try:
                network = stack.enter_context(Network(hosts(n)))
            except UnsupportedPlatformError as exc:
                pytest.skip(str(exc))
            group = NetworkedDaemons(n, folder, owner, network)
            stack.callback(group.close)
            group.start_daemons()
            group.connect()
            return group

        yield make


def cells(always: tuple[int, int, Point]) -> Iterator[object]:
    for n in (3, 4, 5):
        for victim in range(n):
            for point in POINTS:
                cell = (n, victim, point)
                yield pytest.param(*cell, marks=() if cell == always else pytest.mark.slow)


def revive(group: NetworkedDaemons, victim: int) -> None:
    """The host is back, and its daemon is started anew, since the others may have lost it."""
    group.heal(victim)
    group.kill_daemon(victim)
    group.start_daemon(victim)
    group.await_daemon(victim)
    next_epoch_works(group)


@pytest.mark.parametrize(("n", "victim", "point"), list(cells((3, 1, "amid"))))
def test_a_host_that_is_cut_off_is_named_at_the_deadline(
    networked: Make, n: int, victim: int, point: Point
) -> None:
    group = networked(n)
    drill = Drill(group, victim, point)
    drill.strike(lambda: group.cut(victim), SHORT_S)
    drill.victim_joins(SHORT_S)
    all_timed_out(drill, drill.results(), "daemon does not answer")
    own = drill.result(victim)
    assert own["error"] == "CollectiveTimeoutError", own
    assert own["took_s"] < SHORT_S + LATE_S, own
    assert own["fields"]["partial"] is True, own
    revive(group, victim)


@pytest.mark.parametrize(("n", "victim", "point"), list(cells((4, 0, "between"))))
def test_a_host_that_is_cut_off_is_lost_when_its_heartbeats_are_missed(
    networked: Make, n: int, victim: int, point: Point
) -> None:
    group = networked(n)
    drill = Drill(group, victim, point)
    drill.strike(lambda: group.cut(victim), LONG_S)
    drill.working.discard(victim)
    all_lost(drill, drill.results(), "daemon lost", within_s=DEAD_S)
    group.kill_daemon(victim)
    if point == "amid":
        group.trainers[victim].result()
    group.heal(victim)
    group.start_daemon(victim)
    group.await_daemon(victim)
    next_epoch_works(group)


def test_r7_a_path_that_dies_while_idle_ends_the_next_call_at_its_deadline(
    networked: Make,
) -> None:
    group = networked(2)
    all_sum(group)
    group.cut(1)
    for told in group.do(faults.call, timeout_s=3.0):
        assert told["error"] in ("CollectiveTimeoutError", "PeerLostError"), told
        assert told["took_s"] < 3.0 + LATE_S
        assert told["untouched"]
    revive(group, 1)


def test_a_host_that_is_back_before_anybody_misses_it_has_lost_nothing(networked: Make) -> None:
    group = networked(3)
    drill = Drill(group, 2, "amid")
    drill.strike(lambda: group.cut(2), LONG_S)
    drill.a_call_is_held_up()
    group.heal(2)
    drill.calls_go_on()
    drill.end_of_work()
    all_sum(group)
