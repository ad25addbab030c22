"""The table of ``ringd bench --torch``, with rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from ringd.bench.table import MIN_WIDTH, figure
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
CAPTION = """\
all_reduce: one call of dist.all_reduce. ddp step: forward, backward and optimizer of a 25-million-
parameter network; size: of a rank's gradients. Time = the slowest rank's; ratio = gloo's / ours
cpu = processor time of a rank, all threads and its daemon included"""


def print_rows(rows: Sequence[dict[str, Any]], machine: dict[str, Any]) -> None:
    """One row for each measure, world size and backend."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=MIN_WIDTH)
    table = Table(
        title=f"torch.distributed on {machine['cpu']}, {machine['cores']} cores",
        caption=CAPTION,
        caption_justify="left",
    )
    for name in ("measure", "n", "size", "backend", "memory", *COLUMNS):
        text = name in ("measure", "backend", "memory")
        table.add_column(name, justify="left" if text else "right")
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
    console.print(table)
