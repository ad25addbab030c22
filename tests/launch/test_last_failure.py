"""What is kept of failures under ``ringd run``, and what ``ringd explain`` makes of it."""

from __future__ import annotations

import signal
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from ringd.observe.dumps import read
from ringd.observe.explain import explain
from ringd.observe.explain_text import paragraph
from tests.processes.harness import until
from tests.processes.job import Job, start_job

ENDS_WITHIN_S = 30.0


@pytest.fixture
def start(folder: Path, owner: str) -> Callable[..., Job]:
    """Start a job of N ranks of a Python program."""

    def begin(n: int, program: str, *flags: str) -> Job:
        path = folder / "program.py"
        path.write_text(textwrap.dedent(program))
        return start_job(n, [sys.executable, str(path)], folder, owner, *flags)

    return begin


TIMES_OUT = """
    import time, numpy, ringd_client
    comm = ringd_client.connect()
    comm.barrier()
    if comm.rank == 1:
        print("away", flush=True)
        time.sleep(600)
    try:
        comm.all_reduce(numpy.ones(4), timeout_s=0.5)
    except ringd_client.CollectiveTimeoutError:
        print("failed", flush=True)
    time.sleep(600)
"""


def test_what_failed_before_a_signal_is_kept(start: Callable[..., Job]) -> None:
    job = start(2, TIMES_OUT)
    job.await_output("failed")
    own = next(job.folder.glob("run/ringd/*/job.json")).parent
    until(lambda: len(list(own.glob("flight-*.json"))) == 2, "both daemons have dumped")
    job.process.send_signal(signal.SIGINT)
    assert job.wait(ENDS_WITHIN_S) == 130
    assert "flight recorders of what failed before that: ringd explain" in job.err
    report = explain(read([job.folder / "run/ringd/last-failure"]))
    assert report.headline is not None
    assert report.headline.ranks("never entered") == [1]
    assert report.loss is None


RAISES = """
    import os, pathlib, time, numpy, ringd_client
    comm = ringd_client.connect()
    comm.all_reduce(numpy.ones(4))
    if comm.rank == 1:
        raise ValueError("bad batch")
    folder = pathlib.Path(os.environ["RINGD_SOCKET"]).parent
    while len(list(folder.glob("flight-*.json"))) < 3:
        time.sleep(0.01)  # between calls: the first dumps are written meanwhile
    comm.all_reduce(numpy.ones(4))
"""


def test_an_exception_between_calls_is_explained_and_the_next_calls_failure_too(
    start: Callable[..., Job],
) -> None:
    job = start(3, RAISES)
    assert job.wait(ENDS_WITHIN_S) == 1
    assert "flight recorders of this failure: ringd explain" in job.err
    report = explain(read([job.folder / "run/ringd/last-failure"]))
    assert report.loss is not None
    assert (report.loss.rank, report.loss.case) == (1, "trainer raised")
    assert report.loss.place.endswith("program.py:6")
    assert report.headline is not None
    assert (report.headline.seq, report.headline.ranks("failed")) == (1, [0, 2])
    text = paragraph(report)
    assert "trainer raised (ValueError: bad batch (program.py:6))" in text
    assert f"raised at {report.loss.place}" in text
