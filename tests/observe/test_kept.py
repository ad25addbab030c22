"""last-failure shows one job's folder whole, and the folders are bounded."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ringd.observe.dump_file import write
from ringd.observe.dumps import last_failure, read
from ringd.observe.flight import FORMAT, VERSION
from ringd.observe.kept import FAILURES, KEPT_JOBS, LAST_FAILURE, publish


def document(job: str, rank: int, world_size: int) -> dict[str, Any]:
    """A dump of a rank that has done nothing."""
    return {
        "format": FORMAT, "version": VERSION, "job_id": job, "rank": rank,
        "world_size": world_size, "host": "host", "trainer_pid": 1, "epoch": 1, "taken_at": 1.0,
        "groups": [], "operations": [], "forgotten": 0, "broken": None, "epochs": [],
    }  # fmt: skip


def fail(runtime: Path, job: str, *ranks: int) -> Path:
    """What the daemons of a job do that fails; its folder."""
    folder = runtime / FAILURES / job
    for rank in ranks:
        write(document(job, rank, len(ranks)), folder)
        publish(folder)
    return folder


def shown(runtime: Path) -> set[tuple[str, int]]:
    return {(dump.job_id, dump.rank) for dump in read([last_failure(runtime)])}


def test_a_job_of_fewer_ranks_leaves_none_of_the_one_before(tmp_path: Path) -> None:
    fail(tmp_path, "large", 0, 1, 2)
    fail(tmp_path, "small", 0, 1)
    assert shown(tmp_path) == {("small", 0), ("small", 1)}
    assert [dump.job_id for dump in read([tmp_path / FAILURES / "large"])] == ["large"] * 3


def test_jobs_that_fail_at_once_do_not_mix(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda job: fail(tmp_path, job, *range(8)), ["a", "b", "c"]))
    assert len({job for job, _ in shown(tmp_path)}) == 1
    assert len(shown(tmp_path)) == 8
    assert {path.name for path in tmp_path.iterdir()} == {FAILURES, LAST_FAILURE}


def a_folder(path: Path) -> None:
    path.mkdir()
    (path / "flight-rank9-epoch1.json").write_text("{}")


def a_file(path: Path) -> None:
    path.touch()


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("put", [a_folder, a_file, a_link_to_nothing])
def test_whatever_is_there_is_replaced(tmp_path: Path, put: Callable[[Path], None]) -> None:
    put(tmp_path / LAST_FAILURE)
    fail(tmp_path, "job", 0)
    assert shown(tmp_path) == {("job", 0)}


def test_the_folders_are_bounded_and_the_oldest_go(tmp_path: Path) -> None:
    for number in range(KEPT_JOBS + 3):
        folder = fail(tmp_path, f"job{number}", 0)
        os.utime(folder, (1000 + number, 1000 + number))
    kept = {path.name for path in (tmp_path / FAILURES).iterdir()}
    assert kept == {f"job{number}" for number in range(3, KEPT_JOBS + 3)}
    assert shown(tmp_path) == {(f"job{KEPT_JOBS + 2}", 0)}
