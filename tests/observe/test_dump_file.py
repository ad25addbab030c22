"""Files of dumps: whole or not there, bounded in number, and written when something failed."""

from __future__ import annotations

import json
import logging
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from ringd.observe.dump_file import DELAY_S, EVERY_S, KEPT_FILES, Dumper, check, write
from ringd.observe.flight import Snapshot
from ringd.sim.clock import VirtualLoop


def head(rank: int = 3, epoch: int = 1, **more: Any) -> dict[str, Any]:
    return {"rank": rank, "epoch": epoch, "groups": [], "reason": "test", **more}


def snapshot(**more: Any) -> Snapshot:
    return Snapshot(head(**more), [], [], [], {}, 1, 2)


def test_the_name_has_rank_and_epoch_and_only_the_user_may_read_it(tmp_path: Path) -> None:
    path = write(head(7, 12), tmp_path / "made" / "for" / "it")
    assert path == tmp_path / "made/for/it/flight-rank7-epoch12.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text())["rank"] == 7


def test_a_later_dump_replaces_the_earlier_one_of_its_rank_and_epoch(tmp_path: Path) -> None:
    write(head(count=1), tmp_path)
    path = write(head(count=2), tmp_path)
    assert json.loads(path.read_text())["count"] == 2
    assert os.listdir(tmp_path) == [path.name]


def test_files_of_many_epochs_are_bounded_per_rank_and_the_oldest_go(tmp_path: Path) -> None:
    for epoch in range(KEPT_FILES + 5):
        for rank in (1, 11):
            path = write(head(rank, epoch), tmp_path)
            os.utime(path, (1000 + epoch, 1000 + epoch))
    for rank in (1, 11):
        kept = {path.name for path in tmp_path.glob(f"flight-rank{rank}-*")}
        last = range(5, KEPT_FILES + 5)
        assert kept == {f"flight-rank{rank}-epoch{epoch}.json" for epoch in last}


def test_a_folder_that_can_not_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "flight-rank3-epoch1.json").mkdir()
    with pytest.raises(OSError, match="flight-rank3"):
        write(head(), tmp_path)
    assert os.listdir(tmp_path) == ["flight-rank3-epoch1.json"]


def test_whether_a_folder_can_be_written_is_seen_beforehand(tmp_path: Path) -> None:
    check(tmp_path / "new" / "folder")
    assert os.listdir(tmp_path / "new" / "folder") == []
    with pytest.raises(OSError, match="/proc/x"):
        check(Path("/proc/x"))


class Watched:
    """A dumper on virtual time, and when it took which snapshot."""

    def __init__(self, folder: Path) -> None:
        self.loop = VirtualLoop(start_s=0.0, time_limit_s=3600.0)
        self.taken: list[tuple[float, str]] = []
        self.log = logging.Logger("test")  # noqa: LOG001 - its own
        self.dumper = Dumper(self.loop, self.take, folder, self.log)

    def take(self, reason: str) -> Snapshot:
        self.taken.append((self.loop.time(), reason))
        return snapshot(reason=reason)

    def at(self, *times: float) -> None:
        """Fail at these times."""
        for time in times:
            self.loop.call_at(time, self.dumper.on_failure, f"all_reduce failed at {time:g}")

    def run(self, until_s: float) -> None:
        self.loop.call_at(until_s, self.loop.stop)
        self.loop.run_forever()


def test_a_failure_is_dumped_soon_and_many_at_once_are_one_dump(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.at(1.0, 1.0, 1.0 + DELAY_S / 2)
    watched.run(5.0)
    watched.dumper.close()
    assert watched.taken == [(1.0 + DELAY_S, "failure")]
    assert [path.name for path in tmp_path.iterdir()] == ["flight-rank3-epoch1.json"]
    watched.loop.close()


def test_the_log_says_what_failed_first_and_where_the_dump_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(tmp_path)
    watched.log.addHandler(caplog.handler)
    watched.at(1.0, 1.0 + DELAY_S / 2, 100.0)
    watched.run(200.0)
    watched.dumper.close()
    path = tmp_path / "flight-rank3-epoch1.json"
    said = f"flight recorder (failure): {path}"
    assert caplog.messages == ["all_reduce failed at 1", said, "all_reduce failed at 100", said]
    watched.loop.close()


def test_dumps_keep_their_distance_but_the_last_failure_is_not_missed(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.at(*(1.0 + i / 4 for i in range(100)))
    watched.run(100.0)
    times = [time for time, _ in watched.taken]
    first = 1.0 + DELAY_S
    assert times == [first, first + EVERY_S, first + 2 * EVERY_S, first + 3 * EVERY_S]
    assert times[-1] > 1.0 + 99 / 4
    watched.dumper.close()
    watched.loop.close()


def test_who_asks_does_not_wait_and_what_is_due_is_in_it(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.at(1.0)
    watched.loop.call_at(1.1, watched.dumper.dump, "SIGUSR1")
    watched.run(50.0)
    watched.dumper.close()
    assert watched.taken == [(1.1, "SIGUSR1")]
    watched.loop.close()


def test_a_daemon_that_ends_writes_what_is_due(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.at(1.0)
    watched.run(1.1)
    assert not watched.taken
    watched.dumper.close()
    assert len(list(tmp_path.iterdir())) == 1
    watched.loop.close()


def test_what_is_due_is_written_before_the_next_epoch_takes_its_name(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.at(1.0)
    watched.loop.call_at(1.1, watched.dumper.epoch_ends)
    watched.loop.call_at(1.2, watched.dumper.epoch_ends)
    watched.run(50.0)
    watched.dumper.close()
    assert watched.taken == [(1.1, "failure")]
    watched.loop.close()


def test_an_interrupt_and_what_follows_or_just_precedes_it_are_not_dumped(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.at(1.0, 1.2, 1.3, 20.0)
    watched.loop.call_at(1.0 + DELAY_S / 2, watched.dumper.on_interrupt)
    watched.run(50.0)
    watched.dumper.close()
    assert watched.taken == []
    assert list(tmp_path.iterdir()) == []
    watched.loop.close()


def test_what_failed_before_an_interrupt_is_written_and_is_not_replaced(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.at(1.0, 2.0, 5.1, 5.2)  # of the second the dump is not due before 11.25
    watched.loop.call_at(5.0, watched.dumper.on_interrupt)
    watched.loop.call_at(5.1, watched.dumper.on_interrupt)
    watched.run(50.0)
    watched.dumper.close()
    assert watched.taken == [(1.0 + DELAY_S, "failure"), (5.0, "failure")]
    watched.loop.close()


def test_a_failure_of_the_next_epoch_is_dumped_again(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.loop.call_at(1.0, watched.dumper.on_interrupt)
    watched.loop.call_at(2.0, watched.dumper.epoch_ends)
    watched.at(3.0)
    watched.run(50.0)
    watched.dumper.close()
    assert watched.taken == [(3.0 + DELAY_S, "failure")]
    watched.loop.close()


def test_a_dump_that_can_not_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    watched = Watched(tmp_path / "file")
    said: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = said.append  # type: ignore[method-assign]
    watched.log.addHandler(handler)
    watched.dumper.dump("SIGUSR1")
    watched.dumper.close()
    assert [record.levelname for record in said] == ["WARNING"]
    assert "can't be written (dump_dir)" in said[0].getMessage()
    watched.loop.close()
