"""bool: logical operations, of any byte but 0 as true, and results of bytes 0 and 1 only."""

from __future__ import annotations

import numpy as np
import pytest

from ringd.kernels import Array, kernel_for
from tests.kernels.reference import block_of

TRUTH = {
    "sum": lambda a, b: (a != 0) | (b != 0),
    "max": lambda a, b: (a != 0) | (b != 0),
    "bor": lambda a, b: (a != 0) | (b != 0),
    "prod": lambda a, b: (a != 0) & (b != 0),
    "min": lambda a, b: (a != 0) & (b != 0),
    "band": lambda a, b: (a != 0) & (b != 0),
    "bxor": lambda a, b: (a != 0) ^ (b != 0),
}
SIZES = [*range(70), 1000, block_of("bool") - 1, block_of("bool"), block_of("bool") + 1]


def bytes_at(offset: int, values: Array) -> Array:
    """A bool array of these bytes that begins ``offset`` bytes into aligned memory."""
    memory = np.zeros(offset + values.size, np.uint8)
    memory[offset:] = values
    return memory[offset:].view(np.bool_)


@pytest.mark.parametrize("op", TRUTH)
def test_every_pair_of_bytes_gives_its_truth_as_0_or_1(op: str) -> None:
    a, b = (m.ravel().astype(np.uint8) for m in np.meshgrid(np.arange(256), np.arange(256)))
    expected = TRUTH[op](a, b).astype(np.uint8)
    kernel = kernel_for("bool", op, 2, every_rank_folds=False)
    out = bytes_at(0, np.full(a.size, 7))
    kernel.fold([bytes_at(0, a), bytes_at(0, b)], out)
    np.testing.assert_array_equal(out.view(np.uint8), expected)
    for first in (False, True):
        acc = bytes_at(0, a)
        kernel.reduce_into(acc, bytes_at(0, b), contribution_first=first)
        np.testing.assert_array_equal(acc.view(np.uint8), expected)


@pytest.mark.parametrize("op", TRUTH)
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_whatever_the_length_the_offset_and_where_the_result_goes(op: str, offset: int) -> None:
    kernel = kernel_for("bool", op, 3, every_rank_folds=True)
    rng = np.random.default_rng(offset)
    for size in SIZES:
        raw = [rng.choice(np.array([0, 0, 1, 3, 128, 255], np.uint8), size) for _ in range(3)]
        expected = TRUTH[op](TRUTH[op](raw[0], raw[1]), raw[2]).astype(np.uint8)
        for index in range(3):
            contributions = [bytes_at(offset + i, values) for i, values in enumerate(raw)]
            kernel.fold(contributions, contributions[index])
            np.testing.assert_array_equal(contributions[index].view(np.uint8), expected)


@pytest.mark.parametrize("op", TRUTH)
def test_a_rank_alone_gets_bytes_of_0_and_1_too(op: str) -> None:
    kernel = kernel_for("bool", op, 1, every_rank_folds=False)
    raw = np.array([0, 1, 2, 255] * 20, np.uint8)
    expected = (raw != 0).astype(np.uint8)
    out = bytes_at(0, np.full(raw.size, 7))
    kernel.fold([bytes_at(1, raw)], out)
    np.testing.assert_array_equal(out.view(np.uint8), expected)
    assert kernel.needs_finalise
    acc = bytes_at(1, raw)
    kernel.finalise(acc, acc)
    np.testing.assert_array_equal(acc.view(np.uint8), expected)


def test_three_trues_are_one_true_and_not_three() -> None:
    kernel = kernel_for("bool", "sum", 3, every_rank_folds=False)
    mine = [np.array([True, True, False]) for _ in range(3)]
    kernel.fold(mine, mine[1])
    assert mine[1].view(np.uint8).tolist() == [1, 1, 0]
