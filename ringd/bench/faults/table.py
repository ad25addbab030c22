"""The table of ``ringd bench --faults``, with rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringd.bench.table import NO_P99, figure, show, table_for

COLUMNS = (
    "rounds", "survivors", "raised", "named\nculprit", "one\nverdict", "min ms", "median ms",
    "p99 ms", "max ms", "promised\nms", "ok",
)  # fmt: skip
CAPTION = f"""\
time: from the event to the exception, of each survivor; where none is due, to the end of the call
that was held up longest. named culprit: survivors that named it, and nobody else.
one verdict: rounds in which all survivors of an operation had the same. {NO_P99}"""


def print_rows(rows: Sequence[dict[str, Any]], machine: dict[str, Any]) -> None:
    """One row for each kind and world size."""
    columns = ("kind", "n", *COLUMNS)
    table = table_for("faults", machine, columns, caption=CAPTION, words=("kind",), whole=("kind",))
    for r in rows:
        raises = r["promised_ms"] is not None
        table.add_row(
            r["kind"],
            str(r["n"]),
            str(r["rounds"]),
            str(r["survivors"]),
            str(r["raised"]),
            str(r["named"]) if raises else "",
            str(r["one_verdict"]) if raises else "",
            f"{r['min_ms']:,.1f}",
            f"{r['median_ms']:,.1f}",
            figure(r["p99_ms"], ",.1f"),
            f"{r['max_ms']:,.1f}",
            figure(r["promised_ms"], ",.0f"),
            "yes" if r["ok"] else "NO",
        )
    show(table)
