"""bfloat16 and float16 to float32 and back: numpy's and torch's, over all patterns."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ringd.kernels import Array
from ringd.kernels.numpy_kernels import NUMPY_CONVERSIONS, Conversions
from ringd.kernels.scratch import block_count

torch: Any = pytest.importorskip("torch", reason="torch says how 16-bit floats are rounded")
from ringd.kernels.torch_kernels import torch_conversions  # noqa: E402

ALL_PATTERNS = np.arange(1 << 16, dtype=np.uint16)
BY_NUMPY_AND_TORCH = [
    pytest.param(make, dtype, id=f"{dtype}-{name}")
    for dtype in ("bfloat16", "float16")
    for name, make in (("numpy", NUMPY_CONVERSIONS.__getitem__), ("torch", torch_conversions))
]


@pytest.fixture(autouse=True)
def warnings_are_errors_and_float_errors_are_quiet() -> Iterator[None]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error")
        yield


def storage(dtype: str, bits: Array) -> Array:
    return bits.copy() if dtype == "bfloat16" else bits.copy().view(np.float16)


def widened_by_torch(dtype: str, bits: Array) -> Array:
    tensor = torch.from_numpy(bits.view(np.int16).copy()).view(getattr(torch, dtype))
    result: Array = tensor.to(torch.float32).numpy()
    return result


def narrowed_by_torch(dtype: str, values: Array) -> Array:
    tensor = torch.from_numpy(values).to(getattr(torch, dtype))
    result: Array = tensor.view(torch.int16).numpy().view(np.uint16)
    return result


def is_nan(dtype: str, bits: Array) -> Array:
    infinity = 0x7F80 if dtype == "bfloat16" else 0x7C00
    return (bits & 0x7FFF) > infinity


def float32_patterns(seed: int) -> Array:
    """Random bits, and all that is near a tie, a power of two, an overflow or a NaN."""
    rng = np.random.default_rng(seed)
    anything = rng.integers(0, 1 << 32, 1 << 20, dtype=np.uint32)
    upper = rng.integers(0, 1 << 16, 1 << 14, dtype=np.uint32) << 16
    near_ties = [upper + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    # float16 drops 13 bits: its ties lie elsewhere.
    near_ties += [(upper & 0xFFFFE000) + low for low in (0xFFF, 0x1000, 0x1001, 0x3000)]
    exponents = np.arange(0, 512, dtype=np.uint32) << 23
    edges = [exponents + step for step in (0, 1, 0x7FFFFF, 0x400000, 0x7F8000, 0x7F7FFF)]
    return np.concatenate([anything, *near_ties, *edges]).view(np.float32)


def narrow_all(conversions: Conversions, dtype: str, values: Array) -> Array:
    """Narrow by blocks, as the kernels do."""
    out = storage(dtype, np.zeros(values.size, np.uint16))
    for start in range(0, values.size, block_count(4)):
        part = slice(start, start + block_count(4))
        conversions.narrow(values[part].copy(), out[part])
    return out.view(np.uint16)


@pytest.mark.parametrize(("make", "dtype"), BY_NUMPY_AND_TORCH)
class TestWiden:
    def test_is_exact_for_every_pattern(self, make: Any, dtype: str) -> None:
        out = np.empty(ALL_PATTERNS.size, np.float32)
        make(dtype).widen(storage(dtype, ALL_PATTERNS), out)
        expected = widened_by_torch(dtype, ALL_PATTERNS)
        number = ~is_nan(dtype, ALL_PATTERNS)
        np.testing.assert_array_equal(np.isnan(out), ~number)
        np.testing.assert_array_equal(out.view(np.uint32)[number], expected.view(np.uint32)[number])

    def test_and_narrow_give_every_number_back(self, make: Any, dtype: str) -> None:
        out = np.empty(ALL_PATTERNS.size, np.float32)
        make(dtype).widen(storage(dtype, ALL_PATTERNS), out)
        back = narrow_all(make(dtype), dtype, out)
        number = ~is_nan(dtype, ALL_PATTERNS)
        np.testing.assert_array_equal(back[number], ALL_PATTERNS[number])
        assert is_nan(dtype, back[~number]).all()

    def test_reads_read_only_memory(self, make: Any, dtype: str) -> None:
        src = storage(dtype, ALL_PATTERNS)
        src.flags.writeable = False
        out = np.empty(src.size, np.float32)
        make(dtype).widen(src, out)
        assert out[storage(dtype, ALL_PATTERNS).view(np.uint16) == 0x8000] == 0.0


@pytest.mark.parametrize(("make", "dtype"), BY_NUMPY_AND_TORCH)
class TestNarrow:
    def test_rounds_to_the_nearest_even(self, make: Any, dtype: str) -> None:
        values = float32_patterns(seed=1)
        actual = narrow_all(make(dtype), dtype, values)
        expected = narrowed_by_torch(dtype, values)
        number = ~np.isnan(values)
        np.testing.assert_array_equal(actual[number], expected[number])
        assert is_nan(dtype, actual[~number]).all()

    @pytest.mark.parametrize("size", [0, 1, 5, 1023, 1024, 1025])
    def test_is_the_same_for_any_size(self, make: Any, dtype: str, size: int) -> None:
        values = float32_patterns(seed=2)[:size]
        actual = narrow_all(make(dtype), dtype, values)
        number = ~np.isnan(values)
        np.testing.assert_array_equal(actual[number], narrowed_by_torch(dtype, values)[number])

    def test_keeps_infinities_and_overflows_into_them(self, make: Any, dtype: str) -> None:
        top = np.finfo(np.float32).max
        values = np.array([np.inf, -np.inf, top, -top] * 400, np.float32)
        infinity = 0x7F80 if dtype == "bfloat16" else 0x7C00
        expected = [infinity, infinity | 0x8000] * 2 * 400
        assert narrow_all(make(dtype), dtype, values).tolist() == expected


class TestNaNsOfBfloat16:
    def test_keep_their_sign_and_the_top_of_their_payload_and_are_quiet(self) -> None:
        patterns = [0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC12345, 0x7FBFFFFF]
        values = np.array(patterns, np.uint32).view(np.float32)
        expected = [0x7FC0, 0xFFC0, 0x7FFF, 0xFFFF, 0x7FC1, 0x7FFF]
        assert narrow_all(NUMPY_CONVERSIONS["bfloat16"], "bfloat16", values).tolist() == expected

    def test_do_not_disturb_their_neighbours(self) -> None:
        values = np.array([1.0, np.nan, -2.0, np.inf], np.float32)
        bits = narrow_all(NUMPY_CONVERSIONS["bfloat16"], "bfloat16", values)
        assert bits[[0, 2, 3]].tolist() == [0x3F80, 0xC000, 0x7F80]
