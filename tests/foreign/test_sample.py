"""A sample of torch's own tests under ringd; `make foreign` runs all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
    "DdpUnderDistAutogradTest.test_backward_ddp_outside_uneven_inputs",
]

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of the sample, by name. In a process of its own: torch's tests go by settings."""
    results = tmp_path_factory.mktemp("foreign")
    command = [sys.executable, "-m", "tests.foreign", *SAMPLE, "--backend", "ringd"]
    with (results / "log").open("w") as log:
        subprocess.run(
            [*command, "--limit", "60", "--results", str(results)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": "client"},
            stdout=log,
            timeout=280,
            check=False,  # of what failed, the test says so
        )
    return {one["test"]: one for one in json.loads((results / "outcomes.json").read_text())}


@pytest.mark.parametrize("name", SAMPLE)
def test_torchs_own(outcomes: dict[str, dict[str, Any]], name: str) -> None:
    one = outcomes[name]
    assert one["outcome"] == "passed", one
    assert one["executed"] == one["ranks"] >= 3
