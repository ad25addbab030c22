"""Recursive doubling and halving: who meets whom, and who is in a pair."""

import pytest

from ringd.schedules import doubling
from ringd.schedules.model import Recv, Round, Schedule, Send


def test_recursive_doubling_of_four_meets_the_nearest_first() -> None:
    schedule = doubling.recursive_doubling(2, 4, widened=False)
    assert schedule.rounds == (
        Round((Send(3, 0),), (Recv(3, 0, "reduce"),)),
        Round((Send(0, 0),), (Recv(0, 0, "reduce"),)),
    )
    assert (schedule.fold, schedule.owned, schedule.guarded) == ("sorted", (0,), True)


def test_halving_doubling_of_four_is_the_textbooks() -> None:
    """Rank 0 gives away the odd chunks, then chunk 2; the second half is the first backwards."""
    schedule = doubling.halving_doubling(0, 4, widened=True)
    assert schedule.rounds == (
        Round(
            (Send(1, 3, wide=True), Send(1, 1, wide=True)),
            (Recv(1, 2, "reduce", wide=True), Recv(1, 0, "reduce", wide=True)),
        ),
        Round((Send(2, 2, wide=True),), (Recv(2, 0, "reduce", wide=True),)),
        Round((Send(2, 0),), (Recv(2, 2, "copy"),)),
        Round((Send(1, 0), Send(1, 2)), (Recv(1, 1, "copy"), Recv(1, 3, "copy"))),
    )
    assert (schedule.n_chunks, schedule.owned, schedule.guarded) == (4, (0,), False)


@pytest.mark.parametrize(
    ("world_size", "partners"),
    [
        # The ranks that each meets, in order; pairs meet first and last.
        (3, [[1, 2, 1], [0, 0], [0]]),
        (5, [[1, 2, 3, 1], [0, 0], [0, 4], [4, 0], [3, 2]]),
        (6, [[1, 2, 4, 1], [0, 0], [3, 0, 5, 3], [2, 2], [5, 0], [4, 2]]),
        (8, [[r ^ 1, r ^ 2, r ^ 4] for r in range(8)]),
    ],
)
def test_with_more_ranks_than_a_power_of_two_the_first_ones_pair_up(
    world_size: int, partners: list[list[int]]
) -> None:
    schedules = [
        doubling.recursive_doubling(r, world_size, widened=False) for r in range(world_size)
    ]
    assert [met(schedule) for schedule in schedules] == partners


def test_the_odd_rank_of_a_pair_owns_nothing_and_gets_what_is_finished() -> None:
    for build in (doubling.recursive_doubling, doubling.halving_doubling):
        odd = build(1, 5, widened=True)
        assert odd.owned == ()
        assert all(send.wide for send in odd.rounds[0].sends)
        assert all(recv == Recv(0, recv.chunk, "copy") for recv in odd.rounds[-1].recvs)
        assert {recv.chunk for recv in odd.rounds[-1].recvs} == set(range(odd.n_chunks))


@pytest.mark.parametrize("world_size", [2, 4, 8, 16])
def test_each_halving_keeps_half_of_the_chunks(world_size: int) -> None:
    levels = world_size.bit_length() - 1
    for rank in range(world_size):
        rounds = doubling.halving_doubling(rank, world_size, widened=False).rounds
        counts = [(len(r.sends), len(r.recvs)) for r in rounds]
        halves = [(world_size >> level, world_size >> level) for level in range(1, levels + 1)]
        assert counts == [*halves, *reversed(halves)]


def met(schedule: Schedule) -> list[int]:
    """The peer of each round that is not empty."""
    peers = [
        [move.peer for move in r.sends] + [move.peer for move in r.recvs] for r in schedule.rounds
    ]
    return [some[0] for some in peers if some]
