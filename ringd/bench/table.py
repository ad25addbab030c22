"""The bench's table and progress bar, with rich."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ringd.bench.figures import MIN_SAMPLES_FOR_P99
from ringd.config.values import format_size

MIN_WIDTH = 144
"""A table that goes to a file or a pipe is not folded to 80 columns."""
LINK_WIDTH = 12
"""What one column more takes."""
WORDS = ("impl", "algorithm", "memory")
OF_LINK = "of link"
FIGURES = (
    "min µs", "median µs", "p99 µs", "algbw\nGB/s", "busbw\nGB/s", OF_LINK, "ratio\nmin",
    "ratio\nmed", "steps", "frames", "ok",
)  # fmt: skip
NO_P99 = f"p99 is empty where there are fewer than {MIN_SAMPLES_FOR_P99} samples"
CAPTION = f"""\
size: of the larger one of a rank's tensors (all N parts), as in nccl-tests; so is busbw
time of an operation = the slowest rank's; ratio = peer's time / ours: above 1 ringd is quicker
memory: ordinary tensors are copied to the daemon and back, those of comm.empty (arena) are not
steps = rounds of the algorithm; frames = what the busiest rank sent per operation, acks included
GB/s: 10⁹ bytes per second; {NO_P99}"""

LINK_CAPTION = """
of link: busbw as a share of a cable's rate; with its headers TCP can have 95.6 % of it"""

PLAIN_EVERY_S = 10.0
"""How often a line says how far a bench is whose standard error is no terminal."""


@contextlib.contextmanager
def progress(
    total: int, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[str], None]]:
    """A progress bar on stderr; a line now and then where that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _plain_progress(total, clock)
        return
    with Progress(
        TextColumn("{task.description:24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task("starting workers", total=total)

        def step(text: str) -> None:
            bar.update(task, advance=1, description=text)

        yield step


def _plain_progress(total: int, clock: Callable[[], float]) -> Callable[[str], None]:
    done, due = 0, clock() + PLAIN_EVERY_S
    print(f"ringd bench: {total} measurements; starting workers", file=sys.stderr, flush=True)

    def step(text: str) -> None:
        nonlocal done, due
        done += 1
        if clock() >= due:
            due = clock() + PLAIN_EVERY_S
            print(f"ringd bench: {done} of {total}: {text}", file=sys.stderr, flush=True)

    return step


def table_for(
    what: str,
    machine: dict[str, Any],
    columns: Sequence[str],
    *,
    caption: str,
    words: Sequence[str],
    whole: Sequence[str] = (),
) -> Table:
    """An empty table of the bench.

    Args:
        what: was measured, for the title.
        machine: on which: see :func:`ringd.bench.report.machine`.
        columns: their headings, from left to right.
        words: those that hold words; all others hold figures, which stand at the right.
        whole: those that are never folded.
    """
    table = Table(
        title=f"{what} on {machine['cpu']}, {machine['cores']} cores",
        caption=caption,
        caption_justify="left",
    )
    for name in columns:
        justify: Literal["left", "right"] = "left" if name in words else "right"
        table.add_column(name, justify=justify, no_wrap=name in whole)
    return table


def show(table: Table, min_width: int = MIN_WIDTH) -> None:
    """Print a table: as wide as the terminal, or wide enough where there is none."""
    console = Console()
    (console if console.is_terminal else Console(width=min_width)).print(table)


def print_rows(rows: Sequence[dict[str, Any]], machine: dict[str, Any]) -> None:
    """The table of one operation: times in µs, bandwidths in GB/s, ratios peer time / our time."""
    links = any(r["of_link"] is not None for r in rows)
    figures = [name for name in FIGURES if links or name != OF_LINK]
    table = table_for(
        f"{rows[0]['op']} {rows[0]['dtype']}",
        machine,
        ("n", "size", *WORDS, *figures),
        caption=CAPTION + LINK_CAPTION * links,
        words=WORDS,
        whole=("algorithm", OF_LINK),
    )
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
    show(table, MIN_WIDTH + (LINK_WIDTH if links else 0))


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
