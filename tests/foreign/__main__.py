"""``python -m tests.foreign``: torch's own tests of process groups, under ringd and gloo.

Exit code 1: a test that expected.toml lists as passed was not, or ringd passed less than its share
of what gloo passed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import tomllib
from pathlib import Path

from tests.foreign import running, suites, table
from tests.foreign.outcome import Outcome, broken, is_enough, passed_by_both

HERE = Path(__file__).parent
BACKENDS = ("gloo", "ringd")


def main() -> int:
    """Run what the arguments say; write what became of it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and leave nothing running
    arguments = _arguments()
    expected = tomllib.loads((HERE / "expected.toml").read_text())
    backends = arguments.backend or list(BACKENDS)
    tests = [test for test in suites.cases() if not arguments.tests or test in arguments.tests]
    wanted = [(test, backend) for test in tests for backend in backends]
    arguments.results.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for one in running.run_all(wanted, arguments.jobs, arguments.limit, arguments.results):
        outcomes.append(one)
        print(f"[{len(outcomes)}/{len(wanted)}] {_line(one)}", flush=True)
    told = [dataclasses.asdict(one) for one in outcomes]
    (arguments.results / "outcomes.json").write_text(json.dumps(told, indent=1))
    if arguments.page is not None and not arguments.tests and len(backends) == 2:
        why = {test: group["why"] for group in expected["failed"] for test in group["tests"]}
        arguments.page.write_text(table.page(outcomes, why))
    return _verdict(outcomes, set(expected["passed"]))


def _verdict(outcomes: list[Outcome], expected: set[str]) -> int:
    """Say what is not as expected; the exit code."""
    for one in broken(outcomes, expected):
        print(f"was to pass: {_line(one)}")
    for one in outcomes:
        if one.backend == "ringd" and one.outcome == "passed" and one.test not in expected:
            print(f"passes, and is not in expected.toml: {one.test}")
    both, gloo = passed_by_both(outcomes)
    print(f"ringd passes {both} of the {gloo} tests that gloo passes")
    return 0 if is_enough(outcomes, expected) else 1


def _line(one: Outcome) -> str:
    text = f"{one.outcome:7} {one.backend:5} {one.test}: {one.executed} of {one.ranks} ranks"
    return f"{text}, {one.seconds} s {one.reason[:200]}".rstrip()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.foreign", description=__doc__)
    parser.add_argument("tests", nargs="*", help="which; default: all")
    parser.add_argument("--backend", action="append", choices=BACKENDS, help="default: both")
    parser.add_argument("--jobs", type=int, default=2, help="how many tests at a time")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each test")
    parser.add_argument("--page", type=Path, help="where to write the page, if all tests ran")
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("build/foreign"),
        help="a folder for outcomes.json, and for what tests that failed wrote",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
