"""Which rows are measured."""

from __future__ import annotations

from dataclasses import replace

from ringd.bench.matrix import Matrix

MATRIX = Matrix(
    ops=["all_reduce", "barrier"],
    sizes_bytes=[1024, 2048],
    world_sizes=[2],
    peers=["gloo"],
    dtype="float32",
    algorithms=["auto", "tree"],
    memory=["ordinary", "arena"],
)


def test_rows_that_are_compared_stand_together() -> None:
    blocks = list(MATRIX.blocks(2))
    assert [(block[0].op, block[0].size_bytes) for block in blocks] == [
        ("all_reduce", 1024),
        ("all_reduce", 2048),
        ("barrier", 0),
    ]
    assert all(len({case.question for case in block}) == 1 for block in blocks)
    assert [(c.impl, c.algorithm, c.memory) for c in blocks[0]] == [
        ("gloo", "default", "ordinary"),
        ("ringd", "auto", "ordinary"),
        ("ringd", "auto", "arena"),
        ("ringd", "tree", "ordinary"),
        ("ringd", "tree", "arena"),
    ]


def test_a_barrier_has_no_tensors_whose_memory_could_differ() -> None:
    barrier = list(MATRIX.blocks(2))[-1]
    assert [(c.impl, c.algorithm) for c in barrier] == [
        ("gloo", "default"),
        ("ringd", "auto"),
        ("ringd", "tree"),
    ]


def test_gloo_has_no_row_where_it_can_not_do_it() -> None:
    blocks = replace(MATRIX, dtype="int16").blocks(2)
    assert [{case.impl for case in block} for block in blocks] == [
        {"ringd"},
        {"ringd"},
        {"gloo", "ringd"},
    ]
