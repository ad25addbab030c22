"""Tables in Markdown: worked out by hand, with the headings that the documents have."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ringd.bench.markdown import tables

ROOT = Path(__file__).parents[2]
TAKEN_ON = {
    "machine": {"cpu": "AMD EPYC", "cores": 2, "kernel": "6.18.44-x", "congestion_control": "bbr"},
    "versions": {"python": "3.11.7", "torch": "2.13.0+cpu"},
}


def operation(impl: str, memory: str, *, n: int = 2, size_bytes: int = 1 << 24, **more: Any) -> Any:
    row = {"op": "all_reduce", "dtype": "float32", "impl": impl, "memory": memory, "n": n}
    times = {"min_us": 9584.4, "median_us": 14418.6, "of_link": None}
    ratios = {"ratio_min": None, "ratio_median": None}
    return row | {"bytes": size_bytes} | times | ratios | more


OPERATIONS = {
    "rows": [
        operation("gloo", "ordinary"),
        operation("ringd", "ordinary", min_us=10836.6, ratio_min=0.884, ratio_median=0.96),
        operation("ringd", "arena", min_us=6171.0, ratio_min=1.55, ratio_median=1.86),
        operation("gloo", "ordinary", n=4, size_bytes=1024, min_us=5.2, median_us=6.0),
    ]
}
LAB = {
    "lab": {"hosts": 8, "rate_bps": 10**9, "delay_s": 0.001, "jitter_s": 0.0, "loss": 0.0},
    "rows": [
        operation("gloo", "ordinary", size_bytes=65536, of_link=0.0961),
        operation(
            "ringd", "ordinary", size_bytes=65536, median_us=1324.0, of_link=0.04, ratio_min=2.13,
            ratio_median=5.87,
        ),
    ],
}  # fmt: skip
TORCH = {
    "rows": [],
    "torch": [
        {"measure": measure, "impl": impl, "memory": memory, "n": 2, "bytes": size_bytes}
        | {"min_us": least, "median_us": least + 300, "ratio_min": ratio, "ratio_median": ratio}
        for measure, impl, memory, size_bytes, least, ratio in (
            ("all_reduce", "gloo", "ordinary", 1024, 135.0, None),
            ("all_reduce", "ringd", "ordinary", 1024, 161.0, 0.84),
            ("ddp step", "gloo", "ordinary", 100_700_000, 162_000.0, None),
            ("ddp step", "ringd", "adopted", 100_700_000, 150_900.0, 1.07),
            ("ddp step", "ringd", "copied", 100_700_000, 181_200.0, 0.89),
        )
    ],
}
FAULTS = {
    "rows": [],
    "faults": [
        {"kind": "kill-daemon", "min_ms": 56.0, "median_ms": 60.71, "max_ms": 1067.3}
        | {"promised_ms": 500},
        {"kind": "close-link", "min_ms": 35.4, "median_ms": 111.7, "max_ms": 474.2}
        | {"promised_ms": None},
    ],
}
STARTUP = {
    "rows": [],
    "startup": [
        {"n": 4, "impl": "none", "min_s": 3.321, "median_s": 3.41, "max_s": 3.6}
        | {"cpu_min_s": 6.52, "cpu_median_s": 6.69}
    ],
}
EXPECTED = [
    (
        OPERATIONS,
        "README.md",
        [
            "| 2 | 16 MiB | 9,584 / 14,419 | 10,837 / 14,419 | 0.88 / 0.96 | 6,171 / 14,419 | 1.55 / 1.86 |",  # noqa: E501
            "| 4 | 1 KiB | 5 / 6 | | | | |",
        ],
    ),
    (
        LAB,
        "docs/bench.md",
        ["| 8x1gbit,delay=1ms | 64 KiB | 14,419, 10 % | 1,324 | 2.13 / 5.87 |"],
    ),
    (
        TORCH,
        "README.md",
        [
            "| `dist.all_reduce` of 1 KiB | 135 / 435 µs | 161 / 461 µs | 0.84 / 0.84 |",
            "| DDP step, 25 million parameters | 162.0 / 162.3 ms | 150.9 / 151.2 ms | 1.07 / 1.07 |",  # noqa: E501
            "| the same, `RINGD_ADOPT_STORAGES=0` | | 181.2 / 181.5 ms | 0.89 / 0.89 |",
        ],
    ),
    (
        FAULTS,
        "docs/bench.md",
        [
            "| kill-daemon | 56.0 | 60.7 | 1,067.3 | 500 |",
            "| close-link | 35.4 | 111.7 | 474.2 | |",
        ],
    ),
    (STARTUP, "docs/bench.md", ["| 4 | none | 3.32 | 3.41 | 3.60 | 6.52 | 6.69 |"]),
]


@pytest.mark.parametrize(("report", "page", "rows"), EXPECTED)
def test_a_report_becomes_the_table_that_the_page_has(
    report: dict[str, Any], page: str, rows: list[str]
) -> None:
    taken_on, empty, headings, rule, *found = tables({**TAKEN_ON, **report}).splitlines()
    assert taken_on == "On AMD EPYC, 2 cores, Linux 6.18.44, bbr, Python 3.11.7, torch 2.13.0+cpu:"
    assert (empty, found) == ("", rows)
    assert f"\n{headings}\n{rule}\n" in (ROOT / page).read_text()


def test_it_reads_the_files_that_it_is_given(tmp_path: Path) -> None:
    names = []
    for k, (report, _, _) in enumerate(EXPECTED):
        names.append(str(tmp_path / f"{k}.json"))
        Path(names[-1]).write_text(json.dumps({**TAKEN_ON, **report}))
    command = [sys.executable, "-m", "ringd.bench.markdown"]
    done = subprocess.run([*command, *names], capture_output=True, text=True, check=True)
    assert all(row in done.stdout for _, _, rows in EXPECTED for row in rows)
    assert subprocess.run(command, capture_output=True, text=True).returncode == 1


def test_stages_are_lines_and_calls_are_columns() -> None:
    def row(size_bytes: int, *medians_us: float) -> dict[str, Any]:
        stages = [
            {"stage": name, "p10_us": 1.0, "median_us": median, "share": median / sum(medians_us)}
            for name, median in zip(("prepare", "wait"), medians_us, strict=True)
        ]
        whole = {"median_us": 1234.56, "untraced_median_us": 1200.0, "stages": stages}
        return {"op": "all_reduce", "bytes": size_bytes, "n": 2} | whole

    rows = [row(1024, 10.0, 30.0), row(0, 25.04, 75.0)]
    *_, headings, rule, prepare, wait, whole, untraced = tables(
        {**TAKEN_ON, "rows": [], "stages": rows}
    ).splitlines()
    assert headings == "| stage, median µs, share | all_reduce 1 KiB n = 2 | all_reduce n = 2 |"
    assert rule == "|---|---|---|"
    assert prepare == "| prepare | 10.0, 25 % | 25.0, 25 % |"
    assert wait == "| wait | 30.0, 75 % | 75.0, 75 % |"
    assert whole == "| whole call | 1,234.6 | 1,234.6 |"
    assert untraced == "| untraced | 1,200.0 | 1,200.0 |"
