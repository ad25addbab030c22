"""Folds of native types against torch's own operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ringd.kernels import kernel_for
from tests.kernels.reference import COMPLEX, PAIRS, SIXTEEN_BIT, plain_values

torch: Any = pytest.importorskip("torch", reason="torch says what the results are")

STEPS = {
    "sum": torch.add,
    "avg": torch.add,
    "premul_sum": torch.add,
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


@pytest.mark.parametrize(("dtype", "op"), [p for p in PAIRS if p[0] not in SIXTEEN_BIT])
@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_the_fold_is_what_torch_gives_step_by_step(dtype: str, op: str, world_size: int) -> None:
    contributions = [plain_values(dtype, 500, seed) for seed in range(world_size)]
    if contributions[0].dtype.kind == "f":
        contributions[-1][::7] = np.nan
    total = torch.from_numpy(contributions[0])
    for contribution in contributions[1:]:
        total = STEPS[op](total, torch.from_numpy(contribution))
    expected = total.numpy()
    if op == "avg" and dtype in COMPLEX:
        expected = (torch.view_as_real(total) / world_size).numpy().view(dtype)[:, 0]
    elif op == "avg":
        expected = (total / world_size).numpy()
    out = np.empty(500, dtype)
    kernel_for(dtype, op, world_size, every_rank_folds=False).fold(contributions, out)
    assert expected.dtype == out.dtype
    if op == "prod" and dtype in COMPLEX:
        # torch may fuse a product and an addition, and so round once less.
        np.testing.assert_allclose(out, expected, rtol=1e-5 if dtype == "complex64" else 1e-14)
    else:
        np.testing.assert_array_equal(out, expected)
