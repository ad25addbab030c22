"""Errors as a script sees them: torch's class and ours, by every way of waiting."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.harness import WIDER
from tests.torch.conftest import Both, Own
from tests.torch.programs import failures

ONLY_OURS = ("ringd",)


def test_m5_a_mismatch_raises_by_every_way_of_waiting_and_the_group_stands(both: Both) -> None:
    for seen, kept, after in both(failures.mismatch, 3, ONLY_OURS)["ringd"]:
        for way in ("sync", "wait", "again"):
            told = seen[way]
            assert told["class"] == "CollectiveMismatchError"
            assert told["is_torchs"]
            assert "RuntimeError" in told["kinds"]
            assert "(10,)" in told["text"]
            assert "(12,)" in told["text"]
            assert told["retry"] == "same_epoch"
            assert told["fields"]["seq"] >= 0
        assert seen["state"] == {"over": True, "well": False}
        assert seen["exception"]["class"] == "CollectiveMismatchError"
        for way in ("future", "chained"):
            assert "(10,)" in seen[way]["text"], seen[way]
        assert kept
        assert after.tolist() == [3.0] * 3


def test_a_call_refused_on_one_rank_raises_on_all_and_the_next_call_works(both: Both) -> None:
    told = both(failures.refused, 3, ONLY_OURS)["ringd"]
    assert [seen["class"] for seen, _ in told] == [
        "CollectiveMismatchError", "InvalidTensorError", "CollectiveMismatchError",
    ]  # fmt: skip
    assert "ValueError" in told[1][0]["kinds"]
    assert all(seen["is_torchs"] for seen, _ in told)
    assert all(after.tolist() == [3.0] * 3 for _, after in told)


def test_without_room_an_asynchronous_call_fails_by_its_work_and_is_void_on_all_ranks(
    own: Own,
) -> None:
    told = own(failures.without_room, 2)
    for rank, (seen, misuse, after) in enumerate(told):
        for way in seen[:-1]:
            assert way["class"] == ("ArenaFullError" if rank else "CollectiveMismatchError")
            assert way["is_torchs"]
        for way in seen:
            assert "has no room" in way["text"]
            assert "connect()" not in way["text"]
        assert misuse["class"] == "InvalidTensorError"
        assert after.tolist() == [2.0] * failures.COUNT


def test_late_ranks_are_named_by_barrier_and_by_monitored_barrier(both: Both) -> None:
    for rank, (seen, after) in enumerate(both(failures.late, 3, ONLY_OURS, which=1)["ringd"]):
        if rank != 1:
            for way, limit_s in (("barrier", 1.5), ("monitored", 1.0)):
                told = seen[way]
                assert told["class"] == "CollectiveTimeoutError"
                assert told["fields"]["late_ranks"] == [1]
                # It receives meanwhile, from ranks that wait for it.
                assert told["fields"]["case"] == "deadlock"
                assert 1 in told["fields"]["culprits"]
                assert limit_s - 0.1 < told["after_s"] < limit_s + 0.25 * WIDER
        else:
            classes = [told["class"] for told in seen["entered late"]]
            assert classes == ["CollectiveTimeoutError"] * 2
        assert seen["wait"]["class"] == "CollectiveTimeoutError"
        assert "Wait again" in seen["wait"]["text"]
        assert after.tolist() == [3.0]


def test_what_cannot_work_says_so(both: Both) -> None:
    for seen in both(failures.unsupported, 2, ONLY_OURS)["ringd"]:
        assert "new_group" in seen["split"]["text"]
        assert seen["monitored"]["class"] == "ValueError"
        assert "ringd_client.torch.Options" in seen["options"]["text"]


def test_a_killed_rank_is_named_to_all_survivors_by_every_way_of_waiting(own: Own) -> None:
    told = own(failures.killed, 3, which=1)
    assert told[1] is None
    for rank in (0, 2):
        seen, after = told[rank]
        for way in seen:
            assert "rank 1" in way["text"], way
        for way in (seen[0], *seen[2:]):
            assert way["class"] == "PeerLostError"
            assert way["is_torchs"]
            assert way["fields"]["rank"] == 1
            assert way["after_s"] < 1.0 * WIDER
        assert after.tolist() == [2.0]


@pytest.mark.parametrize("which", [0, 2])
def test_survivors_destroy_and_init_again_with_fewer_ranks(
    own: Own, tmp_path: Path, which: int
) -> None:
    told = own(failures.fewer, 3, which=which, place_of=str(tmp_path))
    for rank in {0, 1, 2} - {which}:
        seen, after = told[rank]
        assert seen["class"] == "PeerLostError"
        assert f"rank {which} is lost" in seen["text"]
        assert "destroy_process_group() and init_process_group() again" in seen["text"]
        assert "reform()" not in seen["text"]
        assert after.tolist() == [2.0]


def test_t5b_a_member_that_left_before_its_first_call_is_named(own: Own) -> None:
    told = own(failures.exits_early, 2)
    # Its destroy_process_group frees the group first and says goodbye then.
    assert told[1]["class"] in ("GroupFreedError", "PeerLostError")
    assert told[1]["fields"]["rank"] == 0
    assert told[1]["after_s"] < 3.0 * WIDER
