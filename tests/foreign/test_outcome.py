"""The judgement on a foreign test: what ran nothing, or not everywhere, has not passed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.foreign.outcome import BAR, Outcome, account, broken, is_enough, judged

FINE = {"skipped": None, "error": ""}


def ranks(*outcomes: str) -> list[dict[str, Any]]:
    """What the ranks wrote; "other": passed with a group of another backend."""
    return [
        {
            "rank": rank,
            "outcome": "passed" if outcome == "other" else outcome,
            "reason": f"of {rank}",
            "groups": ["gloo"] if outcome == "other" else ["ringd"],
        }
        for rank, outcome in enumerate(outcomes)
    ]


@pytest.mark.parametrize(
    ("result", "told", "outcome", "reason"),
    [
        (FINE, ranks("passed", "passed", "passed"), "passed", ""),
        (FINE, [], "failed", "only 0 of 3 ranks"),
        (FINE, ranks("passed", "other", "passed"), "failed", "not all ranks made a group of ringd"),
        (FINE, ranks("passed", "passed"), "failed", "only 2 of 3 ranks"),
        (FINE, ranks("passed", "begun", "passed"), "failed", "only 2 of 3 ranks"),
        (FINE | {"error": "a\nb"}, ranks("passed", "failed", "failed"), "failed", "of 1"),
        (FINE | {"error": "a\nb"}, ranks("passed", "passed", "passed"), "failed", "b"),
        (FINE | {"skipped": "no GPU"}, ranks("skipped"), "skipped", "no GPU"),
        ({}, ranks("passed", "begun", "begun"), "hung", "ranks: 1, 2"),
    ],
)
def test_judgement(
    result: dict[str, Any], told: list[dict[str, Any]], outcome: str, reason: str
) -> None:
    found = judged(result, told, 3, "ringd")
    assert found[0] == outcome
    assert reason in found[1]


def test_the_account_of_a_failure_has_its_reason_and_both_ends_of_its_log() -> None:
    one = Outcome("T.t", "ringd", 6, 2, "failed", "RuntimeError: " + "x" * 3000, 7.5)
    began = [
        "terminate called after throwing an instance of 'c10::Error'",
        "2026-11-30T20:14:33.088Z ringd.daemon[0]: warning: epoch 1 is over: rank 1, trainer died",
    ]
    lines = ["dull"] * 50 + began + [f"line {i}" for i in range(100)]
    told = account(one, "\n".join(lines)).splitlines()
    assert told[0] == "T.t failed under ringd after 7.5 s: 2 of 6 ranks ran it to its end"
    assert told[1] == one.reason
    assert told[3:5] == began
    assert told[6:] == [f"line {i}" for i in range(60, 100)]
    assert account(one, "").endswith("there is no log")


def outcomes(backend: str, passed: int, failed: int) -> list[Outcome]:
    kinds = ["passed"] * passed + ["failed"] * failed
    return [Outcome(f"t{i}", backend, 3, 3, kind, "", 1.0) for i, kind in enumerate(kinds)]


def test_a_listed_pass_that_fails_is_not_enough() -> None:
    both = outcomes("gloo", 100, 0) + outcomes("ringd", 99, 1)
    assert is_enough(both, {"t0", "t98"})
    assert not is_enough(both, {"t0", "t99"})
    assert [one.test for one in broken(both, {"t0", "t99"})] == ["t99"]


def test_the_share_is_of_what_gloo_passes() -> None:
    assert BAR == 0.9
    assert is_enough(outcomes("gloo", 10, 90) + outcomes("ringd", 9, 91), set())
    assert not is_enough(outcomes("gloo", 100, 0) + outcomes("ringd", 89, 11), set())
