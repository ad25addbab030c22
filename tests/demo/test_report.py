"""What is shown: condensed rows, failures in plain sight, and nothing wider than a terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from ringd.demo import report
from tests.demo import rows

MACHINE = "A processor, 2 cores"


def text(part: Any, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(part)
    return out.getvalue()


def all_parts(found: dict[str, Any]) -> str:
    parts = [
        report.verify(found["verify"]),
        report.traffic(found["bytes"]),
        report.timing(found["timing"], MACHINE),
        report.training(found["training"]),
        report.fault(found["fault"]),
    ]
    return "".join(map(text, parts))


def test_one_line_stands_for_the_case_that_is_nearest_to_its_bound() -> None:
    cases = [
        rows.verify_row(max_error=2e-7, tolerance=9e-7),
        rows.verify_row(reduce_op="avg", max_error=1e-7, tolerance=2e-7),
        rows.verify_row(algorithm="tree"),
    ]
    ring, tree = report.condense(cases)
    assert (ring["max_error"], ring["tolerance"]) == (1e-7, 2e-7)
    assert tree["algorithm"] == "tree"


def test_one_failed_case_fails_its_line() -> None:
    (row,) = report.condense([rows.verify_row(), rows.verify_row(bit_equal=False, ok=False)])
    assert (row["ok"], row["same_bits"]) == (False, False)


def test_an_exact_case_that_is_off_is_the_worst() -> None:
    exact = rows.verify_row(reduce_op="max", tolerance=0.0, max_error=1e-9, ok=False)
    (row,) = report.condense([rows.verify_row(), exact])
    assert row["max_error"] == 1e-9


def test_bits_that_can_not_be_compared_are_left_out() -> None:
    parts = rows.verify_row(collective="reduce_scatter", bit_equal=None)
    barrier = rows.verify_row(
        collective="barrier", dtype="", bit_equal=None, repeat_equal=None, tolerance=0.0
    )
    assert [row["same_bits"] for row in report.condense([parts, barrier])] == [True, None]


def test_a_failure_is_told_in_a_line_of_its_own() -> None:
    wrong = rows.verify_row(ok=False, max_error=5e-7)
    broken = rows.verify_row(ok=False, failure="rank 1: PeerLostError: gone", max_error=None)
    first, second = report.failures([rows.verify_row(), wrong, broken])
    assert first.startswith(
        "all_reduce float32 ring sum 1003: max error 5.0e-07, tolerance 3.0e-07"
    )
    assert second == "all_reduce float32 ring sum 1003: rank 1: PeerLostError: gone"


def test_all_fits_a_terminal_of_eighty_columns() -> None:
    shown = all_parts(rows.report())
    assert "…" not in shown
    assert "FAIL" not in shown
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80


@pytest.mark.parametrize(
    "wrong",
    [
        {"verify": [rows.verify_row(ok=False)]},
        {"bytes": [rows.bytes_row(), rows.bytes_row(rank=1, ok=False)]},
        {"timing": [rows.timing_row(ok=False)]},
        {"training": rows.training_row(ok=False)},
        {"fault": rows.fault_row(survivors=[rows.survivor_row(ok=False)])},
    ],
)
def test_whatever_fails_is_marked(wrong: dict[str, Any]) -> None:
    assert all_parts(rows.report(**wrong)).count("FAIL") == 1


def test_the_algorithm_that_auto_takes_and_the_fastest_are_named() -> None:
    shown = text(report.timing(rows.report()["timing"], MACHINE))
    (line,) = (line for line in shown.splitlines() if line.strip().startswith("1K"))
    assert line.split() == ["1K", "1,000", "*800", "ring", "ok"]


def test_the_text_of_an_error_is_shown_as_it_is() -> None:
    assert "trainer died [process 7]" in text(report.fault(rows.fault_row()), width=132)


def test_a_tensor_that_was_changed_is_not_called_untouched() -> None:
    changed = rows.fault_row(survivors=[rows.survivor_row(untouched=False, ok=False)])
    shown = text(report.fault(changed))
    assert "CHANGED" in shown
    assert "untouched" not in shown


def test_progress_is_silent_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with report.progress(1) as step:
        step("something")
    assert capsys.readouterr() == ("", "")
