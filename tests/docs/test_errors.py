"""docs/errors.md has a section for every error, and its table says what the classes say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ringd import errors
from ringd.cli import exit_codes

PAGE = (Path(__file__).resolve().parents[2] / "docs/errors.md").read_text()
CLASSES = sorted(errors.BY_CODE.values(), key=lambda cls: cls.__name__)


def section(name: str) -> str:
    found = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/errors.md has no section {name}"
    return found[1]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_has_a_section_that_says_what_to_do(cls: type[errors.RingdError]) -> None:
    text = section(cls.__name__)
    for part in ("**What happened.**", "**What to do.**", "**Fields.**"):
        assert part in text


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_table_says_code_retry_and_bases(cls: type[errors.RingdError]) -> None:
    name = cls.__name__
    bases = [base.__name__ for base in cls.__bases__ if base not in (errors.RingdError, Exception)]
    also = ", ".join(bases)
    row = f"| [{name}](#{name.lower()}) | `{cls.code}` | {cls.retry} | {also} |".replace(
        "|  |", "| |"
    )
    assert row in PAGE


def test_no_section_is_for_an_error_that_is_gone() -> None:
    sections = set(re.findall(r"^## (\w+Error)$", PAGE, re.MULTILINE))
    assert sections == {cls.__name__ for cls in CLASSES}


def test_exit_codes_are_those_of_the_command_line() -> None:
    listed = {
        int(code) for code in re.findall(r"^\| (\d+) \|", section("Exit codes"), re.MULTILINE)
    }
    names = ("OK", "FAILED", "USAGE", "RENDEZVOUS", "COLLECTIVE", "INTERRUPTED", "TERMINATED")
    assert listed == {getattr(exit_codes, name) for name in names}
