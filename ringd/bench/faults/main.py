"""The driver of ``ringd bench --faults``: rounds of each kind, each rank the victim in turn."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ringd.bench.faults.figures import Tally
from ringd.bench.faults.group import Group, hosts, until
from ringd.bench.faults.kinds import KINDS, Answer, Kind
from ringd.bench.faults.network import Network
from ringd.bench.faults.table import print_rows
from ringd.bench.report import report
from ringd.bench.table import progress
from ringd.errors import UnsupportedPlatformError

COUNT = 1 << 20
"""Elements of float32: 4 MiB, so that most of the time a call is under way."""
FIRST_CALLS = 3
"""Calls that are complete before a fault strikes."""
SHOWN_ODD = 5


def run(
    kinds: Sequence[str], *, world_sizes: Sequence[int], rounds: int, json_path: Path | None
) -> int:
    """Measure, print the table, write JSON.

    Returns:
        0, or 1 if a survivor did not end as it should, or named somebody else.

    Raises:
        RingdError: something did not start, or did not go on.
    """
    tallies: list[Tally] = []
    with progress(rounds * len(kinds) * len(world_sizes)) as step:
        for n in world_sizes:
            chosen = [KINDS[name] for name in kinds]
            for own_network in (False, True):
                found = [kind for kind in chosen if kind.own_network is own_network]
                tallies += _measure(found, n, rounds, own_network, step)
    rows = [tally.row() for tally in tallies]
    machine = report(json_path, rows, "faults")["machine"]
    if rows:
        print_rows(rows, machine)
    for tally in tallies:
        for text in tally.odd[:SHOWN_ODD]:
            print(f"{tally.kind.name}, n={tally.n}, {text}", file=sys.stderr)
    return 0 if all(tally.ok for tally in tallies) else 1


def _measure(
    kinds: Sequence[Kind], n: int, rounds: int, own_network: bool, step: Any
) -> Iterator[Tally]:
    """All rounds of some kinds, on one group."""
    if not kinds:
        return
    with contextlib.ExitStack() as stack:
        try:
            network = stack.enter_context(Network(hosts(n))) if own_network else None
        except UnsupportedPlatformError as exc:
            names = ", ".join(kind.name for kind in kinds)
            print(f"ringd bench: {names} is left out: {exc}", file=sys.stderr)
            return
        group = stack.enter_context(Group(n, network))
        for kind in kinds:
            tally = Tally(kind, n)
            for number in range(rounds):
                victim = number % n
                event_at, answers = _round(group, kind, victim)
                tally.add(victim, event_at, answers)
                step(f"{kind.name} n={n}")
                group.restore()
            yield tally


def _round(group: Group, kind: Kind, victim: int) -> tuple[float, dict[int, Answer]]:
    """The victim is struck in mid-operation; when, and what the others said."""
    group.tell("work", count=COUNT, timeout_s=kind.timeout_s)
    until(lambda: _in_mid_operation(group, victim), "a call is under way")
    event_at = kind.strike(group, victim)
    others = [rank for rank in range(group.n) if rank != victim]
    answers = {rank: group.workers[rank].hear() for rank in others}
    kind.undo(group, victim)
    worker = group.workers[victim]
    if worker.alive and kind.name != "raise":  # that answer was when it raised
        worker.hear()
    return event_at, answers


def _in_mid_operation(group: Group, victim: int) -> bool:
    """Whether the victim's daemon sees a call on its way, some of whose bytes have come."""
    state = group.status(victim)
    under_way = any(0 < op["bytes_done"] < op["bytes_total"] for op in state["operations"])
    return state["completed"] >= FIRST_CALLS and under_way
