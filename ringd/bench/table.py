"""The bench's table and progress bar, with rich."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ringd.config.values import format_size

MIN_WIDTH = 132
"""A table that goes to a file or a pipe is not folded to 80 columns."""


@contextlib.contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A progress bar on stderr; quiet when that is no terminal."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description:24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("starting workers", total=total)

        def step(text: str) -> None:
            bar.update(task, advance=1, description=text)

        yield step


def print_rows(rows: Sequence[dict[str, Any]], machine: dict[str, Any]) -> None:
    """The table: times in µs, bandwidths in GB/s, ratios peer time / our time."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=MIN_WIDTH)
    table = Table(
        title=f"{rows[0]['op']} {rows[0]['dtype']} on {machine['cpu']}, {machine['cores']} cores",
        caption="time of an operation = the slowest rank's; ratio = peer's time / ours",
    )
    for name in ("n", "size", "impl", "algorithm", "memory"):
        table.add_column(name, justify="right" if name in ("n", "size") else "left")
    for name in ("min µs", "median µs", "p99 µs", "algbw", "busbw", "ratio min", "ratio med", "ok"):
        table.add_column(name, justify="right")
    last = None
    for r in rows:
        if last not in (None, (r["n"], r["bytes"])):
            table.add_section()
        last = (r["n"], r["bytes"])
        table.add_row(
            str(r["n"]),
            format_size(r["bytes"]),
            r["impl"],
            r["algorithm"],
            r["memory"],
            f"{r['min_us']:,.0f}",
            f"{r['median_us']:,.0f}",
            "" if r["p99_us"] is None else f"{r['p99_us']:,.0f}",
            f"{r['algbw']:.2f}",
            f"{r['busbw']:.2f}",
            "" if r["ratio_min"] is None else f"{r['ratio_min']:.2f}",
            "" if r["ratio_median"] is None else f"{r['ratio_median']:.2f}",
            "yes" if r["ok"] else "NO",
        )
    console.print(table)
