"""The demo's tables, with rich, and its progress on stderr."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ringd.bench.table import MIN_WIDTH
from ringd.config.values import format_size

Row = dict[str, Any]

LOSSES_SHOWN = 6


@contextlib.contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A progress bar on stderr, gone at the end; quiet when that is no terminal.

    Yields:
        A function that says what begins now; it is to be called ``total`` times.
    """
    console = Console(stderr=True)
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description:38}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("starting ranks", total=total)

        def step(text: str) -> None:
            bar.update(task, advance=1, description=text)

        yield step


def console() -> Console:
    """Where tables go: as wide as the terminal, or wide enough for them."""
    found = Console()
    return found if found.is_terminal else Console(width=MIN_WIDTH)


def mark(ok: bool) -> str:
    """A verdict in a word, which a pipe can carry too."""
    return "[green]ok[/]" if ok else "[bold red]FAIL[/]"


def yes(what: bool | None) -> str:
    """ "yes" or "NO"; nothing where the question makes no sense."""
    return "" if what is None else "yes" if what else "[bold red]NO[/]"


def number(value: float | None) -> str:
    """An error in two digits."""
    if value is None:
        return "?"
    return f"{value:.1e}" if value else "0"


def _part(title: str, table: Table, *notes: str) -> Group:
    return Group(
        "", Text(title, style="bold"), table, *(Text.from_markup(f"[dim]{n}[/]") for n in notes)
    )


