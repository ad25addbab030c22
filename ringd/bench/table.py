"""The bench's table and progress bar, with rich."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ringd.config.values import format_size

MIN_WIDTH = 144
"""A table that goes to a file or a pipe is not folded to 80 columns."""
LINK_WIDTH = 12
"""What one column more takes."""
FIGURES = (
    "min µs", "median µs", "p99 µs", "algbw", "busbw", "ratio\nmin", "ratio\nmed", "steps",
    "frames", "ok",
)  # fmt: skip
CAPTION = """\
size: of the larger one of a rank's tensors (all N parts), as in nccl-tests; so is busbw
time of an operation = the slowest rank's; ratio = peer's time / ours
steps = rounds of the algorithm; frames = what the busiest rank sent per operation, acks included"""


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
    """The table of one operation: times in µs, bandwidths in GB/s, ratios peer time / our time."""
    console = Console()
    links = any(r["of_link"] is not None for r in rows)
    if not console.is_terminal:
        console = Console(width=MIN_WIDTH + (LINK_WIDTH if links else 0))
    table = Table(
        title=f"{rows[0]['op']} {rows[0]['dtype']} on {machine['cpu']}, {machine['cores']} cores",
        caption=CAPTION,
        caption_justify="left",
    )
    for name in ("n", "size", "impl", "algorithm", "memory"):
        table.add_column(
            name, justify="right" if name in ("n", "size") else "left", no_wrap=name == "algorithm"
        )
    for name in FIGURES:
        table.add_column(name, justify="right")
        if name == "busbw" and links:
            table.add_column("of link", justify="right", no_wrap=True)
    last = None
    for r in rows:
        if last not in (None, (r["n"], r["bytes"])):
            table.add_section()
        last = (r["n"], r["bytes"])
        table.add_row(
            str(r["n"]),
            format_size(r["bytes"]) if r["bytes"] else "",
            r["impl"],
            _algorithm(r),
            r["memory"],
            f"{r['min_us']:,.0f}",
            f"{r['median_us']:,.0f}",
            figure(r["p99_us"], ",.0f"),
            figure(r["algbw"], bandwidth(r["algbw"])),
            figure(r["busbw"], bandwidth(r["busbw"])),
            *([figure(r["of_link"], ".1%")] if links else []),
            figure(r["ratio_min"], ".2f"),
            figure(r["ratio_median"], ".2f"),
            figure(r["steps"], "d"),
            figure(r["frames"], ".1f"),
            "yes" if r["ok"] else "NO",
        )
    console.print(table)


def _algorithm(row: dict[str, Any]) -> str:
    """What "auto" was, if it was asked for."""
    if row["algorithm"] == "auto" and row["resolved"]:
        return f"auto: {row['resolved']}"
    return "" if row["resolved"] == "" else str(row["algorithm"])


def figure(value: float | None, how: str) -> str:
    """A number in this format; nothing where there is none."""
    return "" if value is None else format(value, how)


def bandwidth(value: float | None) -> str:
    """How a bandwidth is written: with two digits that count at least."""
    return ".2f" if value is None or value >= 0.1 else ".2g"
