"""What is checked before anything starts, and what counts as success."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringd.demo import main
from ringd.errors import ConfigError
from tests.demo import rows

Hide = Callable[[str], None]


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any, **__: Any) -> None:
        pytest.fail("a job was started")

    monkeypatch.setattr(main, "Job", start)


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Hide:
    """Let a package look as if it were not installed, and all others as if they were."""

    def apply(hidden: str) -> None:
        here = importlib.util.find_spec("ringd")
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if name == hidden else here
        )

    return apply


def test_without_scikit_learn_it_says_what_to_install(hide: Hide) -> None:
    hide("sklearn")
    with pytest.raises(ConfigError, match=r"needs scikit-learn: .*pip install 'ringd\[demo\]'"):
        main.run(json_path=None, plot_dir=None)


def test_matplotlib_is_wanted_for_plots(hide: Hide, tmp_path: Path) -> None:
    hide("matplotlib")
    with pytest.raises(ConfigError, match=r"needs matplotlib: .*pip install 'ringd\[demo\]'"):
        main.run(json_path=None, plot_dir=tmp_path)


def test_a_report_needs_a_folder_that_is_there(hide: Hide, tmp_path: Path) -> None:
    hide("nothing")
    with pytest.raises(ConfigError, match=r"--json .*there is no folder .*/nowhere"):
        main.run(json_path=tmp_path / "nowhere" / "demo.json", plot_dir=None)


def test_plots_need_a_folder_that_can_be_made(hide: Hide, tmp_path: Path) -> None:
    hide("nothing")
    (tmp_path / "taken").write_text("")
    with pytest.raises(ConfigError, match="--plot .*taken: File exists"):
        main.run(json_path=None, plot_dir=tmp_path / "taken")


def test_it_is_well_when_every_row_is() -> None:
    assert main.is_ok(rows.report())


@pytest.mark.parametrize(
    "wrong",
    [
        {"verify": [rows.verify_row(), rows.verify_row(ok=False)]},
        {"bytes": [rows.bytes_row(ok=False)]},
        {"timing": [rows.timing_row(ok=False)]},
        {"training": rows.training_row(ok=False)},
        {"fault": rows.fault_row(ok=False)},
    ],
)
def test_one_row_is_enough_to_fail_it(wrong: dict[str, Any]) -> None:
    assert not main.is_ok(rows.report(**wrong))
