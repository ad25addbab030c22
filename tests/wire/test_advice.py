"""What errors advise when an epoch is over: scripts for torch.distributed have other calls."""

from __future__ import annotations

import pytest

from ringd.engine import failures
from ringd.errors import MembershipChangedError
from ringd.wire import advice


@pytest.mark.parametrize("ours", [advice.after_loss(3), advice.REFORM, advice.REFORM_TOO])
def test_a_torch_script_is_told_of_no_call_that_it_has_not(ours: str) -> None:
    text = advice.for_torch(f"rank 3 is gone. {ours} (So it is.)", {"rank": 3})
    assert "reform()" not in text
    assert "destroy_process_group() and init_process_group() again" in text
    assert text.startswith("rank 3 is gone. End this process")
    assert text.endswith(" (So it is.)")


def test_the_launcher_is_called_by_its_name() -> None:
    told = advice.for_torch(advice.REFORM, {}, "ringd run")
    assert "the launcher starts its rank anew (ringd run --max-restarts N" in told
    assert "torchrun" not in told
    assert "(torchrun --max-restarts N)" in advice.for_torch(advice.REFORM, {})


def test_the_engines_texts_are_those_that_are_replaced() -> None:
    lost = failures.peer_lost(2, case="trainer died", detail="signal 9", epoch=1)
    assert "Call reform() to go on without rank 2" in str(lost)
    over = failures.end_from_peer(1, MembershipChangedError("over").to_wire())
    for error in (lost, over):
        assert "reform()" not in advice.for_torch(error.message, error.fields)


def test_other_texts_stay_as_they_are() -> None:
    assert advice.for_torch("rank 1 never entered it.", {}) == "rank 1 never entered it."
