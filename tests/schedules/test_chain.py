"""Chains: along the ranks in order, and back."""

import pytest

from ringd.schedules import chain
from ringd.schedules.model import Recv, Round, Schedule, Send


def test_an_all_reduce_of_three_folds_to_the_last_rank_and_comes_back() -> None:
    first, middle, last = (chain.all_reduce(rank, 3, widened=True) for rank in range(3))
    assert first.rounds == (
        Round(sends=(Send(1, 0, wide=True),)),
        Round(),
        Round(),
        Round(recvs=(Recv(1, 0, "copy"),)),
    )
    assert middle.rounds == (
        Round(recvs=(Recv(0, 0, "reduce", wide=True),)),
        Round(sends=(Send(2, 0, wide=True),)),
        Round(recvs=(Recv(2, 0, "copy"),)),
        Round(sends=(Send(0, 0),)),
    )
    assert last.rounds == (
        Round(),
        Round(recvs=(Recv(1, 0, "reduce", wide=True),)),
        Round(sends=(Send(1, 0),)),
        Round(),
    )
    assert [s.owned for s in (first, middle, last)] == [(), (), (0,)]
    assert {s.fold for s in (first, middle, last)} == {"sorted"}


@pytest.mark.parametrize("root", range(4))
def test_a_reduce_ends_with_a_message_from_the_last_rank_to_the_root(root: int) -> None:
    schedules = [chain.reduce(rank, 4, root=root, widened=False) for rank in range(4)]
    handed = [(s.rank, send) for s in schedules for send in sends(s)]
    line = [(0, Send(1, 0)), (1, Send(2, 0)), (2, Send(3, 0))]
    assert handed == (line if root == 3 else [*line, (3, Send(root, 0))])
    assert [s.owned for s in schedules] == [(), (), (), (0,)]


@pytest.mark.parametrize("root", range(4))
def test_a_broadcast_goes_from_the_root_round_to_the_rank_before_it(root: int) -> None:
    schedules = [chain.broadcast(rank, 4, root=root) for rank in range(4)]
    handed = {s.rank: sends(s) for s in schedules}
    before = (root - 1) % 4
    assert handed == {
        rank: [] if rank == before else [Send((rank + 1) % 4, 0)] for rank in range(4)
    }


def sends(schedule: Schedule) -> list[Send]:
    return [send for round_ in schedule.rounds for send in round_.sends]
