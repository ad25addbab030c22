"""Jobs that go wrong say so, and leave nothing."""

from __future__ import annotations

import os
import signal

import pytest

from ringd.demo.job import Job
from ringd.errors import RingdError

pytestmark = [pytest.mark.serial, pytest.mark.timeout(90)]


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_order_that_a_rank_can_not_carry_out_is_an_error_with_its_reason() -> None:
    with Job(2) as job:
        job.tell({"do": "dance"})
        with pytest.raises(RingdError, match="rank 1 .*nobody knows how to do 'dance'"):
            job.hear(1)
    assert not any(map(is_there, job.pids))
    assert not job.folder.exists()


def test_the_exit_code_must_be_the_expected_one() -> None:
    with pytest.raises(RingdError, match="exit code 137, not 0"), Job(2) as job:
        os.kill(job.pids[1], signal.SIGKILL)
    assert not any(map(is_there, job.pids))


def test_a_job_that_can_not_start_quotes_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGD_SEGMENT_BYTES", "much")
    with pytest.raises(RingdError, match="ended before it had begun; its log .*segment_bytes"):
        Job(2).__enter__()
