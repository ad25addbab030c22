"""Many seeds, on all cores: a row per seed, a table by kind of fault."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context

from ringd.sim.draw import scenario_of

BATCH = 10
"""Seeds that a process is given at once."""
AHEAD = 4
"""Batches per process that wait."""
MAX_FAILURES = 20
"""So many, and no more seeds are begun."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one seed came to.

    Attributes:
        completed, failed: calls; partial: of the failed ones, those without a verdict.
        verdicts: different ones.
        resumed: links that a new connection took over.
        wrong: the text of the failure; "": all was as it must be.
    """

    seed: int
    kind: str
    completed: int = 0
    failed: int = 0
    partial: int = 0
    verdicts: int = 0
    resumed: int = 0
    cpu_s: float = 0.0
    wrong: str = ""


def run_seed(seed: int) -> Row:
    """Run one; never raises."""
    begun = time.process_time()
    scenario = scenario_of(seed)
    try:
        outcome = scenario.run()
    except Exception as exc:  # whatever it is, the others go on
        cpu_s = time.process_time() - begun
        return Row(seed, scenario.kind, cpu_s=cpu_s, wrong=str(exc) or repr(exc))
    tally = outcome.tally
    return Row(
        seed,
        scenario.kind,
        tally.completed,
        tally.failed,
        tally.partial,
        len(tally.verdicts),
        outcome.resumed,
        time.process_time() - begun,
    )


def run_batch(seeds: Sequence[int]) -> list[Row]:
    """Run some, one after the other."""
    return [run_seed(seed) for seed in seeds]


def run_seeds(seeds: range, processes: int, tell: Callable[[Row], None]) -> list[Row]:
    """Run all of them, unless there are too many failures.

    Args:
        processes: how many run side by side; 1 is this one.
        tell: called for each that is through, in any order.

    Returns:
        The rows, by seed.
    """
    rows: list[Row] = []
    failures = 0
    for row in _in_turn(seeds) if processes == 1 else _side_by_side(seeds, processes):
        rows.append(row)
        tell(row)
        failures += bool(row.wrong)
        if failures >= MAX_FAILURES:
            break
    return sorted(rows, key=lambda row: row.seed)


def _in_turn(seeds: range) -> Iterator[Row]:
    return map(run_seed, seeds)


def _side_by_side(seeds: range, processes: int) -> Iterator[Row]:
    batches = (seeds[i : i + BATCH] for i in range(0, len(seeds), BATCH))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        try:
            running: set[Future[list[Row]]] = set()
            while True:
                room = AHEAD * processes - len(running)
                running |= {pool.submit(run_batch, batch) for batch in islice(batches, room)}
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield from future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def table(rows: Sequence[Row]) -> list[str]:
    """Lines of text: by kind, what its runs came to."""
    head = ("fault", "runs", "wrong", "completed", "errors", "partial", "verdicts", "resumed")
    by_kind: dict[str, list[Row]] = {}
    for row in rows:
        by_kind.setdefault(row.kind, []).append(row)
    lines = [_line(head)]
    for kind, of_kind in [*sorted(by_kind.items()), ("all", list(rows))]:
        counts = (
            len(of_kind),
            sum(bool(row.wrong) for row in of_kind),
            sum(row.completed for row in of_kind),
            sum(row.failed for row in of_kind),
            sum(row.partial for row in of_kind),
            sum(row.verdicts for row in of_kind),
            sum(row.resumed for row in of_kind),
        )
        lines.append(_line((kind, *counts)))
    return lines


def _line(cells: Sequence[object]) -> str:
    first, *others = cells
    return f"{first:20}" + "".join(f"{other:>11}" for other in others)
