"""Every relative link in the documentation leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
PAGES = sorted([*TOP.glob("*.md"), *TOP.glob("docs/**/*.md"), *TOP.glob("deploy/**/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
PLACEHOLDER = "NNNN-title.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(TOP)))
def test_relative_links_lead_to_files(page: Path) -> None:
    links = LINK.findall(FENCED.sub("", page.read_text()))
    relative = [t.partition("#")[0] for t in links if "://" not in t and not t.startswith("#")]
    assert [t for t in relative if t != PLACEHOLDER and not (page.parent / t).exists()] == []
