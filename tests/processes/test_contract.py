"""The contract names the tests that hold it; they exist."""

from __future__ import annotations

import re

from tests.processes.harness import ROOT

PAGE = (ROOT / "docs" / "semantics.md").read_text()
NAMED = re.compile(r"`(tests/[a-z_/]+\.py)::(\w+)`")
DEFINED = re.compile(r"^\[\^([a-z0-9-]+)\]: ", re.MULTILINE)
USED = re.compile(r"\[\^([a-z0-9-]+)\](?!:)")


def test_every_test_that_the_contract_names_exists() -> None:
    missing = [
        f"{path}::{name}"
        for path, name in NAMED.findall(PAGE)
        if not (ROOT / path).is_file() or f"def {name}(" not in (ROOT / path).read_text()
    ]
    assert missing == []
    assert len(NAMED.findall(PAGE)) > 50


def test_every_footnote_of_the_contract_is_used_once_and_defined_once() -> None:
    assert sorted(USED.findall(PAGE)) == sorted(DEFINED.findall(PAGE))
    assert len(set(DEFINED.findall(PAGE))) == len(DEFINED.findall(PAGE))
