"""The tables of README.md and docs/bench.md, from what ``ringd bench --json`` wrote.

python -m ringd.bench.markdown bench.json torch.json faults.json startup.json stages.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Report = dict[str, Any]
Row = dict[str, Any]
Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Headings, and rows of as many cells."""
NUMERALS = {2: "two", 3: "three", 4: "four"}
UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def tables(report: Report) -> str:
    """What a run was taken on, and its tables, in Markdown.

    Args:
        report: see :func:`ringd.bench.report.report`.
    """
    if report.get("torch"):
        found = [_torch(report["torch"])]
    elif report.get("faults"):
        found = [_faults(report["faults"])]
    elif report.get("startup"):
        found = [_startup(report["startup"])]
    elif report.get("stages"):
        found = [_stages(report["stages"])]
    else:
        found = list(_operations(report["rows"], report.get("lab")))
    return "\n\n".join([_taken_on(report), *map(_written, found)]) + "\n"


def _taken_on(report: Report) -> str:
    machine, versions = report["machine"], report["versions"]
    kernel = machine["kernel"].partition("-")[0]
    return (
        f"On {machine['cpu']}, {machine['cores']} cores, Linux {kernel}, "
        f"{machine['congestion_control']}, Python {versions['python']}, torch {versions['torch']}:"
    )


def _written(table: Table) -> str:
    headings, rows = table
    return "\n".join([_line(headings), f"|{'---|' * len(headings)}", *map(_line, rows)])


def _line(cells: Sequence[str]) -> str:
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"


# ---------------------------------------------------------------- operations


def _operations(rows: Sequence[Row], lab: dict[str, Any] | None) -> Iterator[Table]:
    """A table for each operation and dtype."""
    kinds = dict.fromkeys((row["op"], row["dtype"]) for row in rows)
    for op, dtype in kinds:
        ours = [row for row in rows if (row["op"], row["dtype"]) == (op, dtype)]
        yield _on_hosts(ours, lab) if lab else _on_loopback(ours)


def _on_loopback(rows: Sequence[Row]) -> Table:
    pair = "min / median µs"
    headings = (
        "ranks", "size", f"gloo {pair}", f"ringd {pair}", "ratio min / median",
        f"ringd, `comm.empty`, {pair}", "ratio min / median",
    )  # fmt: skip
    lines = []
    for n, size_bytes in dict.fromkeys((row["n"], row["bytes"]) for row in rows):
        here = [row for row in rows if (row["n"], row["bytes"]) == (n, size_bytes)]
        gloo, ringd = _one(here, "gloo"), _one(here, "ringd")
        arena = _one(here, "ringd", "arena")
        first = (str(n), _size(size_bytes), _times(gloo))
        lines.append((*first, _times(ringd), _ratios(ringd), _times(arena), _ratios(arena)))
    return headings, lines


def _on_hosts(rows: Sequence[Row], lab: dict[str, Any]) -> Table:
    headings = (
        "lab", "size", "gloo median µs, of link", "ringd median µs, of link", "ratio min / median",
    )  # fmt: skip
    lines = []
    for size_bytes in dict.fromkeys(row["bytes"] for row in rows):
        here = [row for row in rows if row["bytes"] == size_bytes]
        gloo, ringd = _one(here, "gloo"), _one(here, "ringd")
        lines.append((_lab(lab), _size(size_bytes), _share(gloo), _share(ringd), _ratios(ringd)))
    return headings, lines


def _one(rows: Sequence[Row], impl: str, memory: str = "ordinary") -> Row | None:
    return next((r for r in rows if (r["impl"], r["memory"]) == (impl, memory)), None)


def _times(row: Row | None) -> str:
    return "" if row is None else f"{row['min_us']:,.0f} / {row['median_us']:,.0f}"


def _ratios(row: Row | None) -> str:
    if row is None or row["ratio_min"] is None:
        return ""
    return f"{row['ratio_min']:.2f} / {row['ratio_median']:.2f}"


def _share(row: Row | None) -> str:
    """The median, and how much of a cable it filled, where that is 5 % or more."""
    if row is None:
        return ""
    share = row["of_link"] or 0.0
    return f"{row['median_us']:,.0f}" + (f", {100 * share:.0f} %" if share >= 0.05 else "")


