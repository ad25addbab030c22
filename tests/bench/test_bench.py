"""The command itself, on real processes: what it prints and what it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COLUMNS = {
    "impl", "op", "n", "bytes", "count", "dtype", "algorithm", "memory", "rounds", "min_us",
    "median_us", "p99_us", "algbw", "busbw", "ratio_min", "ratio_median", "ok",
}  # fmt: skip


@pytest.mark.serial
@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "all_gather", "broadcast"])
def test_bench_checks_results_and_writes_every_row(op: str, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    command = [sys.executable, "-m", "ringd", "bench", "--op", op, "--sizes", "1K,64K", "-n", "2"]
    command += ["--rounds", "2", "--quick", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(path.read_text())
    assert report["schema"] == 1
    assert {"ringd", "torch", "python"} <= set(report["versions"])
    rows = report["rows"]
    found = [(r["impl"], r["bytes"], r["memory"]) for r in rows]
    assert found == [
        (impl, size, memory)
        for size in (1024, 65536)
        for impl, memory in (("gloo", "ordinary"), ("ringd", "ordinary"), ("ringd", "arena"))
    ]
    for r in rows:
        assert set(r) >= COLUMNS
        assert r["ok"] is True
        assert (r["op"], r["n"], r["rounds"]) == (op, 2, 2)
        assert 0 < r["min_us"] <= r["median_us"]
        assert (r["ratio_min"] is None) == (r["impl"] == "gloo")
    assert op in done.stdout
    assert "ratio" in done.stdout
