"""``python -m ringd.sim``: run many seeds on all cores, or replay one."""

from __future__ import annotations

import argparse
import os
import sys
import time

from ringd.sim.draw import FAULTS, scenario_of
from ringd.sim.runner import MAX_FAILURES, Row, run_seeds, table
from ringd.sim.trace import Trace


def main() -> int:
    """Run; the exit code says whether all was as it must be."""
    parser = argparse.ArgumentParser(prog="python -m ringd.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("-j", "--jobs", type=int, help="processes (default: one per core)")
    parser.add_argument("--seed", type=int, help="run only this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: show every event")
    parser.add_argument("--ranks", type=int, help="with --seed: a fixed number of ranks")
    parser.add_argument("--fault", choices=sorted(FAULTS), help="with --seed: a fixed fault")
    args = parser.parse_args()
    if args.seed is not None:
        return replay(args.seed, args.ranks, args.fault, shown=args.trace)
    if args.trace or args.ranks or args.fault:
        parser.error("--trace, --ranks and --fault need a --seed")
    jobs = args.jobs or len(os.sched_getaffinity(0))
    return run_many(range(args.first, args.first + args.seeds), jobs)


def replay(seed: int, n: int | None, fault: str | None, *, shown: bool) -> int:
    """Run one seed, and print what happened."""
    trace = Trace(keep=False, show=print if shown else None)
    scenario = scenario_of(seed, n=n, fault=fault, trace=trace)
    print(scenario.describe())
    try:
        outcome = scenario.run()
    except AssertionError as exc:
        print(f"digest {trace.digest}")
        print(f"\n{exc}", file=sys.stderr)
        return 1
    tally = outcome.tally
    print(
        f"{tally.completed} calls completed, {tally.failed} failed, {len(tally.verdicts)} "
        f"verdicts, {outcome.virtual_s:.3f} s, {outcome.steps} steps, digest {trace.digest}"
    )
    return 0


def run_many(seeds: range, jobs: int) -> int:
    """Run seeds, with progress; print failures as they come, and a table."""
    progress = Progress(len(seeds))
    rows = run_seeds(seeds, jobs, progress.tell)
    progress.end()
    print(*table(rows), sep="\n")
    cpu_s = sum(row.cpu_s for row in rows)
    print(
        f"\nseeds {seeds.start} to {seeds.start + len(rows) - 1}: {progress.failures} wrong; "
        f"{cpu_s:.0f} s of CPU time, {cpu_s / max(1, len(rows)):.2f} s a seed, "
        f"{progress.elapsed_s:.0f} s on {jobs} cores"
    )
    if progress.failures >= MAX_FAILURES:
        print(f"stopped after {progress.failures} failures", file=sys.stderr)
    return 1 if progress.failures else 0


class Progress:
    """A line that is written over on a terminal; elsewhere, a line per tenth of the way."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._begun = time.monotonic()
        self._done = 0
        self._on_terminal = sys.stderr.isatty()
        self.failures = 0

    @property
    def elapsed_s(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._begun

    def tell(self, row: Row) -> None:
        """A seed is through."""
        self._done += 1
        if row.wrong:
            self.failures += 1
            self._clear()
            print(f"WRONG {row.wrong.splitlines()[0]}", flush=True)
        tenth = max(1, self._total // 10)
        if self._on_terminal or self._done % tenth == 0:
            self._show()

    def _show(self) -> None:
        rate = self._done / max(self.elapsed_s, 1e-3)
        left_s = (self._total - self._done) / max(rate, 1e-3)
        text = f"{self._done} of {self._total} seeds, {self.failures} wrong, {left_s:.0f} s to go"
        end = "" if self._on_terminal else "\n"
        print(f"\r{text:60}" if self._on_terminal else text, end=end, file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._on_terminal:
            print(f"\r{'':60}\r", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """No more of it."""
        self._clear()


if __name__ == "__main__":
    sys.exit(main())
