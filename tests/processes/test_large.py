"""More than 2 GiB in one call, with real traffic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes.harness import Daemons
from tests.processes.programs import faults, large

NEEDED_GB = 14


def available_gb() -> float:
    """Memory that programs can have without others being pushed out."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 1e6
    return 0.0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_more_than_two_gib_are_summed_and_sent(daemons: Callable[..., Daemons]) -> None:
    if available_gb() < NEEDED_GB:
        pytest.skip(f"needs {NEEDED_GB} GB of memory, {available_gb():.1f} are available")
    group = daemons(2, arena_limit_bytes="6G")
    for dtype in ("uint8", "int32"):
        for program in (large.summed, large.sent):
            group.connect()  # each in memory that the one before has given back
            assert group.do(program, within_s=550, dtype=dtype) == [[], []]
            assert [told["value"] for told in group.do(faults.call)] == [2.0, 2.0]
            group.disconnect()
