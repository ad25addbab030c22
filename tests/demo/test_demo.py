"""The whole demo, once, as a user starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ringd.bench.table import MIN_WIDTH
from ringd.vocabulary import ALGORITHMS, DTYPES, REDUCING, reductions

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytestmark = [pytest.mark.serial, pytest.mark.slow, pytest.mark.timeout(360)]


@dataclass(frozen=True)
class Shown:
    """What the demo left behind."""

    code: int
    stdout: str
    stderr: str
    report: dict[str, Any]
    plots: list[Path]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-m", "ringd", "demo", "--json", "demo.json", "--plot", "plots"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=340,
        check=False,
    )
    path = folder / "demo.json"
    report = json.loads(path.read_text()) if path.exists() else {}
    return Shown(
        done.returncode, done.stdout, done.stderr, report, sorted((folder / "plots").glob("*.png"))
    )


def test_every_row_holds(shown: Shown) -> None:
    rows = [*shown.report["verify"], *shown.report["bytes"], *shown.report["timing"]]
    rows += [shown.report["training"], shown.report["fault"]]
    assert [row for row in rows if row["ok"] is not True] == []
    assert (shown.code, shown.report["ok"]) == (0, True)


def test_the_report_has_the_schema_that_was_promised(shown: Shown) -> None:
    assert list(shown.report) == [
        "schema", "verify", "bytes", "timing", "training", "fault", "ok"
    ]  # fmt: skip
    assert shown.report["schema"] == 1


def test_every_collective_dtype_and_reduce_op_is_verified(shown: Shown) -> None:
    plain = [r for r in shown.report["verify"] if not r["form"]]
    seen = {(r["collective"], r["dtype"], r["reduce_op"]) for r in plain}
    for collective in set(ALGORITHMS) - {"barrier", "agree", "new_group"}:
        for dtype in DTYPES:
            for op in reductions(dtype) if collective in REDUCING else ("",):
                assert (collective, dtype, op) in seen
    taken = {(r["collective"], r["algorithm"]) for r in plain}
    assert taken == {("send/recv", "")} | {
        (collective, algorithm)
        for collective in set(ALGORITHMS) - {"agree", "new_group"}
        for algorithm in ALGORITHMS[collective]
        if algorithm != "auto"
    }


def test_gloo_is_the_reference_where_it_can_be(shown: Shown) -> None:
    found = Counter(r["reference"] for r in shown.report["verify"])
    assert set(found) == {"gloo", "float32 fold", "definition"}
    assert found["gloo"] > len(shown.report["verify"]) / 2


def test_the_ring_sends_what_the_lesson_says(shown: Shown) -> None:
    ring = [
        row
        for row in shown.report["bytes"]
        if (row["collective"], row["algorithm"], row["dtype"]) == ("all_reduce", "ring", "float32")
    ]
    assert Counter(row["world_size"] for row in ring) == {2: 2, 3: 3, 4: 4}
    for row in ring:
        n = row["world_size"]
        assert row["measured_bytes"] * n == 2 * row["total_bytes"] * (n - 1)
        assert 0 < row["overhead_bytes"] < row["measured_bytes"] / 100


def test_auto_takes_one_algorithm_at_each_size(shown: Shown) -> None:
    rows = shown.report["timing"]
    assert {row["bytes"] for row in rows} == {1 << 10, 64 << 10, 1 << 20, 16 << 20}
    assert {row["algorithm"] for row in rows} == {*ALGORITHMS["all_reduce"]} - {"auto"}
    assert Counter(row["bytes"] for row in rows if row["auto"]) == dict.fromkeys(
        (1 << 10, 64 << 10, 1 << 20, 16 << 20), 1
    )


def test_the_network_learns_as_it_does_with_gloo(shown: Shown) -> None:
    training = shown.report["training"]
    assert training["losses"] == pytest.approx(training["losses_gloo"], rel=1e-5)
    assert training["losses"][-1] < training["losses"][0] / 5
    assert training["bit_equal"]
    assert training["accuracy"] > 0.9


def test_all_survivors_name_the_rank_that_was_killed(shown: Shown) -> None:
    fault = shown.report["fault"]
    assert [s["rank"] for s in fault["survivors"]] == [0, 1, 3]
    assert {s["error"] for s in fault["survivors"]} == {"PeerLostError"}
    assert all("rank 2" in s["text"] for s in fault["survivors"])
    assert 0 < fault["slowest_s"] <= 1.0


def test_a_pipe_gets_plain_text_and_no_progress(shown: Shown) -> None:
    assert shown.stderr == ""
    assert "\x1b" not in shown.stdout
    for part in ("1. Verify", "2. Bytes", "3. Timing", "4. Training", "5. Fault"):
        assert part in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= MIN_WIDTH


def test_the_plots_are_drawn(shown: Shown) -> None:
    assert [path.name for path in shown.plots] == ["bytes.png", "timing.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in shown.plots)
