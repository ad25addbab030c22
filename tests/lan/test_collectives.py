"""Every collective between hosts, against gloo between the same hosts and the definition."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringd.lab.spec import IPV6_ONLY
from tests.lan.conftest import MakeGroup, MakeLab
from tests.processes.harness import nothing_is_wrong
from tests.processes.programs import faults, operations, parts

COUNT = 37


@pytest.mark.parametrize("text", ["4x1gbit", "4x1gbit,delay=1ms,jitter=500us,loss=0.1%"])
def test_every_collective_dtype_and_op_gives_what_its_definition_and_gloo_say(
    lab: MakeLab, group: MakeGroup, tmp_path: Path, text: str
) -> None:
    job = group(lab(text))
    results = job.do(
        operations.every_pair, store=str(tmp_path / "store"), count=COUNT, within_s=100
    )
    nothing_is_wrong(results)
    assert results[0]["by_gloo"] > 200
    assert {len(job.links(rank)) for rank in range(4)} == {3}


def test_every_algorithm_and_root_gives_what_the_definition_says(
    lab: MakeLab, group: MakeGroup
) -> None:
    job = group(lab("4x1gbit"))
    results = job.do(
        operations.every_algorithm, library="torch", counts=[1, 1000], dtypes=["int32", "bfloat16"]
    )
    nothing_is_wrong(results)
    assert results[0]["made"] > 200


def test_uneven_parts_and_lists_give_what_the_definition_says_over_ipv6(
    lab: MakeLab, group: MakeGroup
) -> None:
    job = group(lab("3x1gbit", quirks=(IPV6_ONLY,)))
    results = job.do(parts.uneven)
    nothing_is_wrong(results)
    assert results[0]["made"] > 40


def test_t7_sums_of_mixed_sizes_with_skew_are_right_on_a_network_that_loses_packets(
    lab: MakeLab, group: MakeGroup
) -> None:
    job = group(lab("4x200mbit,delay=1ms,jitter=1ms,loss=1%"))
    told = job.do(faults.soak, rounds=150, max_count=20_000, skew_ms=2.0, within_s=100)
    for one in told:
        assert one["wrong"] == [], one
