"""How our programs start another one of ours."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import ringd
import ringd_client
from ringd.launch.python import own_module

PACKAGES = [Path(package.__path__[0]) for package in (ringd, ringd_client)]


def test_another_tree_in_the_working_directory_is_not_what_runs(tmp_path: Path) -> None:
    (tmp_path / "ringd").mkdir()
    (tmp_path / "ringd" / "__init__.py").write_text("raise SystemExit('the wrong tree')")
    done = subprocess.run(
        own_module("ringd", "--version"), cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.split() == ["ringd", ringd.__version__], done.stderr


def test_no_program_of_ours_starts_another_in_another_way() -> None:
    starts = re.compile(r'"-m",\s*("ringd|module|name)')
    sources = [path for package in PACKAGES for path in package.rglob("*.py")]
    assert [p.name for p in sources if starts.search(p.read_text())] == ["python.py"]
