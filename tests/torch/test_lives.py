"""Daemons that ranks start for themselves: how they come, serve again, and end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.harness import WIDER
from tests.torch.conftest import Own
from tests.torch.programs import calls, lives


def test_d1_destroy_and_init_again_twenty_times(own: Own, tmp_path: Path) -> None:
    told = own(lives.again, 2, rounds=20, place_of=str(tmp_path))
    for epochs, daemons, fds in told:
        assert epochs == list(range(epochs[0], epochs[0] + 20))
        assert daemons == 1  # the same all the time
        assert fds < 60


@pytest.mark.slow
def test_d1_three_hundred_rounds_of_four_ranks(own: Own, tmp_path: Path) -> None:
    told = own(lives.again, 4, rounds=300, place_of=str(tmp_path), within_s=600)
    assert all(len(epochs) == 300 and daemons == 1 for epochs, daemons, _ in told)


def test_t5a_a_rank_that_does_not_come_is_named_within_the_timeout(
    own: Own, tmp_path: Path
) -> None:
    told, _ = own(lives.alone, 2, timeout_s=3.0, place_of=str(tmp_path))
    assert told["class"] == "RendezvousError"
    assert told["is_torchs"]
    assert told["fields"]["missing"] == [1]
    assert "1 of 2" in told["text"]
    assert told["after_s"] < 4.0 * WIDER


def test_d4_a_rank_that_comes_late_is_waited_for(own: Own, tmp_path: Path) -> None:
    assert own(lives.first_leaves, 2, place_of=str(tmp_path)) == [2, 2]


def test_what_was_sent_before_the_exit_arrives(own: Own) -> None:
    assert own(lives.sent_before_leaving, 2)[1]


@pytest.mark.parametrize(
    ("way", "which"),
    [
        ("SIGKILL", (0, 1, 2)),
        pytest.param("SIGKILL", (0,), marks=pytest.mark.slow),
        pytest.param("SIGTERM", (0, 1, 2), marks=pytest.mark.slow),
        pytest.param("os._exit", (0, 1, 2), marks=pytest.mark.slow),
    ],
)
def test_no_daemon_is_left_however_ranks_end(own: Own, way: str, which: tuple[int, ...]) -> None:
    assert own(lives.ended, 3, way=way, which=which) == [None] * 3  # the fixture looks for them


def test_four_ranks_with_daemons_of_their_own(own: Own) -> None:
    told = own(calls.objects, 4)
    assert told[0][0] != []
    assert all(len(everybody) == 4 for everybody, *_ in told)
