"""Part 1 on real ranks: cases that hold, and one that a rank was told wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import pytest

from ringd.demo import verify
from ringd.demo.cases import Case
from ringd.demo.job import Job

pytestmark = [pytest.mark.serial, pytest.mark.timeout(180)]

N = 3
"""No power of two, and not what the demo takes."""


@pytest.fixture(scope="module")
def job() -> Iterator[Job]:
    with Job(N) as job:
        job.order("gloo", store=str(job.folder / "gloo"))
        yield job


@pytest.mark.parametrize("name", [name for name in verify.batches(N) if name != "sub-groups"])
def test_every_sort_of_case_holds(job: Job, name: str) -> None:
    """The first and the last of each batch: small and large."""
    batch = verify.batches(N)[name]
    chosen = [batch[0], batch[-1]]
    for row in run(job, chosen):
        assert row["ok"], row
        assert row["world_size"] == N


def test_cases_in_groups_hold_though_these_are_of_different_size(job: Job) -> None:
    """Ranks 2 and 0 are a group, and rank 1 is one of its own."""
    batch = [c for c in verify.batches(N)["sub-groups"] if c.root < 1 and "/" not in c.collective]
    assert {c.collective for c in batch} >= {"all_reduce", "all_gather", "all_to_all"}
    for row in run(job, batch):
        assert row["ok"], row


def test_a_rank_with_other_data_is_found_out(job: Job) -> None:
    """Rank 1 takes the input of another case, so what the others get is not what they expect."""
    case = Case("all_gather", "int16", "", "ring", 64)
    orders = [replace(case, reduce_op="prod") if rank == 1 else case for rank in range(N)]
    for rank, order in enumerate(orders):
        job.tell_one(rank, {"do": "verify", "cases": [asdict(order)]})
    row = verify.judge(case, [job.hear(rank)["results"][0] for rank in range(N)])
    assert row["failure"] is None
    assert not row["ok"]
    assert all(row["ok"] for row in run(job, [case]))


def run(job: Job, batch: list[Case]) -> list[dict[str, Any]]:
    answers = job.order("verify", cases=[asdict(case) for case in batch])
    return [
        verify.judge(case, [answer["results"][number] for answer in answers])
        for number, case in enumerate(batch)
    ]
