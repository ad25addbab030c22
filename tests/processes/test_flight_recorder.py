"""Dumps of real daemons: after a failure, on SIGUSR1, and when somebody asks."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ringd.observe import dump_view
from ringd.observe.dumps import parse, read
from ringd.observe.explain import explain
from ringd.observe.explain_text import paragraph
from tests.processes.harness import Daemons, until
from tests.processes.inventory import inventory
from tests.processes.programs import calls, faults


def reason_of(path: Path) -> str:
    return str(json.loads(path.read_text())["reason"]) if path.exists() else ""


def test_a_rank_that_never_enters_is_found_from_the_dumps_that_all_daemons_left(
    daemons: Callable[..., Daemons],
) -> None:
    group = daemons(3)
    group.connect()
    group.do(faults.call)
    files = [group.folder / f"flight-rank{rank}-epoch1.json" for rank in range(3)]
    assert not any(path.exists() for path in files)

    group.start(faults.call, but=1, timeout_s=1.0)
    group.results(but=1)
    for path in files:
        until(path.exists, f"{path.name} is written")
    report = explain(read([group.folder]))
    assert report.headline is not None
    assert (report.headline.seq, report.headline.kind) == (1, "never entered")
    assert report.headline.ranks("never entered") == [1]
    assert report.dumps[1].trainer_pid == group.trainers[1].pid
    group.disconnect()


def test_after_a_mismatch_nobody_is_said_to_wait(
    standing: Callable[[int], Daemons], folder: Path
) -> None:
    group = standing(2)
    for rank in range(2):
        order = [{"shape": [10 + rank]}]
        group.trainer(rank).start(calls.sequence, calls=order)
    for told in group.results():
        assert [call["error"] for call in told] == ["CollectiveMismatchError"]
    report = explain([parse(dump_view.ask(group.socket(r))) for r in range(2)])
    assert report.headline is not None
    assert report.headline.kind == "mismatch"
    assert "wait" not in paragraph(report), paragraph(report)


def test_a_killed_trainer_makes_every_daemon_dump_its_own_too(
    daemons: Callable[..., Daemons],
) -> None:
    group = daemons(2)
    group.connect()
    group.do(faults.call)
    pid = group.trainers[0].pid
    group.kill_trainer(0)
    for rank in range(2):
        path = group.folder / f"flight-rank{rank}-epoch1.json"
        until(path.exists, f"{path.name} is written")
    (first, second) = read([group.folder])
    assert first.trainer_pid == pid
    assert second.broken is not None
    assert "rank 0" in second.broken


def test_whoever_asks_gets_a_dump_and_the_daemon_goes_on(
    daemons: Callable[..., Daemons], folder: Path
) -> None:
    group = daemons(2, dump_dir=folder / "dumps")
    group.connect()
    group.do(faults.call, times=3)
    before = inventory(group.daemon_pid(0))

    document: dict[str, Any] = dump_view.ask(group.socket(0))
    assert [op.seq for op in parse(document).operations] == [0, 1, 2]

    path = folder / "dumps/flight-rank0-epoch1.json"
    group.daemon_signal(0, signal.SIGUSR1)
    until(lambda: reason_of(path) == "SIGUSR1", "the signal made a dump")
    assert [op.state for op in read([path])[0].operations] == ["done"] * 3

    assert [told["value"] for told in group.do(faults.call)] == [2.0] * 2
    until(
        lambda: inventory(group.daemon_pid(0)).threads == before.threads,
        "the thread that wrote the dump is gone",
    )
    assert inventory(group.daemon_pid(0)).fds == before.fds
    assert not list(group.folder.glob("flight-*"))
    group.disconnect()
