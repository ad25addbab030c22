"""Which scenario a seed is."""

from __future__ import annotations

import random

from ringd.sim.elastic_scenario import ELASTIC, Elastic
from ringd.sim.kinds import KINDS
from ringd.sim.scenario import Scenario
from ringd.sim.trace import Trace

FAULTS = (*KINDS, *ELASTIC)
"""The names of all kinds."""
_ELASTIC_PART = 0.25


def scenario_of(
    seed: int, *, n: int | None = None, fault: str | None = None, trace: Trace | None = None
) -> Scenario | Elastic:
    """The scenario of a seed, with ranks and fault fixed if they are named."""
    elastic = random.Random(f"kind {seed}").random() < _ELASTIC_PART
    if fault in ELASTIC or (fault is None and elastic):
        return Elastic(seed, n=n, fault=fault, trace=trace)
    return Scenario(seed, n=n, fault=fault, trace=trace)
