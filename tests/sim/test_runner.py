"""Many seeds: a row for each, failures that are told and replayed, a table."""

from __future__ import annotations

from typing import Any

import pytest

from ringd.sim import __main__ as program
from ringd.sim import runner
from ringd.sim.runner import MAX_FAILURES, Row, run_seed, run_seeds, table
from ringd.sim.scenario import Scenario
from ringd.sim.world import WrongOutcome

SEEDS = range(7000, 7003)


class Broken:
    """A scenario that goes wrong."""

    kind = "none"

    def __init__(self, seed: int, **_fixed: Any) -> None:
        self.seed = seed

    def run(self) -> Any:
        raise WrongOutcome(f"seed {self.seed}: as if\nand more of it")


def test_rows_are_the_same_in_one_process_and_in_many() -> None:
    told: list[Row] = []
    alone = run_seeds(SEEDS, 1, told.append)
    assert told == alone
    assert [row.seed for row in alone] == list(SEEDS)
    assert [row.wrong for row in alone] == [""] * len(SEEDS)
    many = run_seeds(SEEDS, 2, told.append)

    def facts(rows: list[Row]) -> list[tuple[object, ...]]:
        return [(r.seed, r.kind, r.completed, r.failed, r.verdicts, r.resumed) for r in rows]

    assert facts(many) == facts(alone)


@pytest.mark.parametrize("kind", ["rendezvous restarts", "rendezvous stalls", "embedder dies"])
def test_many_seeds_of_one_kind(kind: str) -> None:
    rows = run_seeds(SEEDS, 1, lambda _row: None, n=3, fault=kind)
    assert [(row.kind, row.wrong) for row in rows] == [(kind, "")] * len(SEEDS)
    assert all(row.completed for row in rows)
    assert any(row.failed for row in rows) == (kind == "embedder dies")


@pytest.mark.parametrize(
    ("seed", "fault"),
    [
        (2450, "daemon leaves"),  # a message was sent a moment before the deadline of its receive
    ],
)
def test_a_seed_that_once_went_wrong(seed: int, fault: str) -> None:
    assert run_seed(seed, fault=fault).wrong == ""


def test_a_failure_is_a_row_and_many_failures_end_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "scenario_of", Broken)
    assert run_seed(5).wrong == "seed 5: as if\nand more of it"
    assert len(run_seeds(range(100), 1, lambda _row: None)) == MAX_FAILURES


def test_the_program_tells_failures_with_their_replay_and_exits_with_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "scenario_of", Broken)
    assert program.run_many(range(3), 1) == 1
    out = capsys.readouterr().out
    assert "WRONG seed 2: as if\n" in out
    assert "and more" not in out
    assert "3 wrong" in out


def test_a_replay_shows_the_events_and_the_digest(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.replay(7000, 3, "crash", shown=True) == 0
    first, *events, last = capsys.readouterr().out.splitlines()
    assert "--seed 7000 --ranks 3 --fault 'crash' --trace" in first
    assert any("crash" in line for line in events)
    assert "digest " in last
    assert program.replay(7000, 3, "crash", shown=False) == 0
    assert capsys.readouterr().out.splitlines()[-1] == last


def test_a_wrong_replay_says_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def wrong(self: Scenario) -> None:
        raise WrongOutcome("as if")

    monkeypatch.setattr(Scenario, "_main", wrong)
    assert program.replay(7000, 2, "none", shown=False) == 1
    assert "as if" in capsys.readouterr().err


def test_the_table_adds_up_by_kind() -> None:
    rows = [
        Row(0, "cut", 10, 2, 1, 1, 3),
        Row(1, "cut", 5, wrong="oh"),
        Row(2, "crash", 7, 4, 0, 2, 0),
    ]
    head, *lines = table(rows)
    assert head.split() == [
        "fault", "runs", "wrong", "completed", "errors", "partial", "verdicts", "resumed"
    ]  # fmt: skip
    assert [line.split() for line in lines] == [
        ["crash", "1", "0", "7", "4", "0", "2", "0"],
        ["cut", "2", "1", "15", "2", "1", "1", "3"],
        ["all", "3", "1", "22", "6", "1", "3", "3"],
    ]
