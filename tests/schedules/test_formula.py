"""Bytes and steps: worked out by hand, and both forms of each formula compared."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringd.schedules.formula import (
    chunk_count,
    chunk_sizes,
    partition,
    payload_bytes_per_rank,
    sent_bytes,
    steps,
)
from ringd.vocabulary import ALGORITHMS

PAIRS = [
    (collective, algorithm)
    for collective, algorithms in ALGORITHMS.items()
    for algorithm in algorithms
    if algorithm != "auto"
]


@given(count=st.integers(0, 200), n_chunks=st.integers(1, 40))
def test_partition_cuts_as_numpy_does(count: int, n_chunks: int) -> None:
    expected = np.array_split(np.arange(count), n_chunks)
    parts = partition(count, n_chunks)
    assert [length for _, length in parts] == [len(part) for part in expected]
    assert [list(range(start, start + length)) for start, length in parts] == [
        part.tolist() for part in expected
    ]


@pytest.mark.parametrize(("count", "n_chunks"), [(-1, 2), (4, 0)])
def test_partition_refuses_what_can_not_be_cut(count: int, n_chunks: int) -> None:
    with pytest.raises(ValueError, match="can't cut"):
        partition(count, n_chunks)


@pytest.mark.parametrize(
    ("collective", "algorithm", "world_size", "total_bytes", "widened", "expected"),
    [
        ("all_reduce", "ring", 4, 1000, False, 1500),  # 2 * 1000 * 3/4
        ("all_reduce", "ring", 4, 1000, True, 2250),  # 3 * 1000 * 3/4
        ("all_reduce", "ring", 2, 1000, False, 1000),
        ("all_reduce", "direct", 4, 1000, False, 1500),
        ("all_reduce", "direct", 4, 1000, True, 1500),
        ("all_reduce", "exchange", 4, 1000, True, 3000),
        ("all_reduce", "tree", 8, 1000, False, 3000),  # the root, down to three children
        ("all_reduce", "tree", 8, 1000, True, 4000),  # rank 4: 2 up, then two children
        ("all_reduce", "tree", 5, 1000, True, 3000),
        ("reduce_scatter", "ring", 4, 1000, False, 750),
        ("reduce_scatter", "ring", 4, 1000, True, 1500),
        ("reduce_scatter", "direct", 4, 1000, True, 750),
        ("all_gather", "ring", 4, 1000, False, 750),
        ("all_gather", "direct", 5, 1000, False, 800),
        ("broadcast", "tree", 8, 1000, False, 3000),
        ("broadcast", "tree", 9, 1000, False, 4000),
        ("all_reduce", "recursive_doubling", 8, 1000, False, 3000),
        ("all_reduce", "recursive_doubling", 8, 1000, True, 6000),
        ("all_reduce", "recursive_doubling", 6, 1000, False, 3000),  # two steps, and the pair
        ("all_reduce", "halving_doubling", 8, 1000, False, 1750),  # 2 * 1000 * 7/8
        ("all_reduce", "halving_doubling", 8, 1000, True, 2625),
        ("all_reduce", "halving_doubling", 6, 1000, False, 2500),  # 2 * 1000 * 3/4, and the pair
        ("all_reduce", "chain", 2, 1000, False, 1000),
        ("all_reduce", "chain", 7, 1000, False, 2000),
        ("all_reduce", "chain", 7, 1000, True, 3000),
        ("reduce", "tree", 7, 1000, False, 1000),
        ("reduce", "tree", 7, 1000, True, 2000),
        ("reduce", "chain", 7, 1000, True, 2000),
        ("reduce", "direct", 7, 1000, True, 1000),
        ("broadcast", "chain", 7, 1000, False, 1000),
        ("gather", "direct", 5, 1000, False, 200),
        ("gather", "tree", 8, 1000, False, 500),  # place 4 has four parts
        ("gather", "tree", 5, 1000, False, 400),  # place 4 has one, place 2 has two
        ("gather", "tree", 7, 700, False, 300),  # place 4 has three
        ("gather", "tree", 2, 1000, False, 500),
        ("scatter", "direct", 5, 1000, False, 800),
        ("scatter", "tree", 5, 1000, False, 800),
        ("all_to_all", "direct", 5, 1000, False, 800),
        ("all_to_all", "pairwise", 5, 1000, False, 800),
        ("barrier", "exchange", 8, 0, False, 0),
        ("agree", "exchange", 5, 1, False, 4),
        ("agree", "tree", 8, 1, False, 3),
        ("new_group", "exchange", 5, 8, False, 32),
        ("new_group", "tree", 8, 8, False, 24),
        ("reduce", "direct", 1, 1000, False, 0),
        ("gather", "tree", 1, 1000, False, 0),
        ("all_reduce", "recursive_doubling", 1, 1000, True, 0),
        ("all_reduce", "tree", 1, 1000, True, 0),
        ("all_reduce", "ring", 1, 1000, True, 0),
    ],
)
def test_the_busiest_rank_by_hand(
    collective: str,
    algorithm: str,
    world_size: int,
    total_bytes: int,
    widened: bool,
    expected: int,
) -> None:
    assert expected == payload_bytes_per_rank(
        collective, algorithm, world_size=world_size, total_bytes=total_bytes, widened=widened
    )


@pytest.mark.parametrize(
    ("collective", "algorithm", "expected"),
    [
        # Ten float32 in four chunks of 12, 12, 8 and 8 bytes; T is 40.
        ("all_reduce", "ring", [28 + 32, 32 + 32, 32 + 28, 28 + 28]),
        ("all_reduce", "direct", [28 + 36, 28 + 36, 32 + 24, 32 + 24]),
        ("reduce_scatter", "ring", [28, 28, 32, 32]),
        ("reduce_scatter", "direct", [28, 28, 32, 32]),
        ("all_gather", "ring", [28, 32, 32, 28]),
        ("all_gather", "direct", [36, 36, 24, 24]),
        ("all_reduce", "exchange", [120, 120, 120, 120]),
        ("all_reduce", "tree", [80, 40, 80, 40]),
        ("broadcast", "tree", [0, 80, 0, 40]),
        ("broadcast", "chain", [0, 40, 40, 40]),
        ("all_reduce", "recursive_doubling", [80, 80, 80, 80]),
        # All chunks but one's own; then one's own twice, and that of the rank two away once.
        ("all_reduce", "halving_doubling", [28 + 32, 28 + 32, 32 + 28, 32 + 28]),
        ("all_reduce", "chain", [40, 80, 80, 40]),
        ("reduce", "tree", [40, 0, 40, 40]),
        ("reduce", "chain", [40, 40, 40, 40]),
        ("reduce", "direct", [40, 0, 40, 40]),
        ("gather", "direct", [12, 0, 8, 8]),
        # From root 1 the places are 3, 0, 1, 2; rank 3 sends for rank 0 too.
        ("gather", "tree", [12, 0, 8, 20]),
        ("scatter", "direct", [0, 28, 0, 0]),
        ("scatter", "tree", [0, 28, 0, 12]),
    ],
)
def test_uneven_chunks_by_hand(collective: str, algorithm: str, expected: list[int]) -> None:
    sizes = chunk_sizes(10, chunk_count(collective, algorithm, 4), 4)
    sent = [
        sent_bytes(collective, algorithm, rank=rank, world_size=4, chunk_bytes=sizes, root=1)
        for rank in range(4)
    ]
    assert sent == expected


def test_fewer_elements_than_ranks_leave_chunks_empty() -> None:
    sizes = chunk_sizes(2, 3, 4)
    assert sizes == (4, 4, 0)
    sent = [
        sent_bytes("all_reduce", "ring", rank=rank, world_size=3, chunk_bytes=sizes)
        for rank in range(3)
    ]
    assert sent == [4 + 8, 8 + 4, 4 + 4]


def test_sixteen_bit_partial_sums_count_twice_on_the_way_up() -> None:
    sizes = chunk_sizes(8, 4, 2)
    ring = sent_bytes("all_reduce", "ring", rank=0, world_size=4, chunk_bytes=sizes, widening=2)
    assert ring == 3 * 16 * 3 // 4
    leaf = sent_bytes("all_reduce", "tree", rank=1, world_size=4, chunk_bytes=(16,), widening=2)
    assert leaf == 32


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS)
@pytest.mark.parametrize("widened", [False, True])
def test_with_equal_chunks_the_busiest_rank_sends_what_the_closed_form_says(
    collective: str, algorithm: str, widened: bool
) -> None:
    for n in range(1, 34):
        n_chunks = chunk_count(collective, algorithm, n)
        # Of all_to_all T is what one rank has, and the chunks are those of all ranks.
        holders = n if collective == "all_to_all" else 1
        sizes = (12,) * n_chunks
        total_bytes = sum(sizes) // holders
        busiest = max(
            sent_bytes(
                collective,
                algorithm,
                rank=rank,
                world_size=n,
                chunk_bytes=sizes,
                root=n // 2,
                widening=2 if widened else 1,
            )
            for rank in range(n)
        )
        assert busiest == payload_bytes_per_rank(
            collective, algorithm, world_size=n, total_bytes=total_bytes, widened=widened
        )


@pytest.mark.parametrize(
    ("collective", "algorithm", "expected"),
    [
        # For 1, 2, 5 and 8 ranks.
        ("all_reduce", "ring", [0, 2, 8, 14]),
        ("all_reduce", "tree", [0, 2, 6, 6]),
        ("all_reduce", "direct", [0, 2, 2, 2]),
        ("all_reduce", "exchange", [0, 1, 1, 1]),
        ("all_gather", "ring", [0, 1, 4, 7]),
        ("broadcast", "tree", [0, 1, 3, 3]),
        ("barrier", "tree", [0, 2, 6, 6]),
        ("all_reduce", "recursive_doubling", [0, 1, 4, 3]),
        ("all_reduce", "halving_doubling", [0, 2, 6, 6]),
        ("all_reduce", "chain", [0, 2, 8, 14]),
        ("reduce", "tree", [0, 1, 3, 3]),
        ("reduce", "direct", [0, 1, 1, 1]),
        ("reduce", "chain", [0, 2, 5, 8]),
        ("broadcast", "chain", [0, 1, 4, 7]),
        ("gather", "tree", [0, 1, 3, 3]),
        ("scatter", "tree", [0, 1, 3, 3]),
        ("scatter", "direct", [0, 1, 1, 1]),
        ("all_to_all", "direct", [0, 1, 1, 1]),
        ("all_to_all", "pairwise", [0, 1, 4, 7]),
        ("new_group", "exchange", [0, 1, 1, 1]),
    ],
)
def test_steps_by_hand(collective: str, algorithm: str, expected: list[int]) -> None:
    assert [steps(collective, algorithm, n) for n in (1, 2, 5, 8)] == expected


def test_a_reduce_by_chain_to_its_end_is_one_step_shorter() -> None:
    assert [steps("reduce", "chain", 5, root=root) for root in range(5)] == [5, 5, 5, 5, 4]
    last = sent_bytes("reduce", "chain", rank=4, world_size=5, chunk_bytes=(40,), root=4)
    assert last == 0


def test_all_to_all_sends_its_row_without_its_own_part() -> None:
    sizes = tuple(range(100, 109))  # rank 1 has 103, 104 and 105 bytes for ranks 0, 1 and 2
    for algorithm in ("direct", "pairwise"):
        sent = sent_bytes("all_to_all", algorithm, rank=1, world_size=3, chunk_bytes=sizes)
        assert sent == 103 + 105


def test_the_odd_rank_of_a_pair_sends_once_and_the_even_one_the_result_besides() -> None:
    # Six ranks: 0 and 1, 2 and 3 are pairs; two steps among four.
    def sent(rank: int) -> int:
        return sent_bytes(
            "all_reduce",
            "recursive_doubling",
            rank=rank,
            world_size=6,
            chunk_bytes=(10,),
            widening=2,
        )

    assert [sent(rank) for rank in range(6)] == [50, 20, 50, 20, 40, 40]


@pytest.mark.parametrize(
    ("collective", "algorithm", "expected"),
    [
        ("all_reduce", "ring", 6),
        ("all_reduce", "halving_doubling", 4),
        ("all_reduce", "chain", 1),
        ("reduce", "direct", 1),
        ("gather", "tree", 6),
        ("all_to_all", "pairwise", 36),
    ],
)
def test_chunks_of_six_ranks(collective: str, algorithm: str, expected: int) -> None:
    assert chunk_count(collective, algorithm, 6) == expected


def test_an_unknown_pair_has_no_formula() -> None:
    with pytest.raises(ValueError, match="no formula for"):
        chunk_count("broadcast", "ring", 2)
    with pytest.raises(ValueError, match="no formula for broadcast by 'ring'"):
        steps("broadcast", "ring", 2)
    with pytest.raises(ValueError, match="no formula for"):
        payload_bytes_per_rank("broadcast", "ring", world_size=2, total_bytes=1)
    with pytest.raises(ValueError, match="no formula for"):
        sent_bytes("broadcast", "ring", rank=0, world_size=2, chunk_bytes=(1,))
