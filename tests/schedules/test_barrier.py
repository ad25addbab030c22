"""Barrier: an all_reduce over one chunk that will be empty."""

import pytest

from ringd.schedules import barrier, exchange, tree


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_a_barrier_is_an_all_reduce_by_another_name(world_size: int) -> None:
    for rank in range(world_size):
        by_exchange, by_tree = barrier.exchange(rank, world_size), barrier.tree(rank, world_size)
        assert by_exchange.collective == by_tree.collective == "barrier"
        assert by_exchange.n_chunks == by_tree.n_chunks == 1
        assert by_exchange.rounds == exchange.all_reduce(rank, world_size).rounds
        assert by_tree.rounds == tree.all_reduce(rank, world_size, widened=False).rounds
