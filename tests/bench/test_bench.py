"""The command itself, on real processes: what it prints and what it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from ringd.bench.table import MIN_WIDTH

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]

COLUMNS = {
    "impl", "op", "n", "bytes", "count", "dtype", "algorithm", "resolved", "steps", "frames",
    "memory", "rounds", "min_us", "median_us", "p99_us", "algbw", "busbw", "ratio_min",
    "ratio_median", "ok",
}  # fmt: skip


OPS = (
    "all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter",
    "all_to_all", "sendrecv", "barrier",
)  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """What the command left behind."""

    stdout: str
    report: dict[str, Any]

    def rows(self, op: str, **fields: Any) -> list[dict[str, Any]]:
        return [
            r
            for r in self.report["rows"]
            if r["op"] == op and all(r[name] == value for name, value in fields.items())
        ]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    path = tmp_path_factory.mktemp("bench") / "bench.json"
    command = [sys.executable, "-m", "ringd", "bench", "--op", "all", "--sizes", "1K"]
    command += ["-n", "2", "-n", "3", "--rounds", "1", "--quick", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return Shown(done.stdout, json.loads(path.read_text()))


def test_the_report_says_what_took_part(shown: Shown) -> None:
    assert shown.report["schema"] == 1
    assert {"ringd", "torch", "python"} <= set(shown.report["versions"])
    assert {r["op"] for r in shown.report["rows"]} == set(OPS)


@pytest.mark.parametrize("op", OPS)
def test_every_operation_has_its_rows_beside_gloo(shown: Shown, op: str) -> None:
    size = 0 if op == "barrier" else 1024
    found = [(r["n"], r["impl"], r["bytes"], r["memory"]) for r in shown.rows(op)]
    assert found == [
        (n, impl, size, memory)
        for n in (2, 3)
        for impl, memory in (("gloo", "ordinary"), ("ringd", "ordinary"), ("ringd", "arena"))
        if memory == "ordinary" or op != "barrier"
    ]
    assert f"{op} float32 on " in shown.stdout


@pytest.mark.parametrize("op", OPS)
def test_every_result_was_right_and_every_row_is_whole(shown: Shown, op: str) -> None:
    for r in shown.rows(op):
        assert set(r) >= COLUMNS
        assert r["ok"] is True
        assert r["rounds"] == 1
        assert 0 < r["min_us"] <= r["median_us"]
        is_peer = r["impl"] == "gloo"
        assert [r[name] is None for name in ("ratio_min", "steps", "frames")] == [is_peer] * 3


def test_a_small_all_reduce_of_two_ranks_is_one_step_and_one_frame(shown: Shown) -> None:
    """The fingerprint travels with the data: no round trip of its own."""
    for r in shown.rows("all_reduce", impl="ringd", n=2, bytes=1024):
        assert (r["resolved"], r["steps"]) == ("exchange", 1)
        assert 1 <= r["frames"] < 1.5


def test_messages_of_a_ring_are_one_frame_each(shown: Shown) -> None:
    for r in shown.rows("sendrecv", impl="ringd", bytes=1024):
        assert r["steps"] == 1
        assert 1 <= r["frames"] < 1.5


def test_the_table_says_what_its_figures_are(shown: Shown) -> None:
    for word in ("nccl-tests", "ratio", "steps", "frames"):
        assert word in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= MIN_WIDTH
    assert "…" not in shown.stdout  # no figure is cut off
