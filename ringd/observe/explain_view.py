"""``ringd explain``: a report of the flight recorders as tables, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ringd.observe.dumps import read
from ringd.observe.explain import explain
from ringd.observe.explain_report import MISMATCH, Entry, Parting, Report
from ringd.observe.explain_text import describe, paragraph, seconds
from ringd.observe.outcomes import DONE, IN_FLIGHT
from ringd.observe.records import Op, RankDump

SHOWN = 10
"""Partings and messages that are listed; the JSON has all that are kept."""


def show(paths: Sequence[Path], *, as_json: bool) -> None:
    """Print where the dumps in these files part.

    Raises:
        InvalidArgumentError: a file is no dump, or there is none.
    """
    report = explain(read(paths))
    console = Console()
    if as_json:
        console.out(json.dumps(as_data(report), indent=1), highlight=False)
        return
    console.print(_ranks(report))
    if report.headline is not None:
        console.print(_parting(report.headline))
    for line in _more(report):
        console.print(line, highlight=False, markup=False)
    console.print()
    console.print(paragraph(report), highlight=False, markup=False)


def as_data(report: Report) -> dict[str, Any]:
    """The report for programs: of each dump its head, and the paragraph as "text"."""
    heads = [
        {
            "rank": dump.rank,
            "host": dump.host,
            "trainer_pid": dump.trainer_pid,
            "epoch": dump.epoch,
            "taken_at": dump.taken_at,
            "broken": dump.broken,
        }
        for dump in report.dumps
    ]
    slim = asdict(replace(report, dumps=()))  # the operations themselves are in the files
    return {**slim, "dumps": heads, "text": paragraph(report)}


def _ranks(report: Report) -> Table:
    table = Table(title=f"job {escape(report.job_id)}, epoch {report.epoch}")
    for name in ("rank", "host", "trainer", "dumped at", "in flight", "last operation", "ago"):
        table.add_column(name, overflow="fold")
    for dump in report.dumps:
        own = [op for op in dump.operations if op.epoch == report.epoch]
        last = max(own, key=lambda op: op.entered_at, default=None)
        table.add_row(
            str(dump.rank),
            escape(dump.host),
            "-" if dump.trainer_pid is None else str(dump.trainer_pid),
            datetime.fromtimestamp(dump.taken_at, UTC).strftime("%H:%M:%SZ"),
            str(sum(op.state == IN_FLIGHT for op in own)),
            "-" if last is None else escape(f"{_place(last)} {last.op}"),
            "-" if last is None else _ago(dump, last),
        )
    for rank in report.missing:
        table.add_row(str(rank), "no dump", *["-"] * 5)
    return table


def _place(op: Op) -> str:
    place = f"#{op.seq}" if op.seq is not None else f"tag {op.tag}"
    return f"{place} of group {op.group}" if op.group else place


def _ago(dump: RankDump, op: Op) -> str:
    return seconds(dump.taken_at - (op.ended_at or op.entered_at))


def _parting(parting: Parting) -> Table:
    """Where calls differ they are shown; else how far each rank came."""
    where = f" of group {parting.group}" if parting.group else ""
    table = Table(title=f"operation {parting.seq}{where}: {parting.kind}")
    differ = parting.kind == MISMATCH
    how_far = ("lasted", "waits on", "bytes", "error")
    for name in ("rank", "state", "entered", *(("call",) if differ else how_far)):
        table.add_column(name, overflow="fold")
    for entry in parting.entries:
        table.add_row(str(entry.rank), entry.state, *_cells(entry, parting.began_at, differ))
    return table


def _cells(entry: Entry, began_at: float, differ: bool) -> list[str]:
    op = entry.op
    if op is None:
        return ["-"] * (2 if differ else 5)
    entered = f"+{seconds(op.entered_at - began_at)}"
    if differ:
        return [entered, escape(op.call)]
    return [
        entered,
        "-" if op.ended_at is None else seconds(op.ended_at - op.entered_at),
        ", ".join(map(str, op.waiting_on)) or "-",
        f"{op.bytes_done:,} of {op.bytes_total:,}",
        escape(op.error or "-"),
    ]


def _more(report: Report) -> list[str]:
    """The other partings and the messages, a line each."""
    lines = []
    for parting in report.partings:
        if parting is not report.headline:
            ranks = [entry.rank for entry in parting.entries if entry.state != DONE]
            group = f" of group {parting.group}" if parting.group else ""
            overcome = ", overcome" if parting.overcome else ""
            lines.append(f"operation {parting.seq}{group}: {parting.kind}, ranks {ranks}{overcome}")
    cut = lines[:SHOWN] + ([f"... and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else [])
    messages = [describe(message) for message in report.messages[:SHOWN]]
    if len(report.messages) > SHOWN:
        messages.append(f"... and {len(report.messages) - SHOWN} more messages")
    return cut + messages
