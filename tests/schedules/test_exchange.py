"""Exchange: one round, all of it to everybody."""

from ringd.schedules import exchange
from ringd.schedules.model import Recv, Round, Send


def test_all_reduce_of_three_is_one_round() -> None:
    schedule = exchange.all_reduce(2, 3)
    assert schedule.rounds == (
        Round((Send(0, 0), Send(1, 0)), (Recv(1, 0, "reduce"), Recv(0, 0, "reduce"))),
    )
    assert (schedule.fold, schedule.owned, schedule.n_chunks) == ("rank", (0,), 1)


def test_it_is_guarded_as_its_fold_overwrites_what_it_sends() -> None:
    assert exchange.all_reduce(0, 2).guarded
