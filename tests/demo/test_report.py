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
        rows.verify_row(dtype="float64", algorithm="tree", max_error=1e-7, tolerance=2e-7),
        rows.verify_row(reduce_op="avg"),
    ]
    total, average = report.condense(cases)
    assert (total["max_error"], total["tolerance"]) == (1e-7, 2e-7)
    assert (total["cases"], total["dtypes"], total["algorithms"]) == (2, 2, 2)
    assert (average["reduce_op"], average["cases"]) == ("avg", 1)


def test_a_form_of_call_has_one_line_for_all_collectives() -> None:
    cases = [
        rows.verify_row(form="uneven parts", collective=name) for name in ("gather", "scatter")
    ]
    plain, uneven = report.condense([rows.verify_row(), *cases])
    assert (plain["cases"], uneven["cases"]) == (1, 2)
    shown = text(report.verify([rows.verify_row(), *cases]))
    (line,) = (line for line in shown.splitlines() if "uneven parts" in line)
    assert "sum" not in line


def test_what_was_compared_with_what_is_counted() -> None:
    cases = [rows.verify_row(), rows.verify_row(reference="float32 fold")]
    shown = text(report.verify([*cases, rows.verify_row(reference="definition")]))
    assert "1. Verify: 3 cases" in shown
    assert "gloo on the same input: 1;" in shown


def test_one_failed_case_fails_its_line() -> None:
    (row,) = report.condense([rows.verify_row(), rows.verify_row(bit_equal=False, ok=False)])
    assert (row["ok"], row["same_bits"]) == (False, False)


def test_an_exact_case_that_is_off_is_the_worst() -> None:
    exact = rows.verify_row(dtype="int32", tolerance=0.0, max_error=1e-9, ok=False)
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
    grouped = rows.verify_row(ok=False, form="sub-groups", failure="rank 0: gone")
    first, second, third = report.failures([rows.verify_row(), wrong, broken, grouped])
    assert first.startswith(
        "all_reduce float32 ring sum 1003: max error 5.0e-07, tolerance 3.0e-07"
    )
    assert second == "all_reduce float32 ring sum 1003: rank 1: PeerLostError: gone"
    assert third == "sub-groups all_reduce float32 ring sum 1003: rank 0: gone"


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
    lines = [line.split() for line in shown.splitlines() if line.strip()]
    assert ["algorithm", "1K"] in lines
    assert ["ring", "1,000", "ok"] in lines
    assert ["tree", "*800", "ok"] in lines
    assert ["auto", "takes", "ring"] in lines


def test_bytes_have_a_line_for_each_call_and_a_column_for_each_world_size() -> None:
    three = [rows.bytes_row(world_size=3, rank=r, measured_bytes=60 + r) for r in range(3)]
    half = rows.bytes_row(dtype="float16", measured_bytes=24)
    shown = text(report.traffic([rows.bytes_row(), rows.bytes_row(rank=1), *three, half]))
    lines = [line.split() for line in shown.splitlines() if line.strip()]
    assert ["call", "formula", "N", "=", "2", "N", "=", "3", "head"] in lines
    assert ["ring", "2T(N−1)/N", "48", "62", "90", "ok"] in lines
    assert any(line[:2] == ["ring", "float16"] for line in lines)


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
