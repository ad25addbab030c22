"""The table of ``ringd bench --torch``, with rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringd.bench.table import NO_P99, figure, show, table_for
from ringd.config.values import format_size

COLUMNS = (
    "min µs",
    "median µs",
    "p99 µs",
    "ratio\nmin",
    "ratio\nmed",
    "cpu µs",
    "ratio\ncpu",
    "bits as\ngloo's",
    "ok",
)
CAPTION = f"""\
all_reduce: one call of dist.all_reduce. ddp step: forward, backward and optimizer of a 25-million-
parameter network; size: of a rank's gradients. Time = the slowest rank's; ratio = gloo's / ours
cpu = processor time of a rank, all threads and its daemon included
{NO_P99}"""


def print_rows(rows: Sequence[dict[str, Any]], machine: dict[str, Any]) -> None:
    """One row for each measure, world size and backend."""
    columns = ("measure", "n", "size", "backend", "memory", *COLUMNS)
    words = ("measure", "backend", "memory")
    table = table_for("torch.distributed", machine, columns, caption=CAPTION, words=words)
    last = None
    for r in rows:
        if last not in (None, (r["n"], r["measure"])):
            table.add_section()
        last = (r["n"], r["measure"])
        table.add_row(
            r["measure"],
            str(r["n"]),
            format_size(r["bytes"]),
            r["impl"],
            r["memory"],
            f"{r['min_us']:,.0f}",
            f"{r['median_us']:,.0f}",
            figure(r["p99_us"], ",.0f"),
            figure(r["ratio_min"], ".2f"),
            figure(r["ratio_median"], ".2f"),
            f"{r['cpu_us']:,.0f}",
            figure(r["ratio_cpu"], ".2f"),
            {None: "", True: "yes", False: "no"}[r["same_bits"]],
            "yes" if r["ok"] else "NO",
        )
    show(table)
