"""docs/architecture.md and docs/hacking.md name only files and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
PAGES = [TOP / "docs/architecture.md", TOP / "docs/hacking.md", *TOP.glob("docs/adr/0*.md")]
PATH = re.compile(r"`((?:ringd|client|tests|docs|\.ci)/[\w/.-]*)`")
ROW = re.compile(r"^\| `([\w/]+\.py)` \| (`[^|]+`) \|", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_is_named_is_there(page: Path) -> None:
    named = set(PATH.findall(page.read_text()))
    assert {name for name in named if not (TOP / name).exists()} == set()


def names_in(path: Path) -> set[str]:
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (n for n in node.body if isinstance(n, ast.FunctionDef))
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


@pytest.mark.parametrize(("file", "names"), ROW.findall(PAGES[0].read_text()))
def test_the_way_of_a_call_names_functions_of_these_files(file: str, names: str) -> None:
    wanted = set(re.findall(r"`([\w.]+)`", names))
    assert wanted
    assert wanted - names_in(TOP / file) == set()
