"""Direct: every rank to every owner, every owner to all."""

import pytest

from ringd.schedules import direct
from ringd.schedules.model import Recv, Round, Send


def test_all_reduce_of_three_scatters_then_gathers() -> None:
    schedule = direct.all_reduce(1, 3)
    assert schedule.rounds == (
        Round((Send(2, 2), Send(0, 0)), (Recv(0, 1, "reduce"), Recv(2, 1, "reduce"))),
        Round((Send(2, 1), Send(0, 1)), (Recv(0, 0, "copy"), Recv(2, 2, "copy"))),
    )
    assert (schedule.fold, schedule.owned, schedule.guarded) == ("rank", (1,), False)


def test_its_halves_are_reduce_scatter_and_all_gather() -> None:
    whole = direct.all_reduce(2, 5).rounds
    assert direct.reduce_scatter(2, 5).rounds == whole[:1]
    assert direct.all_gather(2, 5).rounds == whole[1:]
    assert direct.all_gather(2, 5).owned == ()


@pytest.mark.parametrize("world_size", [2, 3, 5, 7])
def test_no_two_ranks_have_the_same_target_at_the_same_place(world_size: int) -> None:
    targets = [direct.to_peers(rank, world_size) for rank in range(world_size)]
    for at_once in zip(*targets, strict=True):
        assert len(set(at_once)) == world_size


@pytest.mark.parametrize("world_size", [2, 3, 5, 7])
def test_receives_are_listed_in_the_order_in_which_peers_send(world_size: int) -> None:
    for rank in range(world_size):
        for place, peer in enumerate(direct.from_peers(rank, world_size)):
            assert direct.to_peers(peer, world_size)[place] == rank


def test_a_reduce_is_one_message_from_each_rank_to_the_root() -> None:
    assert direct.reduce(1, 3, root=1).rounds == (
        Round(recvs=(Recv(0, 0, "reduce"), Recv(2, 0, "reduce"))),
    )
    assert direct.reduce(2, 3, root=1).rounds == (Round(sends=(Send(1, 0),)),)
    schedules = [direct.reduce(rank, 3, root=1) for rank in range(3)]
    assert [(s.fold, s.owned, s.n_chunks) for s in schedules] == [
        ("rank", (), 1),
        ("rank", (0,), 1),
        ("rank", (), 1),
    ]


def test_a_gather_brings_each_part_to_the_root_and_a_scatter_takes_it_away() -> None:
    assert direct.gather(0, 3, root=0).rounds == (
        Round(recvs=(Recv(2, 2, "copy"), Recv(1, 1, "copy"))),
    )
    assert direct.gather(2, 3, root=0).rounds == (Round(sends=(Send(0, 2),)),)
    assert direct.scatter(0, 3, root=0).rounds == (Round(sends=(Send(1, 1), Send(2, 2))),)
    assert direct.scatter(2, 3, root=0).rounds == (Round(recvs=(Recv(0, 2, "copy"),)),)


def test_chunk_a_times_n_plus_b_of_an_all_to_all_is_what_a_has_for_b() -> None:
    assert direct.all_to_all(1, 3).rounds == (
        Round((Send(2, 5), Send(0, 3)), (Recv(0, 1, "copy"), Recv(2, 7, "copy"))),
    )
    assert direct.all_to_all(1, 3).n_chunks == 9
