"""The tables of docs/dtypes.md say what the code has: every type, every pair, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from ringd.kernels import kernel_for
from ringd.vocabulary import DTYPES, REDUCE_OPS, reductions

PAGE = (Path(__file__).resolve().parents[2] / "docs/dtypes.md").read_text()
KIND_NAMES = {"int": "integer", "opaque": "float8"}
TRUTH = {
    "or": [False, True, True, True],
    "and": [False, False, False, True],
    "xor": [False, True, True, False],
}


def table(section: str) -> list[list[str]]:
    """The cells of a section's table, its head first."""
    found = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    rows = [line for line in found[1].splitlines() if line.startswith("|")]
    cells = [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows]
    return [cells[0], *cells[2:]]


def kind_of(dtype: str) -> str:
    kind = DTYPES[dtype].kind
    return KIND_NAMES.get(kind, kind)


def test_the_types_are_those_of_the_vocabulary() -> None:
    expected = {
        (d.name, str(d.itemsize), kind_of(d.name), d.accumulator if reductions(d.name) else "—")
        for d in DTYPES.values()
    }
    rows = table("Types")[1:]
    assert {tuple(row) for row in rows} == expected
    assert len(rows) == len(expected)


def test_the_ops_are_those_of_the_vocabulary() -> None:
    head, *rows = table("What each pair gives")
    assert [row[0] for row in rows] == list(REDUCE_OPS)
    assert set(head[1:]) == {kind_of(dtype) for dtype in DTYPES}


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_pair_has_a_meaning_if_the_vocabulary_has_it_and_a_dash_if_not(dtype: str) -> None:
    head, *rows = table("What each pair gives")
    column = head.index(kind_of(dtype))
    described = {row[0] for row in rows if row[column] != "—"}
    assert described == set(reductions(dtype))


@pytest.mark.parametrize("op", reductions("bool"))
def test_the_words_for_bool_are_what_its_kernel_does(op: str) -> None:
    word = {row[0]: row[1] for row in table("What each pair gives")[1:]}[op]
    a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    kernel_for("bool", op, 2, every_rank_folds=False).fold([a, b], a)
    assert a.tolist() == TRUTH[word]
