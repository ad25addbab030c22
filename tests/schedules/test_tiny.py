"""barrier, agree and new_group: an all_reduce over one chunk of at most one element."""

import pytest

from ringd.schedules import exchange, tiny, tree


@pytest.mark.parametrize("collective", ["barrier", "agree", "new_group"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_they_are_an_all_reduce_by_another_name(world_size: int, collective: str) -> None:
    for rank in range(world_size):
        by_exchange = tiny.exchange(rank, world_size, collective=collective)
        by_tree = tiny.tree(rank, world_size, collective=collective)
        assert by_exchange.collective == by_tree.collective == collective
        assert by_exchange.n_chunks == by_tree.n_chunks == 1
        assert by_exchange.rounds == exchange.all_reduce(rank, world_size).rounds
        assert by_tree.rounds == tree.all_reduce(rank, world_size, widened=False).rounds
