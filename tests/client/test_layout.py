"""Whether elements share memory: against a listing of all of them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringd_client._layout import MAX_LISTED, overlaps_itself


def by_listing(shape: list[int], strides: list[int], element: int) -> bool:
    seen: set[int] = set()
    for index in itertools.product(*(range(d) for d in shape)):
        start = sum(i * s for i, s in zip(index, strides, strict=True))
        cells = set(range(start, start + element))
        if seen & cells:
            return True
        seen |= cells
    return False


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-12, 12)), min_size=0, max_size=4),
    st.sampled_from([1, 2, 4]),
)
def test_it_agrees_with_a_listing_of_all_elements(
    dims: list[tuple[int, int]], element: int
) -> None:
    shape, strides = [d for d, _ in dims], [s for _, s in dims]
    assert overlaps_itself(shape, strides, element) == by_listing(shape, strides, element)


@pytest.mark.parametrize(
    ("shape", "strides", "overlaps"),
    [
        ((3, 4), (4, 1), False),
        ((3, 4), (1, 3), False),
        ((3, 4), (0, 1), True),
        ((3, 0), (0, 0), False),
        ((1, 4), (0, 1), False),
        ((2, 3), (3, 2), False),  # entangled, yet no two elements meet
        ((3, 4), (3, 2), True),
        ((), (), False),
    ],
)
def test_known_layouts(shape: tuple[int, ...], strides: tuple[int, ...], overlaps: bool) -> None:
    assert overlaps_itself(shape, strides, 1) is overlaps


def test_huge_entangled_layouts_count_as_overlapping() -> None:
    assert overlaps_itself((MAX_LISTED, 3), (3, 2), 1)


def test_a_huge_expanded_tensor_is_seen_at_once() -> None:
    assert overlaps_itself((1 << 40, 4), (0, 1), 1)
