"""Every collective with every dtype, op, algorithm and root, on 2 to 7 ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes.harness import Daemons, nothing_is_wrong
from tests.processes.programs import definition, operations, parts

Standing = Callable[[int], Daemons]
COUNT = 37


def test_every_collective_dtype_and_op_gives_what_its_definition_and_gloo_say(
    standing: Standing, tmp_path: Path
) -> None:
    results = standing(4).do(operations.every_pair, store=str(tmp_path / "store"), count=COUNT)
    nothing_is_wrong(results)
    pairs = sum(map(len, definition.OPS.values()))
    assert pairs == 7 + 5 * 8 + 4 * 6 + 2 * 4
    assert results[0]["made"] == 3 * pairs + 6 * len(definition.DTYPES)
    assert results[0]["by_gloo"] > 200


@pytest.mark.parametrize("n", [2, 3, 5])
def test_every_algorithm_and_root_gives_what_the_definition_says(
    standing: Standing, n: int
) -> None:
    dtypes = ["int32", "bfloat16", "bool", "complex64"]
    results = standing(n).do(
        operations.every_algorithm, library="torch", counts=[1, 1000], dtypes=dtypes
    )
    nothing_is_wrong(results)
    assert results[0]["made"] > 200


def test_seven_ranks_get_what_the_definition_says(daemons: Callable[..., Daemons]) -> None:
    group = daemons(7)
    group.connect()
    results = group.do(
        operations.every_algorithm,
        library="numpy",
        counts=[3, 5000],
        dtypes=["int16", "complex128"],
    )
    nothing_is_wrong(results)
    assert results[0]["made"] > 200
    nothing_is_wrong(group.do(parts.uneven))


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_uneven_and_empty_parts_and_lists_give_what_the_definition_says(
    standing: Standing, n: int
) -> None:
    results = standing(n).do(parts.uneven)
    nothing_is_wrong(results)
    assert results[0]["made"] > 40


def test_every_collective_takes_every_memory_layout(standing: Standing) -> None:
    results = standing(3).do(parts.every_layout)
    nothing_is_wrong(results)
    assert results[0]["made"] > 100
