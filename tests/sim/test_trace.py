"""The same seed, the same run: event by event, timer by timer, in any process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ringd.sim.draw import scenario_of
from ringd.sim.kinds import KINDS
from ringd.sim.trace import Trace, line_of
from ringd.transport.memory import TraceEvent

SEEDS = (5000, 5001, 5002, 5003)
SCRIPT = """
import sys
from ringd.sim.draw import scenario_of
from ringd.sim.trace import Trace
for seed in map(int, sys.argv[1:]):
    trace = Trace(keep=False)
    scenario_of(seed, trace=trace).run()
    print(trace.digest)
"""


def digest_of(seed: int, **fixed: object) -> str:
    trace = Trace(keep=False)
    scenario_of(seed, trace=trace, **fixed).run()  # type: ignore[arg-type]
    assert not trace
    return trace.digest


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_run_of_a_seed_gives_the_same_trace(kind: str) -> None:
    first, second = Trace(), Trace()
    for trace in (first, second):
        scenario_of(77, fault=kind, trace=trace).run()
    assert first == second
    assert first.digest == second.digest
    told = {what for _, what, *_ in first}
    assert {"deliver", "ended", "heal all"} <= told


def test_other_processes_get_the_same_traces_whatever_their_hashes_are() -> None:
    ours = [digest_of(seed) for seed in SEEDS]
    assert len(set(ours)) == len(SEEDS)
    for hash_seed in ("1", "4321"):
        theirs = subprocess.run(
            [sys.executable, "-c", SCRIPT, *map(str, SEEDS)],
            env={
                **os.environ,
                "PYTHONHASHSEED": hash_seed,
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )
        assert theirs.stdout.split() == ours


def test_a_run_is_the_same_with_and_without_a_trace() -> None:
    with_one, without = scenario_of(5001, trace=Trace()), scenario_of(5001)
    told, untold = with_one.run(), without.run()
    assert (told.steps, told.virtual_s) == (untold.steps, untold.virtual_s)


def test_the_digest_is_of_events_their_order_and_the_steps_between_them() -> None:
    def digest(*told: TraceEvent | int) -> str:
        trace = Trace()
        for one in told:
            if isinstance(one, int):
                trace.step(1.0, one)
            else:
                trace.append(one)
        return trace.digest

    a: TraceEvent = (1.0, "deliver", "x", 5)
    b: TraceEvent = (1.0, "deliver", "y", 5)
    digests = [
        digest(a, b), digest(b, a), digest(a), digest((1.0, "deliver", "x", 6)),
        digest(a, 2), digest(a, 3), digest(2, a), digest(),
    ]  # fmt: skip
    assert len(set(digests)) == len(digests)
    assert digest(a, b) == digest(a, b)


def test_events_are_shown_as_lines() -> None:
    shown: list[str] = []
    Trace(keep=False, show=shown.append).append((1000.25, "deliver", "a:1>b:2", 64))
    assert shown == [line_of((1000.25, "deliver", "a:1>b:2", 64))]
    assert shown[0].split() == ["1000.250000", "deliver", "a:1>b:2", "64"]
