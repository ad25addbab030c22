"""The runtime folder: refused before anything starts; the last failure: kept, whatever is there."""

from __future__ import annotations

import json
import os
import signal
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ringd.config.loader import load
from ringd.errors import ConfigError
from ringd.launch import folders, run
from tests.processes.job import command_for, start_job
from tests.processes.programs import jobs

ENDS_WITHIN_S = 30.0


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ---------------------------------------------------------------- the runtime folder


def test_the_runtime_folder_and_the_jobs_own_are_private(folder: Path) -> None:
    folders.make_job_folder(folder / "own/job", 2)
    assert (mode(folder / "own"), mode(folder / "own/job")) == (0o700, 0o700)


def test_one_of_our_own_that_is_open_to_others_is_closed(folder: Path) -> None:
    (folder / "own").mkdir()
    (folder / "own").chmod(0o755)
    folders.make_job_folder(folder / "own/job", 2)
    assert mode(folder / "own") == 0o700


def a_file(path: Path) -> None:
    path.touch()


def a_link(path: Path) -> None:
    path.symlink_to(path.parent)


def of_another(path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    path.mkdir()
    os.chown(path, 12345, -1)


@pytest.mark.parametrize(
    ("put", "text"),
    [
        (a_file, "is no folder"),
        (a_link, "is a symbolic link"),
        (of_another, "belongs to user 12345"),
    ],
)
def test_what_is_not_a_folder_of_our_own_is_refused(folder: Path, put: object, text: str) -> None:
    assert callable(put)
    put(folder / "own")
    with pytest.raises(ConfigError) as caught:
        folders.make_job_folder(folder / "own/job", 2)
    for part in (str(folder / "own"), text, "XDG_RUNTIME_DIR", "TMPDIR"):
        assert part in str(caught.value)


def test_a_folder_that_cannot_be_made_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"/proc/ringd.*XDG_RUNTIME_DIR"):
        folders.make_job_folder(Path("/proc/ringd/job"), 2)


def test_a_path_too_long_for_the_last_socket_is_refused(folder: Path) -> None:
    fits = folder / ("x" * (107 - len(f"{folder}//9.sock")))
    folders.make_job_folder(fits, 10)
    with pytest.raises(ConfigError, match="of 108 bytes, and 107 are allowed"):
        folders.make_job_folder(fits, 11)


def test_run_refuses_it_with_exit_code_2_and_starts_nothing(folder: Path, owner: str) -> None:
    (folder / "run").mkdir()
    (folder / "run/ringd").touch()
    job = start_job(1, ["echo", "started"], folder, owner)
    assert job.wait(ENDS_WITHIN_S) == 2
    assert f"the runtime folder {folder}/run/ringd is no folder" in job.err
    assert "started" not in job.out


def test_a_start_that_fails_leaves_no_folder(folder: Path) -> None:
    loaded = load({}, environ={"XDG_RUNTIME_DIR": str(folder), "RINGD_SECRET": "too short"})
    with pytest.raises(ConfigError, match="RINGD_SECRET"):
        run._prepare(2, loaded)
    assert list(folder.glob("ringd/*")) == []


# ---------------------------------------------------------------- the last failure


def full_folder(path: Path) -> None:
    path.mkdir()
    (path / "flight-rank9.json").write_text("old")


def nothing(path: Path) -> None:
    pass


@pytest.mark.parametrize("put", [nothing, full_folder, a_file, a_link])
def test_dumps_take_the_place_of_whatever_is_there(folder: Path, put: object) -> None:
    assert callable(put)
    put(folder / "kept")
    (folder / "dump").write_text("new")
    folders.keep([folder / "dump"], folder / "kept")
    assert [path.name for path in folder.iterdir()] == ["kept"]
    assert [path.read_text() for path in (folder / "kept").iterdir()] == ["new"]
    assert mode(folder / "kept") == 0o700
    assert not (folder / "kept").is_symlink()


def test_jobs_that_fail_at_once_leave_the_dumps_of_one(folder: Path) -> None:
    def fail(job: int) -> None:
        own = folder / f"job{job}"
        own.mkdir()
        for number in range(200):
            dumps = [own / str(rank) for rank in range(4)]
            for dump in dumps:
                dump.write_text(f"{job} {number}")
            folders.keep(dumps, folder / "kept")

    with ThreadPoolExecutor() as pool:
        list(pool.map(fail, range(2)))
    assert len({path.read_text() for path in (folder / "kept").iterdir()}) == 1
    assert len(list((folder / "kept").iterdir())) == 4
    assert sorted(path.name for path in folder.iterdir()) == ["job0", "job1", "kept"]


def test_dumps_that_cannot_be_kept_are_a_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders, "keep", full)
    (folder / "flight-rank0.json").touch()
    run._keep_dumps(folder)
    assert "can't be kept in" in caplog.text
    assert "No space left on device" in caplog.text


def test_a_file_in_their_place_changes_no_exit_code(folder: Path, owner: str) -> None:
    (folder / "run/ringd").mkdir(parents=True)
    (folder / "run/ringd/last-failure").touch()
    job = start_job(2, command_for(jobs.sum_for_ever), folder, owner)
    job.await_output("at work", times=2)
    os.kill(job.facts()["ranks"][1]["trainer_pid"], signal.SIGKILL)
    assert job.wait(ENDS_WITHIN_S) == 137, job.err
    kept = list((folder / "run/ringd/last-failure").iterdir())
    assert kept
    for dump in kept:
        json.loads(dump.read_text())