def _size(size_bytes: int) -> str:
    for factor, unit in UNITS:
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes} bytes" if size_bytes else ""


def _lab(lab: dict[str, Any]) -> str:
    """As ``--lab`` took it."""
    rate = lab["rate_bps"]
    factor, unit = (10**9, "gbit") if rate % 10**9 == 0 else (10**6, "mbit")
    words = [f"{lab['hosts']}x{rate / factor:g}{unit}" if rate else str(lab["hosts"])]
    weather = {key: lab[f"{key}_s"] * 1e3 for key in ("delay", "jitter")}
    words += [f"{key}={ms:g}ms" for key, ms in weather.items() if ms]
    words += [f"loss={100 * lab['loss']:g}%"] if lab["loss"] else []
    return ",".join(words)


# ---------------------------------------------------------------- the other kinds


def _torch(rows: Sequence[Row]) -> Table:
    sizes = dict.fromkeys(row["n"] for row in rows)
    ranks = ", ".join(NUMERALS.get(n, str(n)) for n in sizes)
    headings = (
        f"`ringd bench --torch`, {ranks} ranks", "gloo min / median", "ringd min / median",
        "ratio min / median",
    )  # fmt: skip
    lines = []
    for n, measure in dict.fromkeys((row["n"], row["measure"]) for row in rows):
        here = [row for row in rows if (row["n"], row["measure"]) == (n, measure)]
        gloo = _one(here, "gloo")
        if measure == "all_reduce":
            ringd, what = _one(here, "ringd"), f"`dist.all_reduce` of {_size(here[0]['bytes'])}"
            lines.append((what, _spelt(gloo), _spelt(ringd), _ratios(ringd)))
            continue
        adopted, copied = _one(here, "ringd", "adopted"), _one(here, "ringd", "copied")
        what = f"DDP step, {here[0]['bytes'] / 4e6:.0f} million parameters"
        lines.append((what, _spelt(gloo), _spelt(adopted), _ratios(adopted)))
        again = "the same, `RINGD_ADOPT_STORAGES=0`"
        lines.append((again, "", _spelt(copied), _ratios(copied)))
    return headings, lines


def _spelt(row: Row | None) -> str:
    """With its unit: milliseconds from ten of them on."""
    if row is None:
        return ""
    if row["min_us"] < 10_000:
        return f"{_times(row)} µs"
    return f"{row['min_us'] / 1e3:,.1f} / {row['median_us'] / 1e3:,.1f} ms"


def _faults(rows: Sequence[Row]) -> Table:
    headings = ("kind", "min ms", "median ms", "max ms", "promised ms")
    keys = ("min_ms", "median_ms", "max_ms")
    lines = []
    for row in rows:
        promised = "" if row["promised_ms"] is None else f"{row['promised_ms']:,.0f}"
        lines.append((row["kind"], *(f"{row[key]:,.1f}" for key in keys), promised))
    return headings, lines


def _startup(rows: Sequence[Row]) -> Table:
    headings = ("n", "backend", "min s", "median s", "max s", "processor s, min", "median")
    keys = ("min_s", "median_s", "max_s", "cpu_min_s", "cpu_median_s")
    lines = [(str(row["n"]), row["impl"], *(f"{row[key]:.2f}" for key in keys)) for row in rows]
    return headings, lines


def _stages(rows: Sequence[Row]) -> Table:
    """A column for each call, a line for each stage: median, and its share of the whole."""
    headings = ["stage, median µs, share"]
    lines = [[stage["stage"]] for stage in rows[0]["stages"]]
    whole, untraced = ["whole call"], ["untraced"]
    for row in rows:
        headings.append(" ".join(filter(None, (row["op"], _size(row["bytes"]), f"n = {row['n']}"))))
        for line, stage in zip(lines, row["stages"], strict=True):
            line.append(f"{stage['median_us']:,.1f}, {100 * stage['share']:.0f} %")
        whole.append(f"{row['median_us']:,.1f}")
        untraced.append(f"{row['untraced_median_us']:,.1f}")
    return headings, [*lines, whole, untraced]


if __name__ == "__main__":
    for name in sys.argv[1:] or sys.exit("usage: python -m ringd.bench.markdown FILE.json ..."):
        print(tables(json.loads(Path(name).read_text())))
