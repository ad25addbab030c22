"""The drawings are made without a display."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringd.demo import plots
from tests.demo import rows

pytest.importorskip("matplotlib")


def test_both_plots_are_written(tmp_path: Path) -> None:
    found = rows.report()
    paths = plots.draw(tmp_path, timing=found["timing"], traffic=found["bytes"])
    assert [path.name for path in paths] == ["timing.png", "bytes.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
