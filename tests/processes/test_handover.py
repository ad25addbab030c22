"""Answers that came no further than a rank's daemon, by real jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.job import run_job
from tests.processes.programs import handover


@pytest.mark.parametrize("n", [2, 3])
def test_a_step_that_others_have_committed_is_not_lost_where_agree_and_reform_are_cut_short(
    n: int, folder: Path, owner: str
) -> None:
    told = run_job(n, handover.commit_one_step, folder, owner)
    assert [one["steps"] for one in told] == [[1] * n] * n
    assert [one["agreed"] for one in told] == [None, True, None][:n]
    assert {one["epoch"] for one in told} == {2}
