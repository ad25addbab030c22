"""Binomial trees: who is whose parent, and in which round."""

import pytest

from ringd.schedules import tree
from ringd.schedules.model import Recv, Round, Send


def test_all_reduce_of_six_at_rank_four_goes_up_and_down_once() -> None:
    assert tree.all_reduce(4, 6, widened=False).rounds == (
        Round(recvs=(Recv(5, 0, "reduce"),)),
        Round(),
        Round(sends=(Send(0, 0),)),
        Round(recvs=(Recv(0, 0, "copy"),)),
        Round(),
        Round(sends=(Send(5, 0),)),
    )


def test_the_root_hears_its_children_nearest_first_and_owns_the_result() -> None:
    schedule = tree.all_reduce(0, 8, widened=False)
    heard = [recv.peer for round_ in schedule.rounds for recv in round_.recvs]
    told = [send.peer for round_ in schedule.rounds for send in round_.sends]
    assert (heard, told) == ([1, 2, 4], [4, 2, 1])
    assert schedule.owned == (0,)
    assert tree.all_reduce(3, 8, widened=False).owned == ()


def test_a_broadcast_is_counted_from_its_root() -> None:
    at_root = tree.broadcast(3, 5, root=3).rounds
    assert [send.peer for round_ in at_root for send in round_.sends] == [2, 0, 4]
    # Rank 1 is place 3 from root 3: its parent is place 2, rank 0.
    assert tree.broadcast(1, 5, root=3).rounds[-1] == Round(recvs=(Recv(0, 0, "copy"),))


@pytest.mark.parametrize("world_size", [2, 3, 5, 7, 8])
def test_every_rank_but_the_root_receives_a_broadcast_once(world_size: int) -> None:
    for root in range(world_size):
        for rank in range(world_size):
            rounds = tree.broadcast(rank, world_size, root=root).rounds
            assert sum(len(round_.recvs) for round_ in rounds) == (rank != root)


def test_only_what_goes_up_is_wide() -> None:
    assert tree.all_reduce(2, 4, widened=True).rounds == (
        Round(recvs=(Recv(3, 0, "reduce", wide=True),)),
        Round(sends=(Send(0, 0, wide=True),)),
        Round(recvs=(Recv(0, 0, "copy"),)),
        Round(sends=(Send(3, 0),)),
    )


def test_a_reduce_goes_up_to_any_root_and_stops_there() -> None:
    # From root 3 of five: ranks 3, 4, 0, 1, 2 have the places 0 to 4.
    at_root = tree.reduce(3, 5, root=3, widened=True)
    assert [recv for round_ in at_root.rounds for recv in round_.recvs] == [
        Recv(4, 0, "reduce", wide=True),
        Recv(0, 0, "reduce", wide=True),
        Recv(2, 0, "reduce", wide=True),
    ]
    assert not any(round_.sends for round_ in at_root.rounds)
    assert at_root.owned == (0,)
    assert tree.reduce(0, 5, root=3, widened=False).rounds == (
        Round(recvs=(Recv(1, 0, "reduce"),)),
        Round(sends=(Send(3, 0),)),
        Round(),
    )


def test_a_child_gathers_its_whole_subtree_before_it_sends() -> None:
    # Place 4 of seven from root 0 has the places 5 and 6 below it.
    assert tree.gather(4, 7, root=0).rounds == (
        Round(recvs=(Recv(5, 5, "copy"),)),
        Round(recvs=(Recv(6, 6, "copy"),)),
        Round(sends=(Send(0, 4), Send(0, 5), Send(0, 6))),
    )


def test_a_scatter_sends_what_is_passed_on_first() -> None:
    assert tree.scatter(4, 7, root=0).rounds == (
        Round(recvs=(Recv(0, 6, "copy"), Recv(0, 5, "copy"), Recv(0, 4, "copy"))),
        Round(sends=(Send(6, 6),)),
        Round(sends=(Send(5, 5),)),
    )


@pytest.mark.parametrize("world_size", [2, 3, 5, 7, 8])
def test_a_part_passes_each_rank_on_its_way_to_the_root_once(world_size: int) -> None:
    for root in range(world_size):
        for rank in range(world_size):
            gathered = tree.gather(rank, world_size, root=root).rounds
            sent = [send.chunk for round_ in gathered for send in round_.sends]
            came = [recv.chunk for round_ in gathered for recv in round_.recvs]
            assert len(set(came)) == len(came)
            assert sent == ([] if rank == root else [rank, *came])
