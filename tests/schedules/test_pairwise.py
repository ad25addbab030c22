"""Pairwise: one peer to send to at a time, and one to receive from."""

import pytest

from ringd.schedules import pairwise
from ringd.schedules.model import Recv, Round, Send


def test_an_all_to_all_of_four_goes_round_once() -> None:
    # Chunk 4a + b is what rank a has for rank b.
    assert pairwise.all_to_all(1, 4).rounds == (
        Round((Send(2, 6),), (Recv(0, 1, "copy"),)),
        Round((Send(3, 7, after=1),), (Recv(3, 13, "copy"),)),
        Round((Send(0, 4, after=13),), (Recv(2, 9, "copy"),)),
    )


@pytest.mark.parametrize("world_size", [2, 3, 5, 7])
def test_in_each_round_every_rank_has_one_sender(world_size: int) -> None:
    everybody = [pairwise.all_to_all(rank, world_size).rounds for rank in range(world_size)]
    for at_once in zip(*everybody, strict=True):
        assert {send.peer for round_ in at_once for send in round_.sends} == set(range(world_size))


@pytest.mark.parametrize("world_size", [2, 3, 5, 7])
def test_a_round_waits_for_what_the_one_before_received(world_size: int) -> None:
    rounds = pairwise.all_to_all(world_size - 1, world_size).rounds
    came = [round_.recvs[0].chunk for round_ in rounds]
    assert [round_.sends[0].after for round_ in rounds] == [-1, *came[:-1]]
