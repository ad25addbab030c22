"""Folders that only their user can look into, and those above them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ringd.config.folders import make_folders
from ringd.errors import ConfigError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_all_that_was_missing_is_private_and_what_was_there_stays(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for _ in range(2):
        make_folders(tmp_path / "a/b/c")
    assert [mode(tmp_path / each) for each in ("a", "a/b", "a/b/c")] == [0o700] * 3
    assert mode(tmp_path) == 0o755
    make_folders(tmp_path)
    assert mode(tmp_path) == 0o755


@pytest.mark.parametrize("below", ["", "last-failure", "job/x"])
def test_the_runtime_folder_is_checked_as_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    runtime = tmp_path / "ringd"
    runtime.mkdir(mode=0o755)
    make_folders(runtime / below)
    assert mode(runtime) == mode(runtime / below) == 0o700
    elsewhere = tmp_path / "elsewhere"
    runtime.rename(elsewhere)
    runtime.symlink_to(elsewhere)
    with pytest.raises(ConfigError, match="is a symbolic link"):
        make_folders(runtime / below)


def test_a_file_in_its_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    for folder in (tmp_path / "a", tmp_path / "a/b"):
        with pytest.raises(OSError, match="exists|directory"):
            make_folders(folder)
