"""``python -m ringd.sim``: run seeds, or replay one."""

from __future__ import annotations

import argparse
from collections import Counter

from ringd.sim.scenario import Scenario


def main() -> None:
    """Run, and print a line per kind of fault."""
    parser = argparse.ArgumentParser(prog="python -m ringd.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many, from 0 on")
    parser.add_argument("--seed", type=int, help="replay only this one")
    args = parser.parse_args()
    seeds = [args.seed] if args.seed is not None else range(args.seeds)
    faults: Counter[str] = Counter()
    completed: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for seed in seeds:
        outcome = Scenario(seed).run()
        faults[outcome.fault] += 1
        completed[outcome.fault] += outcome.completed
        failed[outcome.fault] += outcome.failed
    for fault, runs in sorted(faults.items()):
        print(f"{fault:14} {runs:5} runs: {completed[fault]} exact results, {failed[fault]} errors")


if __name__ == "__main__":
    main()
