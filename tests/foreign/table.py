"""The page docs/torch-foreign.md: what became of torch's own tests."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import torch

from tests.foreign.outcome import BAR, Outcome, passed_by_both

HEAD = """# torch's own tests

`make foreign` wrote this page on {date}: torch {torch}, Python {python}, {cores} cores.

torch's wheel ships tests of process groups in `torch.testing._internal.distributed`: those of
`distributed_test`, and of the tests of RPC those that make a process group. They ran as they are,
under ringd and under gloo, and with what they expect of gloo, events of the profiler included;
[tests/foreign/suites.py](../tests/foreign/suites.py) says how. A test counts as passed only if
every rank ran it to its end. The other modules there have base classes, and no tests.

| | tests | executed, in how many ranks | passed | failed | skipped by torch |
|---|---|---|---|---|---|
"""


def page(outcomes: Sequence[Outcome], reasons: Mapping[str, str]) -> str:
    """All of it.

    Args:
        outcomes: of both backends.
        reasons: why tests fail under ringd, by name.
    """
    by = {b: {o.test: o for o in outcomes if o.backend == b} for b in ("gloo", "ringd")}
    text = HEAD.format(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        torch=torch.__version__,
        python=platform.python_version(),
        cores=os.cpu_count(),
    )
    text += "".join(_counts(backend, list(tests.values())) for backend, tests in by.items())
    both, gloo = passed_by_both(outcomes)
    text += f"\nringd passes {both} of the {gloo} tests that gloo passes here"
    text += f": {both / gloo:.1%} (wanted: {BAR:.0%}).\n" if gloo else ".\n"
    text += "\n## Failed\n\n| test | gloo | ringd | why |\n|---|---|---|---|\n"
    for test in by["gloo"]:
        pair = [by[backend][test] for backend in ("gloo", "ringd")]
        if any(one.outcome in ("failed", "hung") for one in pair):
            words = " | ".join(one.outcome for one in pair)
            text += f"| {test} | {words} | {_why(test, pair, reasons)} |\n"
    text += "\n## Passed by both\n\n| test | ranks | gloo | ringd |\n|---|---|---|---|\n"
    for test, one in by["gloo"].items():
        if one.outcome == by["ringd"][test].outcome == "passed":
            text += f"| {test} | {one.ranks} | {one.seconds} s | {by['ringd'][test].seconds} s |\n"
    text += "\nTimes are of whole tests, two at a time, start and end of all processes included.\n"
    text += "\n## Skipped by torch\n\n| tests | why |\n|---|---|\n"
    skips = Counter(o.reason for o in by["gloo"].values() if o.outcome == "skipped")
    text += "".join(f"| {n} | {_cell(reason)} |\n" for reason, n in skips.most_common())
    return text


def _counts(backend: str, outcomes: Sequence[Outcome]) -> str:
    kinds = Counter(o.outcome for o in outcomes)
    executed = [o for o in outcomes if o.executed]
    return (
        f"| {backend} | {len(outcomes)} | {len(executed)} in {sum(o.executed for o in executed)} "
        f"| {kinds['passed']} | {kinds['failed'] + kinds['hung']} | {kinds['skipped']} |\n"
    )


def _why(test: str, pair: Sequence[Outcome], reasons: Mapping[str, str]) -> str:
    if test in reasons:
        return _cell(reasons[test])
    return "; ".join(_cell(f"{one.backend}: {one.reason[:100]}") for one in pair if one.reason)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
