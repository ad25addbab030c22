"""``ringd bench --lab``: ranks on hosts of their own, gloo on the same ones in turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringd.bench.ops import resolve

LIMIT_S = 280.0


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ringd", "bench", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.mark.parametrize("text", ["3x100mbit", "2x1gbit,delay=1ms"])
def test_the_rows_say_that_ranks_have_hosts_of_their_own_and_what_the_link_carries(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "bench.json"
    sizes = ["--sizes", "1K,1M", "--rounds", "1", "--quick", "--memory", "arena"]
    done = bench("--lab", text, *sizes, "--json", str(path))
    assert done.returncode == 0, done.stderr
    assert "of link" in done.stdout
    report = json.loads(path.read_text())
    n, rate = report["lab"]["hosts"], report["lab"]["rate_bps"]
    assert text.startswith(f"{n}x")
    found = [(row["impl"], row["n"], row["bytes"]) for row in report["rows"]]
    assert found == [(impl, n, size) for size in (1024, 1 << 20) for impl in ("gloo", "ringd")]
    for row in report["rows"]:
        assert row["ok"] is True
        assert row["own_hosts"] is True
        busbw_bps = 8e3 * row["bytes"] / row["median_us"] * 2 * (n - 1) / n * 1e3
        assert row["of_link"] == pytest.approx(busbw_bps / rate, rel=0.01)
        assert row["of_link"] < 1.0, "no link carries more than its rate"
        if row["impl"] == "ringd":
            wanted = resolve(
                "all_reduce", "auto", count=row["count"], dtype="float32", n=n, own_hosts=True
            )
            assert row["resolved"] == wanted
    assert not [name for name in os.listdir("/run/netns") if "bench" in name]


def test_ranks_are_as_many_as_hosts(tmp_path: Path) -> None:
    done = bench("--lab", "4x1gbit", "-n", "2")
    assert done.returncode == 2
    assert "has a rank on each host" in done.stderr
