"""Groups of some ranks: members and strangers, several at work at once, and what they leave."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.processes.harness import WIDER, Daemons, until
from tests.processes.inventory import inventory
from tests.processes.programs import calls, groups

Standing = Callable[[int], Daemons]
MB = 1_000_000
LARGE = 1_000_000


@pytest.mark.parametrize("order", [[1, 3], [3, 1]])
def test_g1_members_agree_whatever_their_order_and_strangers_do_not_wait(
    standing: Standing, order: list[int]
) -> None:
    group = standing(4)
    # Strangers first: they are answered before any member has called.
    for rank in (0, 2):
        told = group.trainer(rank).do(groups.enter, ranks=order)
        assert told["error"] is None
        assert told["value"] is None
    group.start(groups.enter, but=(0, 2), ranks=order)
    places = [told["value"] for told in group.results(but=(0, 2))]
    assert [place["rank"] for place in places] == [0, 1]
    assert [place["ranks"] for place in places] == [[1, 3]] * 2
    assert places[0]["number"] == places[1]["number"] > 0

    group.start(groups.members_of_two, but=(0, 2))
    for member, told in zip((1, 3), group.results(but=(0, 2)), strict=True):
        of_three = [30.0, 31.0, 32.0, 33.0]
        assert told["cast"] == told["again"] == of_three
        assert told["scattered"] == {"for": member}
        of_one = [10.0, 11.0, 12.0, 13.0]
        assert told["gathered"] == ([of_one, of_three] if member == 1 else None)
        for call in told["wrong"]:
            assert call["error"] == "InvalidArgumentError", call
            assert "ValueError" in call["is"]
            assert "0 to 1" in call["text"]
        assert told["next"]["value"] == [40.0, 42.0, 44.0, 46.0]


def test_split_orders_by_key_and_rank_and_none_joins_nothing(standing: Standing) -> None:
    colors: list[int | None] = [7, -1, 7, None, 7]
    results = standing(5).do(groups.split, colors=colors, keys=[1, 0, -5, 0, 1])
    for rank in (0, 2, 4):
        told = results[rank]
        assert told["ranks"] == [2, 0, 4]
        assert told["rank"] == [2, 0, 4].index(rank)
        assert told["gathered"] == [2.0, 0.0, 4.0]
    assert results[1]["ranks"] == [1]
    assert results[1]["gathered"] == [1.0]
    assert results[3]["ranks"] is None
    assert [told["world"] for told in results] == [[5.0]] * 5


def test_a_group_of_a_group_numbers_its_own_ranks(standing: Standing) -> None:
    results = standing(4).do(groups.nested)
    assert results[0] == {"outer": [5]}
    assert results[1] == {}
    for place, rank in enumerate((2, 3)):
        other = 1 - place
        assert results[rank] == {
            "ranks": [2, 3],
            "cast": [3.0],
            "from": [other, [20.0 + 10 * other]],
            "outer": [5],
        }


def enter_two(group: Daemons) -> None:
    """``left`` is of ranks 0 and 1, ``right`` of ranks 0 and 2, ``far`` of 2 and 3."""
    for name, ranks in (("left", [0, 1]), ("right", [0, 2]), ("far", [2, 3])):
        for told in group.do(groups.enter, ranks=ranks, name=name):
            assert told["error"] is None


@pytest.mark.parametrize("count", [3, LARGE])
def test_a_group_whose_member_is_late_does_not_hold_up_the_others(
    standing: Standing, count: int
) -> None:
    group = standing(4)
    enter_two(group)
    assert not group.trainer(0).do(groups.begin_sum, name="left", count=count)
    assert not group.trainer(0).do(groups.begin_sum, name="world", count=count)
    # Rank 1 does nothing. Its peers' other groups work, though they share links and daemons.
    group.trainer(2).start(groups.sum_of, name="right", count=count)
    assert group.trainer(0).do(groups.sum_of, name="right", count=count)["value"] == 4.0
    assert group.trainer(2).result()["value"] == 4.0
    group.trainer(2).start(groups.sum_of, name="far", count=count)
    assert group.trainer(3).do(groups.sum_of, name="far", count=count)["value"] == 7.0
    assert group.trainer(2).result()["value"] == 7.0
    # And when it comes, in its own order, everything ends.
    for rank in (1, 2, 3):
        group.trainer(rank).do(groups.begin_sum, name="world", count=count)
    assert group.trainer(0).do(groups.end_sum, name="world")["value"] == 10.0
    assert group.trainer(1).do(groups.sum_of, name="left", count=count)["value"] == 3.0
    left = group.trainer(0).do(groups.end_sum, name="left")
    assert left["value"] == 3.0
    for rank in (1, 2, 3):
        assert group.trainer(rank).do(groups.end_sum, name="world")["value"] == 10.0


def test_members_that_disagree_raise_within_a_second_and_then_fall_in_step(
    standing: Standing,
) -> None:
    group = standing(3)
    for rank, ranks in enumerate(([0, 1, 2], [0, 1, 2], [1, 2])):
        group.trainer(rank).start(groups.enter, ranks=ranks)
    for rank, told in enumerate(group.results()):
        assert told["error"] == "CollectiveMismatchError", f"rank {rank}: {told}"
        assert told["took_s"] < 1.0 * WIDER
        assert "ranks=[0, 1, 2]" in told["text"]
        assert "ranks=[1, 2]" in told["text"]
    assert [told["value"] for told in group.do(groups.sum_of, name="world")] == [6.0] * 3
    assert [told["error"] for told in group.do(groups.enter, ranks=[2, 0, 1])] == [None] * 3
    assert [told["value"] for told in group.do(groups.sum_of)] == [6.0] * 3


def test_a_mismatch_in_a_group_is_that_groups_own(standing: Standing) -> None:
    group = standing(4)
    enter_two(group)
    group.trainer(0).start(groups.sum_of, name="left", count=3)
    group.trainer(1).start(groups.sum_of, name="left", count=4)
    for rank in (0, 1):
        told = group.trainer(rank).result()
        assert told["error"] == "CollectiveMismatchError", told
        assert told["fields"]["group"] > 0
    assert [told["value"] for told in group.do(groups.sum_of, name="world")] == [10.0] * 4
    for name, pair, total in (("left", (0, 1), 3.0), ("right", (0, 2), 4.0)):
        for rank in pair:
            group.trainer(rank).start(groups.sum_of, name=name)
        assert [group.trainer(rank).result()["value"] for rank in pair] == [total] * 2


def test_a_late_member_is_named_by_its_rank_in_the_world(standing: Standing) -> None:
    group = standing(4)
    enter_two(group)
    told = group.trainer(2).do(groups.sum_of, name="far", timeout_s=1.0)
    assert told["error"] == "CollectiveTimeoutError", told
    assert told["fields"]["waiting_on"] == [3]
    assert told["fields"]["group"] > 0
    late = group.trainer(3).do(groups.sum_of, name="far", timeout_s=60.0)
    assert late["error"] == "CollectiveTimeoutError"
    for rank in (2, 3):
        group.trainer(rank).start(groups.sum_of, name="far")
    assert [group.trainer(rank).result()["value"] for rank in (2, 3)] == [7.0] * 2


def test_a_freed_group_takes_no_calls_and_its_members_get_what_was_sent_before(
    standing: Standing,
) -> None:
    group = standing(4)
    enter_two(group)
    group.do(groups.enter, ranks=[0, 1, 2, 3], name="all")
    group.do(groups.enter, ranks=[0, 1, 2], name="group")
    group.start(groups.busy, name="all", rounds=20)
    assert group.results() == [[]] * 4
    # The root frees the group before the others have called.
    assert group.trainer(0).do(groups.cast_then_close, count=100) == 7.0
    group.trainer(3).start(groups.sum_of, name="far")
    group.start(groups.cast_then_close, but=(0, 3), count=100)
    assert [group.trainer(rank).result() for rank in (1, 2)] == [7.0, 7.0]
    assert group.trainer(2).do(groups.sum_of, name="far")["value"] == 7.0
    assert group.trainer(3).result()["value"] == 7.0
    for told in group.trainer(1).do(groups.close_and_call, name="left"):
        assert told["error"] == "CommunicatorClosedError", told
    group.start(groups.busy, name="all", rounds=200)
    assert group.results() == [[]] * 4


def test_a_member_that_needs_one_who_has_freed_the_group_is_told(standing: Standing) -> None:
    group = standing(2)
    group.do(groups.enter, ranks=[0, 1])
    group.trainer(0).do(groups.close)
    sent, reduced, received = group.trainer(1).do(groups.needs_who_freed, timeout_s=1.0)
    assert sent["error"] == "GroupFreedError", sent
    assert "rank 0" in sent["text"]
    assert sent["took_s"] < 1.0 * WIDER
    assert reduced["error"] in ("CollectiveTimeoutError", "GroupFreedError"), reduced
    assert reduced["took_s"] < 2.0 * WIDER
    assert received["error"] == "GroupFreedError", received
    assert "rank 0 has closed group 1, and sends nothing with tag 0" in received["text"]
    assert [told["value"] for told in group.do(groups.sum_of, name="world")] == [3.0] * 2


def test_f1_two_hundred_groups_leave_descriptors_threads_and_memory_as_they_were(
    daemons: Callable[..., Daemons],
) -> None:
    group = daemons(5)
    group.connect()
    group.do(groups.come_and_go, rounds=20, count=100_000)
    before = [inventory(group.daemon_pid(rank)) for rank in range(5)]
    results = group.do(groups.come_and_go, rounds=200, count=100_000)
    for rank, told in enumerate(results):
        assert told["wrong"] == []
        assert told["after"] == told["before"], f"rank {rank}"

    def links_are_given_back(rank: int) -> bool:
        return inventory(group.daemon_pid(rank)).fds == before[rank].fds

    assert group.complaints() == []
    for rank in range(5):
        until(lambda rank=rank: links_are_given_back(rank), f"the daemon of rank {rank}: fds", 10)
        after = inventory(group.daemon_pid(rank))
        assert after.threads == before[rank].threads
        assert after.private_bytes - before[rank].private_bytes < 8 * MB
    assert [told[0]["value"] for told in group.do(calls.sequence, calls=[{"shape": [1]}])] == [
        [15.0]
    ] * 5