def _table(*columns: str) -> Table:
    """Columns of words stand left, those of figures (">name") right; the verdict comes last."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in columns:
        is_figure = name.startswith(">")
        table.add_column(
            name.lstrip(">"), justify="right" if is_figure else "left", no_wrap=name != "error"
        )
    table.add_column("", no_wrap=True)
    return table


# ---------------------------------------------------------------- 1. verify

VERIFY_NOTES = (
    "Error: the worst, relative to what was combined (Σ|x| or ∏|x|); 0: equal values.",
    "In another order than rank order a 16-bit sum may be one rounding step off.",
    "Same bits: on all ranks, where all get the same, and in the second call.",
    "Barrier: by how many seconds a rank left before the last one had come.",
    "The last lines are forms of calls, each with all collectives that have it.",
)


def condense(rows: Sequence[Row]) -> list[Row]:
    """One row for each collective × reduce op, and for each form of call.

    Shown is the error of the case that came nearest to its bound.
    """
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        call = (row["form"],) if row["form"] else (row["collective"], row["reduce_op"])
        groups.setdefault(call, []).append(row)
    return [_condensed(group) for group in groups.values()]


def _condensed(group: Sequence[Row]) -> Row:
    worst: Row = max(group, key=_nearness)
    bits = [row[key] for row in group for key in ("bit_equal", "repeat_equal")]
    known = [bit for bit in bits if bit is not None]
    return worst | {
        "cases": len(group),
        "dtypes": len({row["dtype"] for row in group if row["dtype"]}),
        "algorithms": len({row["algorithm"] for row in group if row["algorithm"]}),
        "same_bits": all(known) if known else None,
        "ok": all(row["ok"] for row in group),
    }


def _nearness(row: Row) -> float:
    """How near a case came to its tolerance: 1 is at the bound."""
    if row["max_error"] is None:
        return float("inf")
    if not row["tolerance"]:
        return float("inf") if row["max_error"] else 0.0
    return float(row["max_error"] / row["tolerance"])


def verify(rows: Sequence[Row]) -> Group:
    """Part 1, condensed; --json has every case."""
    table = _table(
        "call",
        "op",
        ">cases",
        ">dtypes",
        ">algo-\nrithms",
        ">max\nerror",
        ">toler-\nance",
        "same\nbits",
    )
    last, block = "", ""
    for row in condense(rows):
        name = row["form"] or row["collective"]
        now = "forms" if row["form"] else row["collective"] if row["reduce_op"] else "moves"
        if block not in ("", now):
            table.add_section()
        table.add_row(
            "" if name == last else name,
            "" if row["form"] else row["reduce_op"],
            *(str(row[key] or "") for key in ("cases", "dtypes", "algorithms")),
            number(row["max_error"]),
            number(row["tolerance"]),
            yes(row["same_bits"]),
            mark(row["ok"]),
        )
        last, block = name, now
    against = Counter(row["reference"] for row in rows)
    return _part(
        f"1. Verify: {len(rows)} cases, {rows[0]['world_size']} ranks, each made twice",
        table,
        f"Against gloo on the same input: {against['gloo']}; what gloo has not, written out: "
        f"{against['definition']};",
        f"16-bit reductions, the float32 fold in rank order, rounded once: "
        f"{against['float32 fold']}.",
        *VERIFY_NOTES,
    )


def failures(rows: Sequence[Row]) -> list[str]:
    """A line for each case of part 1 that failed."""
    lines = []
    for row in rows:
        if not row["ok"]:
            names = ("form", "collective", "dtype", "algorithm", "reduce_op", "count")
            case = " ".join(str(row[name]) for name in names if row[name] != "")
            why = row["failure"] or (
                f"max error {number(row['max_error'])}, tolerance {number(row['tolerance'])}, "
                f"ranks equal: {row['bit_equal']}, repeat equal: {row['repeat_equal']}"
            )
            lines.append(f"{case}: {why}")
    return lines


# ---------------------------------------------------------------- 2. bytes


def traffic(rows: Sequence[Row]) -> Group:
    """Part 2: a line for each call, a column for each world size; --json has every rank."""
    calls: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        name = (
            row["algorithm"] if row["dtype"] == "float32" else f"{row['algorithm']} {row['dtype']}"
        )
        calls.setdefault(row["collective"], {}).setdefault(name, []).append(row)
    worlds = sorted({row["world_size"] for row in rows})
    table = _table("call", "formula", *(f">N = {n}" for n in worlds), ">over-\nhead")
    for collective, by_name in calls.items():
        table.add_row(f"[bold]{collective}[/]")
        for name, found in by_name.items():
            table.add_row(f"  {name}", *_traffic_cells(found, worlds))
    sizes = {row["dtype"]: f"{row['total_bytes']:,} B of {row['dtype']}" for row in rows}
    return _part(
        "2. Bytes on the wire: what a rank sent, by its daemon's accounting",
        table,
        f"T, the tensor or all N parts: {', '.join(sizes.values())}.",
        "Measured at the rank that sent most; ok: every rank sent exactly what its own",
        "formula gives. K = ⌈log₂N⌉, L = ⌊log₂N⌋, P = 2^L, e = 0 if N = P, else 1.",
        "16-bit sums travel as float32 on a ring, hence 3T(N−1)/N.",
        f"Overhead in bytes, apart, N = {worlds[-1]}: frame headers, fingerprints, credit.",
    )


def _traffic_cells(rows: Sequence[Row], worlds: Sequence[int]) -> list[str]:
    most = {n: [row for row in rows if row["world_size"] == n] for n in worlds}
    return [
        rows[0]["formula"],
        *(f"{max((row['measured_bytes'] for row in most[n]), default=0):,}" for n in worlds),
        f"{max((row['overhead_bytes'] for row in most[worlds[-1]]), default=0):,}",
        mark(all(row["ok"] for row in rows)),
    ]


# ---------------------------------------------------------------- 3. timing


def timing(rows: Sequence[Row], machine: str) -> Group:
    """Part 3: a line for each algorithm, a column for each size."""
    by_algorithm: dict[str, dict[int, Row]] = {}
    for row in rows:
        by_algorithm.setdefault(row["algorithm"], {})[row["bytes"]] = row
    sizes = sorted({row["bytes"] for row in rows})
    fastest = {
        size: min(found[size]["median_us"] for found in by_algorithm.values()) for size in sizes
    }
    table = _table("algorithm", *(f">{format_size(size)}" for size in sizes))
    for name, found in by_algorithm.items():
        table.add_row(
            name,
            *(_time(found[size], found[size]["median_us"] == fastest[size]) for size in sizes),
            mark(all(row["ok"] for row in found.values())),
        )
    table.add_section()
    taken = {
        size: " and ".join(name for name, found in by_algorithm.items() if found[size]["auto"])
        for size in sizes
    }
    table.add_row("auto takes", *taken.values())
    return _part(
        f"3. Timing: all_reduce float32, {rows[0]['world_size']} ranks, µs",
        table,
        "Median of a few calls, each as long as on its slowest rank; *: the fastest.",
        f"{machine}, loopback TCP.",
        "`ringd bench` measures longer, and beside gloo.",
    )


def _time(row: Row, is_fastest: bool) -> str:
    text = f"{row['median_us']:,.0f}"
    return f"[bold]*{text}[/]" if is_fastest else text


# ---------------------------------------------------------------- 4. training


def training(row: Row) -> Group:
    """Part 4: some steps of both runs."""
    table = _table(">step", ">loss, ringd", ">loss, gloo", ">difference")
    last = row["steps"] - 1
    for i in sorted({round(k * last / (LOSSES_SHOWN - 1)) for k in range(LOSSES_SHOWN)}):
        ours, others = row["losses"][i], row["losses_gloo"][i]
        off = abs(ours - others) / max(abs(ours), abs(others), 1e-30)
        table.add_row(str(i + 1), f"{ours:.7f}", f"{others:.7f}", number(off), "")
    table.add_section()
    accuracies = (f"{row[key]:.1%}" for key in ("accuracy", "accuracy_gloo"))
    table.add_row("test accuracy", *accuracies, "", mark(row["ok"]))
    return _part(
        f"4. Training: {row['data']}, {row['parameters']:,} parameters, {row['world_size']} ranks",
        table,
        f"Largest difference in {row['steps']} steps: {row['max_relative_difference']:.1e} of the "
        f"loss, tolerance {row['tolerance']:.0e}",
        "(ringd and gloo add the float32 gradients in different orders).",
        f"Parameters equal bit by bit on all ranks: {yes(row['bit_equal'])}. "
        f"Time: {row['seconds']:.1f} s, with gloo {row['seconds_gloo']:.1f} s.",
    )


# ---------------------------------------------------------------- 5. fault


def fault(row: Row) -> Group:
    """Part 5: what each survivor saw."""
    table = _table(">rank", ">after ms", "error", "tensor")
    for survivor in row["survivors"]:
        table.add_row(
            str(survivor["rank"]),
            f"{survivor['seconds'] * 1e3:,.1f}",
            f"[bold]{survivor['error']}[/]: {escape(survivor['text'])}",
            "untouched" if survivor["untouched"] else "[bold red]CHANGED[/]",
            mark(survivor["ok"]),
        )
    return _part(
        f"5. Fault: rank {row['killed_rank']} of {row['world_size']} is killed "
        f"({row['signal']}) in all_reduce number {row['seq'] + 1}",
        table,
        f"Killed when {row['bytes_done']:,} of {row['bytes_total']:,} bytes had come in there.",
        f"Time from the kill to the exception; bound {row['bound_s']:g} s.",
    )
