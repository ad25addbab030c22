"""``ringd bench --startup``: what a job leaves behind is waited for and counted; the command."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.serial

BEGIN = """
import subprocess, sys, time
from ringd.bench.startup.children import adopting_orphans, wait_for
from ringd.errors import RingdError

def python(code):
    return subprocess.Popen([sys.executable, "-c", code])

burn = "import time\\nwhile time.process_time() < 0.5: pass"
orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burn!r}])"
"""


def output(code: str) -> list[str]:
    """What it prints; it waits for all children of its process, so that is not ours."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_processor_time_of_orphans_counts_and_their_end_is_waited_for() -> None:
    ended_first, cpu_s = output("""
        with adopting_orphans():
            ended, cpu_s = wait_for([python(orphan)], 30)
            print(time.monotonic() - ended > 0.1, cpu_s)
    """)
    assert ended_first == "True"
    assert 0.5 <= float(cpu_s) < 5


def test_a_rank_that_fails_is_an_error() -> None:
    assert output("""
        try:
            wait_for([python("pass"), python("raise SystemExit(3)")], 30)
        except RingdError as exc:
            print("failed" in str(exc))
    """) == ["True"]


def test_at_the_limit_nothing_is_left() -> None:
    assert output("""
        process = python("import time; time.sleep(1000)")
        try:
            wait_for([process], 0.2)
        except RingdError:
            print(process.poll() is not None)
    """) == ["True"]


@pytest.mark.slow
def test_a_table_and_json_of_each_backend(tmp_path: Path) -> None:
    path = tmp_path / "startup.json"
    options = ("--startup", "-n", "2", "--rounds", "1", "--json", str(path))
    done = subprocess.run(
        [sys.executable, "-m", "ringd", "bench", *options],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    rows = {row["impl"]: row for row in json.loads(path.read_text())["startup"]}
    assert set(rows) == {"none", "gloo", "ringd", "ringd run --preload torch"}
    for row in rows.values():
        assert (row["n"], row["rounds"]) == (2, 1)
        assert 0 < row["min_s"] == row["median_s"] == row["max_s"]
        assert row["cpu_min_s"] > 0
    assert "ringd" in done.stdout
