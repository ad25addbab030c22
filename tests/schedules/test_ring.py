"""Ring: the passes are those of the textbook, chunk by chunk."""

import pytest

from ringd.schedules import ring
from ringd.schedules.model import Recv, Round, Send


def test_all_reduce_of_three_is_the_textbooks() -> None:
    schedule = ring.all_reduce(0, 3, widened=False)
    assert schedule.rounds == (
        Round((Send(1, 0),), (Recv(2, 2, "reduce"),)),
        Round((Send(1, 2),), (Recv(2, 1, "reduce"),)),
        Round((Send(1, 1),), (Recv(2, 0, "copy"),)),
        Round((Send(1, 0),), (Recv(2, 2, "copy"),)),
    )
    assert schedule.owned == (1,)


@pytest.mark.parametrize("world_size", [2, 3, 5, 7])
def test_in_step_s_rank_r_sends_chunk_r_minus_s_to_the_right(world_size: int) -> None:
    for rank in range(world_size):
        rounds = ring.all_reduce(rank, world_size, widened=False).rounds
        for step, round_ in enumerate(rounds[: world_size - 1]):
            (send,), (recv,) = round_.sends, round_.recvs
            assert send == Send((rank + 1) % world_size, (rank - step) % world_size)
            assert recv == Recv((rank - 1) % world_size, (rank - step - 1) % world_size, "reduce")


@pytest.mark.parametrize("world_size", [2, 3, 5, 7])
def test_reduce_scatter_ends_with_ones_own_chunk(world_size: int) -> None:
    for rank in range(world_size):
        schedule = ring.reduce_scatter(rank, world_size, widened=False)
        assert schedule.rounds[-1].recvs[0].chunk == rank
        assert schedule.owned == (rank,)


@pytest.mark.parametrize("world_size", [2, 3, 5, 7])
def test_all_gather_starts_with_ones_own_chunk_and_receives_all_others(world_size: int) -> None:
    for rank in range(world_size):
        schedule = ring.all_gather(rank, world_size)
        assert schedule.rounds[0].sends[0].chunk == rank
        received = {recv.chunk for round_ in schedule.rounds for recv in round_.recvs}
        assert received == set(range(world_size)) - {rank}


def test_widened_partial_sums_are_wide_and_finished_chunks_are_not() -> None:
    rounds = ring.all_reduce(2, 4, widened=True).rounds
    wide = [(round_.sends[0].wide, round_.recvs[0].wide) for round_ in rounds]
    assert wide == [(True, True)] * 3 + [(False, False)] * 3
