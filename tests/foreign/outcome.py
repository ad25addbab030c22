"""What became of a test, judged by what unittest says and by what its ranks say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BAR = 0.9
"""Of the tests that gloo passes, ringd is to pass at least so many."""


_SAYS = re.compile(
    r"terminate called|  what\(\)|Fatal |\S+ ringd\.\w+(\[\d+\])?: (warning|error): "
)
_FIRST_LINES, _LAST_LINES = 10, 40


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a test.

    Attributes:
        ranks: how many it had.
        executed: in how many ranks its body ran to its end.
        outcome: passed, failed, skipped (by torch) or hung.
        reason: why not passed, in one line.
        seconds: from its first process's start to its last one's end.
    """

    test: str
    backend: str
    ranks: int
    executed: int
    outcome: str
    reason: str
    seconds: float


def judged(
    result: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]], size: int, backend: str
) -> tuple[str, str]:
    """The outcome and its reason.

    Args:
        result: of unittest: ``skipped``, a reason or None; ``error``, a text.
        ranks: what each that began the test wrote: ``rank``, ``outcome``, ``reason``, and
            ``groups``, the backends of the groups that it made.
        size: how many ranks there were to be.
        backend: under test.
    """
    if not result:
        begun = [str(rank["rank"]) for rank in ranks if rank["outcome"] == "begun"]
        return "hung", f"over its limit, still running in ranks: {', '.join(begun) or 'none'}"
    if result["error"]:
        failed = [rank["reason"] for rank in ranks if rank["outcome"] == "failed"]
        return "failed", failed[0] if failed else result["error"].strip().splitlines()[-1]
    if result["skipped"] is not None:
        return "skipped", result["skipped"]
    executed = executed_in(ranks)
    if executed < size:
        return "failed", f"called passed, but only {executed} of {size} ranks ran it to its end"
    if not all(backend in rank["groups"] for rank in ranks):
        return "failed", f"called passed, but not all ranks made a group of {backend}"
    return "passed", ""


def executed_in(ranks: Sequence[Mapping[str, Any]]) -> int:
    """How many ranks ran the test to its end."""
    return sum(rank["outcome"] == "passed" for rank in ranks)


def account(one: Outcome, log: str) -> str:
    """Why a test did not pass, for who has nothing but this text: a log of CI.

    Args:
        log: what its processes wrote, and what unittest says at the end. How it ended is at its
            end; what began it (a process that aborted, a daemon's warning) can be far above.
    """
    lines = log.rstrip().splitlines()
    first = [line for line in lines[:-_LAST_LINES] if _SAYS.match(line)][:_FIRST_LINES]
    ran = f"{one.executed} of {one.ranks} ranks ran it to its end"
    parts = [
        f"{one.test} {one.outcome} under {one.backend} after {one.seconds} s: {ran}",
        one.reason,
        *(["its log, first of all:", *first] if first else []),
        "its log, at the end:" if lines else "there is no log",
        *lines[-_LAST_LINES:],
    ]
    return "\n".join(parts)


def passed_by_both(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """How many of the tests that gloo passed ringd passed too; how many those are."""
    passed = {(one.backend, one.test) for one in outcomes if one.outcome == "passed"}
    gloo = [test for backend, test in passed if backend == "gloo"]
    return sum(("ringd", test) in passed for test in gloo), len(gloo)


def is_enough(outcomes: Sequence[Outcome], expected: set[str]) -> bool:
    """Whether ringd passed all that it was to pass, and its share of what gloo passed."""
    both, gloo = passed_by_both(outcomes)
    return not broken(outcomes, expected) and both >= BAR * gloo


def broken(outcomes: Sequence[Outcome], expected: set[str]) -> list[Outcome]:
    """What ringd was to pass and did not."""
    ours = [one for one in outcomes if one.backend == "ringd"]
    return [one for one in ours if one.test in expected and one.outcome != "passed"]
