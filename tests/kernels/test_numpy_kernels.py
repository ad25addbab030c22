"""The fold and its parts against the definition."""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringd.kernels import Array, Kernel, kernel_for
from tests.kernels.reference import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    NATIVE,
    PAIRS,
    SIXTEEN_BIT,
    assert_same,
    block_of,
    fold,
    plain_values,
    random_bits,
    storage_of,
    to_float32,
)

BLOCK = block_of("float32")
ROUNDING_PAIRS = [(dtype, op) for dtype, op in PAIRS if dtype in (*FLOATS, *COMPLEX)]


@pytest.fixture(autouse=True)
def warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def numpy_kernel(dtype: str, op: str, world_size: int, *, every_rank_folds: bool = True) -> Kernel:
    return kernel_for(dtype, op, world_size, every_rank_folds=every_rank_folds)


def bfloat16_bits(*values: float) -> Array:
    """The bits of values that bfloat16 holds exactly."""
    return (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def as_float32(dtype: str, values: Array) -> Array:
    return to_float32(dtype, values) if dtype in SIXTEEN_BIT else values


def folded(kernel: Kernel, contributions: list[Array]) -> Array:
    out = np.empty(contributions[0].size, kernel.storage)
    kernel.fold(contributions, out)
    return out


def rounded_by_torch(dtype: str, values: Array) -> Array:
    torch = pytest.importorskip("torch", reason="torch says how 16-bit floats are rounded")
    tensor = torch.from_numpy(values).to(getattr(torch, dtype))
    result: Array = tensor.view(torch.int16).numpy().view(storage_of(dtype))
    return result


class TestFoldEqualsItsDefinition:
    @pytest.mark.parametrize(("dtype", "op"), PAIRS)
    @pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
    @pytest.mark.parametrize("make", [random_bits, plain_values])
    def test_for_every_dtype_and_op(self, dtype: str, op: str, world_size: int, make: Any) -> None:
        contributions = [make(dtype, 300, seed) for seed in range(world_size)]
        wide = [as_float32(dtype, c) for c in contributions]
        name = "float32" if dtype in SIXTEEN_BIT else dtype
        expected = fold(name, op, world_size, wide)
        if dtype in SIXTEEN_BIT:
            expected = as_float32(dtype, rounded_by_torch(dtype, expected))
        for every_rank_folds in (False, True):
            kernel = numpy_kernel(dtype, op, world_size, every_rank_folds=every_rank_folds)
            actual = as_float32(dtype, folded(kernel, contributions))
            assert_same(actual, expected, ignore_zero_sign=op in ("min", "max"))

    @pytest.mark.parametrize(("dtype", "op"), PAIRS)
    @pytest.mark.parametrize("size", [0, 1, 2, 3, 15, 16, 17])
    def test_for_tiny_and_empty_arrays(self, dtype: str, op: str, size: int) -> None:
        contributions = [plain_values(dtype, size, seed) for seed in range(3)]
        expected = fold(
            "float32" if dtype in SIXTEEN_BIT else dtype,
            op,
            3,
            [as_float32(dtype, c) for c in contributions],
        )
        if dtype in SIXTEEN_BIT:
            expected = as_float32(dtype, rounded_by_torch(dtype, expected))
        actual = as_float32(dtype, folded(numpy_kernel(dtype, op, 3), contributions))
        assert_same(actual, expected.astype(actual.dtype))

    @pytest.mark.parametrize("dtype", [*NATIVE, *SIXTEEN_BIT])
    def test_inputs_are_not_touched_and_may_be_read_only(self, dtype: str) -> None:
        contributions = [plain_values(dtype, block_of(dtype) + 5, seed) for seed in range(3)]
        before = [c.copy() for c in contributions]
        for c in contributions:
            c.flags.writeable = False
        folded(numpy_kernel(dtype, "sum", 3), contributions)
        for c, b in zip(contributions, before, strict=True):
            np.testing.assert_array_equal(c, b)


class TestOutMayBeAContribution:
    @pytest.mark.parametrize(("dtype", "op"), PAIRS)
    @pytest.mark.parametrize("world_size", [1, 2, 3, 5])
    @pytest.mark.parametrize(("blocks", "more"), [(0, 1), (0, 17), (2, 3)])
    def test_at_any_index_with_the_same_bits(
        self, dtype: str, op: str, world_size: int, blocks: int, more: int
    ) -> None:
        size = blocks * block_of(dtype) + more
        kernel = numpy_kernel(dtype, op, world_size)
        originals = [random_bits(dtype, size, seed) for seed in range(world_size)]
        expected = folded(kernel, originals).tobytes()
        for index in range(world_size):
            contributions = [c.copy() for c in originals]
            kernel.fold(contributions, contributions[index])
            assert contributions[index].tobytes() == expected

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_through_another_array_object(self, dtype: str) -> None:
        kernel = numpy_kernel(dtype, "sum", 4)
        originals = [plain_values(dtype, 2 * BLOCK + 1, seed) for seed in range(4)]
        expected = folded(kernel, originals).tobytes()
        for index in range(4):
            contributions = [c.copy() for c in originals]
            out = contributions[index].view(np.uint8).view(kernel.storage)
            kernel.fold(contributions, out)
            assert out.tobytes() == expected


class TestBlocks:
    cases = st.sampled_from(PAIRS).flatmap(
        lambda pair: st.tuples(
            st.just(pair[0]),
            st.just(pair[1]),
            st.builds(
                lambda blocks, more: max(0, blocks * block_of(pair[0]) + more),
                st.integers(0, 3),
                st.integers(-2, 2),
            ),
        )
    )

    @settings(max_examples=40, deadline=None)
    @given(case=cases, world_size=st.integers(1, 4), alias=st.booleans())
    def test_their_borders_do_not_show(
        self, case: tuple[str, str, int], world_size: int, alias: bool
    ) -> None:
        dtype, op, size = case
        kernel = numpy_kernel(dtype, op, world_size)
        contributions = [plain_values(dtype, size, seed) for seed in range(world_size)]
        pieces = [
            folded(kernel, [c[start : start + 1000] for c in contributions])
            for start in range(0, max(size, 1), 1000)
        ]
        out = contributions[-1] if alias else np.empty(size, kernel.storage)
        kernel.fold(contributions, out)
        np.testing.assert_array_equal(out, np.concatenate(pieces))

    @settings(max_examples=40, deadline=None)
    @given(case=cases, every_rank_folds=st.booleans())
    def test_in_parts_equals_in_one_go(
        self, case: tuple[str, str, int], every_rank_folds: bool
    ) -> None:
        dtype, op, size = case
        kernel = numpy_kernel(dtype, op, 3, every_rank_folds=every_rank_folds)
        contributions = [plain_values(dtype, size, seed) for seed in range(3)]
        acc, other = (np.empty(size, kernel.accumulator) for _ in range(2))
        kernel.widen(contributions[0], acc)
        for contribution in contributions[1:]:
            kernel.widen(contribution, other)
            kernel.reduce_into(acc, other)
        out = np.empty(size, kernel.storage)
        kernel.finalise(acc, out)
        np.testing.assert_array_equal(out, folded(kernel, contributions))


class TestUnalignedMemory:
    @pytest.mark.parametrize("dtype", [*NATIVE, *SIXTEEN_BIT])
    @pytest.mark.parametrize("offset_bytes", [1, 2, 4, 8, 12, 24])
    @pytest.mark.parametrize("size", [33, BLOCK + 9])
    def test_gives_the_same_bits(self, dtype: str, offset_bytes: int, size: int) -> None:
        kernel = numpy_kernel(dtype, "sum", 3)
        values = [plain_values(dtype, size, seed) for seed in range(3)]
        moved = []
        for v in values:
            memory = bytearray(offset_bytes + v.nbytes)
            memory[offset_bytes:] = v.tobytes()
            moved.append(np.frombuffer(memory, kernel.storage, offset=offset_bytes))
        expected = folded(kernel, values)
        kernel.fold(moved, moved[2])
        np.testing.assert_array_equal(moved[2], expected)
        acc = np.frombuffer(
            bytearray(offset_bytes + size * kernel.accumulator.itemsize),
            kernel.accumulator,
            offset=offset_bytes,
        )
        kernel.widen(values[0], acc)
        kernel.finalise(acc, moved[1])
        np.testing.assert_array_equal(moved[1], values[0])


class TestFinalise:
    @pytest.mark.parametrize("dtype", ["float32", "float64", *COMPLEX])
    @pytest.mark.parametrize("size", [5, BLOCK + 1])
    def test_of_avg_divides_in_place_or_elsewhere(self, dtype: str, size: int) -> None:
        kernel = numpy_kernel(dtype, "avg", 3, every_rank_folds=False)
        acc = np.full(size, 10, dtype)
        out = np.empty(size, dtype)
        third = np.array([10 / 3], dtype)[0]
        kernel.finalise(acc, out)
        assert (out == third).all()
        kernel.finalise(acc, acc)
        assert (acc == third).all()

    @pytest.mark.parametrize("every_rank_folds", [False, True])
    def test_of_sum_copies_if_it_must(self, every_rank_folds: bool) -> None:
        kernel = numpy_kernel("float32", "sum", 3, every_rank_folds=every_rank_folds)
        acc = plain_values("float32", BLOCK + 1, 0)
        before = acc.copy()
        out = np.zeros_like(acc)
        kernel.finalise(acc, out)
        np.testing.assert_array_equal(out, before)
        kernel.finalise(acc, acc)
        np.testing.assert_array_equal(acc, before)

    @pytest.mark.parametrize(("dtype", "op"), PAIRS)
    @pytest.mark.parametrize("world_size", [1, 2])
    def test_is_needed_by_averages_and_narrow_types(
        self, dtype: str, op: str, world_size: int
    ) -> None:
        kernel = numpy_kernel(dtype, op, world_size, every_rank_folds=False)
        expected = dtype in SIXTEEN_BIT or (op == "avg" and world_size > 1)
        expected = expected or (dtype == "bool" and world_size == 1)
        assert kernel.needs_finalise is expected

    @pytest.mark.parametrize("dtype", NATIVE)
    def test_widen_of_native_types_is_a_copy(self, dtype: str) -> None:
        kernel = numpy_kernel(dtype, "prod", 2)
        src = random_bits(dtype, 100, 1)
        out = np.zeros(100, kernel.accumulator)
        kernel.widen(src, out)
        assert out.tobytes() == src.tobytes()
        kernel.widen(out, out)
        assert out.tobytes() == src.tobytes()


class TestSilence:
    """All of these run with warnings as errors."""

    @pytest.mark.parametrize("dtype", INTEGERS)
    def test_integers_wrap(self, dtype: str) -> None:
        top, bottom = np.iinfo(dtype).max, np.iinfo(dtype).min
        a, b = np.full(9, top, dtype), np.full(9, 1, dtype)
        assert (folded(numpy_kernel(dtype, "sum", 2), [a, b]) == bottom).all()
        assert (folded(numpy_kernel(dtype, "prod", 2), [a, a]) == 1).all()
        acc = a.copy()
        numpy_kernel(dtype, "sum", 2).reduce_into(acc, b)
        assert (acc == bottom).all()

    @pytest.mark.parametrize(("dtype", "op"), ROUNDING_PAIRS)
    def test_even_where_the_caller_asks_numpy_to_raise(self, dtype: str, op: str) -> None:
        kernel = numpy_kernel(dtype, op, 3)
        contributions = [random_bits(dtype, 4000, seed) for seed in range(3)]
        acc, other = (np.empty(4000, kernel.accumulator) for _ in range(2))
        with np.errstate(all="raise"):
            folded(kernel, contributions)
            kernel.widen(contributions[0], acc)
            kernel.widen(contributions[1], other)
            kernel.reduce_into(acc, other)
            kernel.finalise(acc, contributions[2])
            assert np.geterr()["over"] == "raise"

    def test_float_sums_overflow_to_infinity(self) -> None:
        top = np.full(5, np.finfo(np.float32).max)
        assert np.isposinf(folded(numpy_kernel("float32", "sum", 2), [top, top])).all()

    @pytest.mark.parametrize("dtype", SIXTEEN_BIT)
    def test_narrow_results_overflow_to_infinity(self, dtype: str) -> None:
        top = bfloat16_bits(3.3895314e38) if dtype == "bfloat16" else np.array([65504], np.float16)
        result = folded(numpy_kernel(dtype, "sum", 2), [top, top])
        assert np.isposinf(to_float32(dtype, result)).all()


class TestSpecialValues:
    @pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
    @pytest.mark.parametrize("op", ["sum", "avg", "prod", "min", "max"])
    @pytest.mark.parametrize("index", [0, 1, 2])
    def test_a_nan_anywhere_stays(self, dtype: str, op: str, index: int) -> None:
        contributions = [np.full(67, 2, dtype) for _ in range(3)]
        contributions[index][:] = np.nan
        assert np.isnan(folded(numpy_kernel(dtype, op, 3), contributions)).all()

    @pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
    @pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
    def test_ranks_that_fold_for_themselves_agree_on_the_bits_of_nans(
        self, dtype: str, op: str
    ) -> None:
        kernel = numpy_kernel(dtype, op, 2, every_rank_folds=True)
        width = 8 * kernel.storage.itemsize
        unsigned = np.dtype(f"uint{width}")
        mantissa = {"float32": 23, "float64": 52, "float16": 10, "bfloat16": 7}[dtype]
        quiet = ((1 << (width - 1)) - 1) >> (mantissa - 1) << (mantissa - 1)
        results = set()
        for size in (1, 2, 17, 40):
            positive = np.full(size, quiet | 1, unsigned).view(kernel.storage)
            negative = np.full(size, quiet | 2 | 1 << (width - 1), unsigned).view(kernel.storage)
            for index in (0, 1):
                contributions = [positive.copy(), negative.copy()]
                kernel.fold(contributions, contributions[index])
                results.update(contributions[index].view(unsigned).tolist())
            acc = np.empty(size, kernel.accumulator)
            kernel.widen(negative, acc)
            kernel.finalise(acc, positive)
            results.update(positive.view(unsigned).tolist())
        assert results == {quiet}

    def test_a_sum_of_negative_zeros_is_a_negative_zero(self) -> None:
        zeros = [np.full(70, -0.0, np.float32) for _ in range(3)]
        assert np.signbit(folded(numpy_kernel("float32", "sum", 3), zeros)).all()
        bits = [np.full(70, 0x8000, np.uint16) for _ in range(3)]
        assert (folded(numpy_kernel("bfloat16", "sum", 3), bits) == 0x8000).all()

    @pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
    @pytest.mark.parametrize("op", ["min", "max"])
    def test_the_sign_of_a_zero_does_not_depend_on_its_position(self, dtype: str, op: str) -> None:
        for pair in ((0.0, -0.0), (-0.0, 0.0)):
            seen = set()
            for size in (1, 7, 16, 33, 1000):
                contributions = [np.full(size, v, dtype) for v in pair]
                seen.update(np.signbit(folded(numpy_kernel(dtype, op, 2), contributions)).tolist())
            assert len(seen) == 1

    @pytest.mark.parametrize("op", ["min", "max"])
    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    @pytest.mark.parametrize("signs", list(itertools.product((0.0, -0.0), repeat=3)))
    def test_a_fold_of_zeros_takes_its_operands_in_the_order_of_single_steps(
        self, op: str, dtype: str, signs: tuple[float, ...]
    ) -> None:
        kernel = numpy_kernel(dtype, op, 3)
        contributions = [np.full(40, sign, dtype) for sign in signs]
        acc = contributions[0].astype(np.float32)
        for contribution in contributions[1:]:
            kernel.reduce_into(acc, contribution.astype(np.float32))
        assert folded(kernel, contributions).tobytes() == acc.astype(dtype).tobytes()

    def test_subnormal_numbers_are_not_flushed(self) -> None:
        tiny = np.full(65, 1e-45, np.float32)
        doubled = folded(numpy_kernel("float32", "sum", 2), [tiny, tiny])
        assert (doubled.view(np.uint32) == 2).all()
        least = np.full(65, 1, np.uint16)
        assert (folded(numpy_kernel("bfloat16", "sum", 3), [least] * 3) == 3).all()
        half = least.view(np.float16)
        tripled = folded(numpy_kernel("float16", "sum", 3), [half] * 3)
        assert (tripled.view(np.uint16) == 3).all()


class TestKnownCases:
    """Numbers from reports of wrong results in other libraries."""

    @pytest.mark.parametrize("turn", range(3))
    def test_small_bfloat16_terms_are_not_lost_to_a_large_one(self, turn: int) -> None:
        values = np.roll([256.0, 1.0, 1.0], turn)
        contributions = [np.full(3073, bfloat16_bits(v)[0]) for v in values]
        result = folded(numpy_kernel("bfloat16", "sum", 3), contributions)
        assert (to_float32("bfloat16", result) == 258.0).all()

    @pytest.mark.parametrize("turn", range(3))
    def test_a_float16_sum_may_pass_through_what_float16_cannot_hold(self, turn: int) -> None:
        values = np.roll([40000.0, 40000.0, -40000.0], turn)
        contributions = [np.full(100, v, np.float16) for v in values]
        assert (folded(numpy_kernel("float16", "sum", 3), contributions) == 40000.0).all()

    def test_a_float16_average_does_not_overflow(self) -> None:
        contributions = [np.full(100, 60000, np.float16)] * 2
        result = folded(numpy_kernel("float16", "avg", 2), contributions)
        assert (result.astype(np.float64) == np.float16(60000)).all()

    def test_the_left_fold_of_cancelling_terms(self) -> None:
        contributions = [np.full(1000, v, np.float32) for v in (1e8, 1, -1e8, 1)]
        assert (folded(numpy_kernel("float32", "sum", 4), contributions) == 1.0).all()

    def test_float64_is_not_cut_to_float32(self) -> None:
        contributions = [np.array([16777217.0]), np.array([0.0])]
        assert folded(numpy_kernel("float64", "sum", 2), contributions).tolist() == [16777217.0]


@pytest.mark.parametrize(("dtype", "op"), [("float32", "sum"), ("complex64", "prod")])
def test_threads_do_not_share_their_work_memory(dtype: str, op: str) -> None:
    kernel = numpy_kernel(dtype, op, 3)
    failures: list[int] = []

    def work(value: int) -> None:
        contributions = [np.full(3 * BLOCK, value, dtype)] * 3
        out = np.empty(3 * BLOCK, dtype)
        for _ in range(20):
            kernel.fold(contributions, out)
            if not (out == (3 * value if op == "sum" else value**3)).all():
                failures.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
