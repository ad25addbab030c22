"""Figures of ``ringd bench --torch``, worked out by hand; the command itself, on real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ringd.bench.torch.figures import Case, Samples, row

STEP = Case("ddp step", "ringd", "adopted", 2, 4000)
CALL = Case("all_reduce", "ringd", "ordinary", 2, 1024)


def called(*times_us: float, ok: bool = True) -> dict[str, Any]:
    return {"times_us": list(times_us), "ok": ok, "cpu_us": sum(times_us) / 10}


def stepped(loss: float, digest: str = "a", time_us: float = 1.0) -> dict[str, Any]:
    return {"times_us": [time_us], "losses": [3.0, loss], "digest": digest, "cpu_us": 1.0}


def taken(*rounds: list[dict[str, Any]]) -> Samples:
    samples = Samples()
    for answers in rounds:
        samples.add(answers)
    return samples


def test_a_call_takes_as_long_as_on_its_slowest_rank() -> None:
    ours = taken([called(10.0, 40.0), called(20.0, 30.0)], [called(50.0, 8.0), called(1.0, 9.0)])
    peer = taken([called(60.0, 30.0), called(1.0, 1.0)])
    made = row(CALL, ours, peer)
    assert [made[name] for name in ("rounds", "samples", "min_us", "median_us", "p99_us")] == [
        2, 4, 9.0, 30.0, None,
    ]  # fmt: skip
    assert (made["ratio_min"], made["ratio_median"]) == (3.33, 1.5)
    assert (made["cpu_us"], made["ratio_cpu"]) == (4.2, 1.1)  # of 5, 5, 5.8 and 1; 9 and 0.2
    assert (made["ok"], made["same_bits"]) == (True, None)


def test_there_is_a_p99_of_a_hundred_calls() -> None:
    times = [float(time) for time in range(100)]
    assert row(CALL, taken([called(*times), called(*times)]), None)["p99_us"] == 99.0


def test_a_wrong_sum_of_one_rank_spoils_the_row() -> None:
    assert not row(CALL, taken([called(1.0), called(1.0, ok=False)]), None)["ok"]


def test_losses_are_the_peers_up_to_the_order_of_sums() -> None:
    peer = taken([stepped(2.0), stepped(4.0)])
    near = taken([stepped(2.0, "b"), stepped(4.000002, "b")])
    far = taken([stepped(2.0, "b"), stepped(4.00001, "b")])
    assert (row(STEP, near, peer)["ok"], row(STEP, near, peer)["same_bits"]) == (True, False)
    assert not row(STEP, far, peer)["ok"]
    assert row(STEP, peer, peer)["same_bits"] is True


def test_ranks_that_have_other_parameters_spoil_the_row() -> None:
    assert not row(STEP, taken([stepped(2.0, "a"), stepped(2.0, "b")]), None)["ok"]


# The network is one of 25 million parameters, whatever is quick about the rest.
@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.timeout(600)
def test_the_command_measures_both_backends_and_checks_that_they_train_alike(
    tmp_path: Path,
) -> None:
    path = tmp_path / "torch.json"
    command = [sys.executable, "-m", "ringd", "bench", "--torch", "--quick", "--rounds", "2"]
    done = subprocess.run(
        [*command, "--json", str(path)], capture_output=True, text=True, timeout=540, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(path.read_text())
    assert report["rows"] == []
    found = [(r["measure"], r["impl"], r["memory"], r["rounds"]) for r in report["torch"]]
    assert found == [
        ("all_reduce", "gloo", "ordinary", 2),
        ("all_reduce", "ringd", "ordinary", 2),
        ("ddp step", "gloo", "ordinary", 2),
        ("ddp step", "ringd", "adopted", 2),
        ("ddp step", "ringd", "copied", 2),
    ]
    assert all(r["ok"] and r["n"] == 2 for r in report["torch"])
    assert [r["same_bits"] for r in report["torch"]] == [None, None, None, True, True]
    assert "ddp step" in done.stdout
