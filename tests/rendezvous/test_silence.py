"""Who has fallen silent, and when that may be said: by tables."""

from __future__ import annotations

import pytest

from ringd.rendezvous.silence import DOUBT_S, Silence

LIMIT_S = 3.0


def heard(**at: float) -> Silence:
    silence = Silence(LIMIT_S)
    for name, when in sorted(at.items(), key=lambda item: item[1]):
        silence.heard(int(name.removeprefix("r")), when)
    return silence


@pytest.mark.parametrize(
    ("at", "due", "lost", "total"),
    [
        ({"r0": 10.0}, 13.0, [], True),
        ({"r0": 10.0, "r1": 11.0}, 14.0, [], True),
        ({"r0": 10.0, "r1": 11.5}, 13.0, [0], False),
        ({"r0": 10.0, "r1": 11.4, "r2": 12.5}, 13.0, [0], False),
        ({"r0": 10.0, "r1": 10.0, "r2": 11.5}, 13.0, [0, 1], False),
    ],
)
def test_a_daemon_is_lost_when_others_were_heard_long_after_it(
    at: dict[str, float], due: float, lost: list[int], total: bool
) -> None:
    silence = heard(**at)
    assert silence.next_deadline() == due
    assert silence.lost(due - 0.001) == []
    assert not silence.total(due - 0.001)
    assert silence.lost(due) == lost
    assert silence.total(due) == total


@pytest.mark.parametrize(("gap_s", "doubt"), [(1.5, False), (1.51, True), (60.0, True)])
def test_a_gap_makes_us_doubt_for_a_while(gap_s: float, doubt: bool) -> None:
    silence = heard(r0=10.0, r1=10.5)
    assert not silence.in_doubt(10.5)
    now = 10.5 + gap_s
    silence.heard(1, now)
    assert silence.in_doubt(now) == doubt
    silence.heard(0, now + DOUBT_S - 0.001)
    assert silence.in_doubt(now + DOUBT_S - 0.001) == doubt
    silence.heard(0, now + DOUBT_S)
    assert not silence.in_doubt(now + DOUBT_S)


def test_while_nobody_is_here_nobody_is_missed() -> None:
    silence = Silence(LIMIT_S)
    assert silence.next_deadline() is None
    assert not silence.total(1e6)
    silence.heard(0, 10.0)
    silence.gone(0)
    silence.heard(1, 100.0)
    assert not silence.in_doubt(100.0)


def test_what_piled_up_is_read_before_anybody_is_called_silent() -> None:
    silence = heard(r0=10.0, r1=10.5)
    silence.heard(0, 14.0)  # of rank 1 nothing has been read yet
    assert silence.next_deadline() == 14.0 + DOUBT_S
    assert silence.lost(14.0 + DOUBT_S - 0.001) == []
    assert silence.lost(14.0 + DOUBT_S) == [1]
    assert not silence.total(14.0 + DOUBT_S)
