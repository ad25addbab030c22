"""The tables of ``ringd bench --stages``, with rich."""

from __future__ import annotations

from typing import Any

from ringd.bench.stages.path import STAGES
from ringd.bench.table import show, table_for
from ringd.config.values import format_size

COLUMNS = ("stage", "p10 µs", "median µs", "share", "what happens")
WORDS = ("stage", "what happens")
CAPTION = """\
the call on its slowest rank, with all that stage of it added up; p10: one call in ten is below it
share: of the time of the calls that are neither in the quickest nor in the slowest quarter
medians do not add up to the median of the whole; shares do, to 100 %"""


def print_row(row: dict[str, Any], machine: dict[str, Any]) -> None:
    """One table: each stage of a call, and the whole of it, traced and untraced."""
    table = table_for(_title(row), machine, COLUMNS, caption=CAPTION, words=WORDS, whole=("stage",))
    for stage in row["stages"]:
        name = stage["stage"]
        table.add_row(name, *_times(stage), f"{stage['share']:.1%}", STAGES[name])
    table.add_section()
    table.add_row("whole call", *_times(row), "100.0%", _checked(row))
    untraced = {key: row[f"untraced_{key}"] for key in ("p10_us", "median_us")}
    share = f"{row['untraced_median_us'] / row['median_us']:.1%}"
    table.add_row("untraced", *_times(untraced), share, "the same call, in a job without tracing")
    show(table)


def _title(row: dict[str, Any]) -> str:
    size, memory = "", ""
    if row["bytes"]:
        size = f" of {format_size(row['bytes'])} {row['dtype']}"
        memory = f", {row['memory']} memory"
    chosen = row["resolved"]
    algorithm = f"auto: {chosen}" if row["algorithm"] == "auto" else chosen
    return f"{row['op']}{size}, {row['n']} ranks, {algorithm}{memory}"


def _times(figures: dict[str, Any]) -> tuple[str, str]:
    return f"{figures['p10_us']:,.1f}", f"{figures['median_us']:,.1f}"


def _checked(row: dict[str, Any]) -> str:
    return f"{row['samples']:,} calls, traced; results {'right' if row['ok'] else 'WRONG'}"
