"""The job's secret: where from, how long, and who may read it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ringd.config.loader import load
from ringd.config.secret import load_secret, make_secret_file
from ringd.config.settings import Settings
from ringd.errors import ConfigError

SECRET = "0123456789abcdef"


def from_file(path: Path) -> Settings:
    return load({"secret_file": str(path)}, environ={}).settings


def test_a_file_that_was_made_can_be_loaded_and_is_its_owners_only(tmp_path: Path) -> None:
    path = tmp_path / "job.secret"
    make_secret_file(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(load_secret(from_file(path))) == 64
    assert [p.name for p in tmp_path.iterdir()] == ["job.secret"]


def test_two_secrets_differ(tmp_path: Path) -> None:
    make_secret_file(tmp_path / "a")
    make_secret_file(tmp_path / "b")
    assert load_secret(from_file(tmp_path / "a")) != load_secret(from_file(tmp_path / "b"))


def test_a_secret_in_use_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "job.secret"
    make_secret_file(path)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="File exists"):
        make_secret_file(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["job.secret"]


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be made: No such file"):
        make_secret_file(tmp_path / "no" / "job.secret")


def test_white_space_around_a_secret_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "job.secret"
    path.touch(0o600)
    path.write_text(f"  {SECRET}\r\n\n")
    assert load_secret(from_file(path)) == SECRET.encode()


def test_the_environment_may_hold_it() -> None:
    assert load_secret(load({}, environ={"RINGD_SECRET": SECRET + "\n"}).settings) == (
        SECRET.encode()
    )


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
def test_a_file_that_is_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "job.secret"
    path.write_text(SECRET)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"mode {mode:04o}\): chmod 600") as caught:
        load_secret(from_file(path))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("content", ["", "short", " " * 40, "x" * 5000])
def test_a_secret_of_the_wrong_length_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "job.secret"
    path.touch(0o600)
    path.write_text(content)
    with pytest.raises(ConfigError, match="16 to 4096 are allowed"):
        load_secret(from_file(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"job\.secret cannot be read: No such file"):
        load_secret(from_file(tmp_path / "job.secret"))


def test_no_secret_at_all_says_how_to_make_one() -> None:
    with pytest.raises(ConfigError, match="ringd config secret PATH"):
        load_secret(load({}, environ={}).settings)
