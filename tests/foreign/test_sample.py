"""A sample of torch's own tests under ringd; `make foreign` runs all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.foreign.outcome import Outcome, account

ROOT = Path(__file__).parents[2]

SAMPLE = [
    "TestDistributed.test_DistributedDataParallelCPU_grad_is_view",
    "TestDistributed.test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "TestDistributed.test_all_gather_coalesced_complex",
    "TestDistributed.test_all_reduce_coalesced_max_complex_unsupported",
    "TestDistributed.test_all_reduce_sum_async",
    "TestDistributed.test_barrier_timeout_full_group",
    "TestDistributed.test_batch_isend_irecv_gloo_tags",
    "TestDistributed.test_broadcast_group",
    "TestDistributed.test_gather_object",
    "TestDistributed.test_get_future",
    "TestDistributed.test_scatter_object_list",
    "TestDistributed.test_send_recv_any_source_torch_profiler",
    "TestDistributed.test_sparse_all_reduce_sum",
    "RpcTest.test_init_pg_then_rpc",
    "DdpComparisonTest.test_ddp_comparison",
    "DdpComparisonTest.test_ddp_comparison_uneven_inputs",
]
"""None of DdpUnderDistAutogradTest, which `make foreign` runs: there a notify ends a rank, and is
lost on one that does not wait yet, which a busy machine can make of any."""
LIMIT_S = 120
"""For one that hangs: on a crowded machine the longest takes 20 s."""
WITHIN_S = 900
"""For all, two at a time: enough for most of them to hang."""

pytestmark = [pytest.mark.serial, pytest.mark.timeout(WITHIN_S + 60)]


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Why each of the sample did not pass, by name; "": it did.

    In a process of its own: torch's tests go by settings.
    """
    results = tmp_path_factory.mktemp("foreign")
    command = [sys.executable, "-m", "tests.foreign", *SAMPLE, "--backend", "ringd"]
    log = results / "log"
    with (
        log.open("w") as output,
        subprocess.Popen(
            [*command, "--limit", str(LIMIT_S), "--results", str(results)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": "client"},
            stdout=output,
            stderr=output,
        ) as process,
    ):
        try:
            process.wait(WITHIN_S)  # of what failed, each test says so
        except subprocess.TimeoutExpired:
            pytest.fail(f"not done within {WITHIN_S} s:\n{log.read_text()}", pytrace=False)
        finally:
            process.terminate()  # a kill would leave ranks behind
    told = results / "outcomes.json"
    if not told.exists():
        text = f"it ended with {process.returncode} before its end:\n{log.read_text()}"
        pytest.fail(text, pytrace=False)
    outcomes = [Outcome(**one) for one in json.loads(told.read_text())]
    return {one.test: _account(one, results) for one in outcomes}


def _account(one: Outcome, results: Path) -> str:
    if one.outcome == "passed" and one.executed == one.ranks >= 3:
        return ""
    log = results / f"{one.test}.{one.backend}.log"
    return account(one, log.read_text() if log.exists() else "")


@pytest.mark.parametrize("name", SAMPLE)
def test_torchs_own(accounts: dict[str, str], name: str) -> None:
    if accounts[name]:
        pytest.fail(accounts[name], pytrace=False)
