"""Ranks that are ahead of others: what they may send, and that nothing waits for a stranger."""

from __future__ import annotations

import asyncio

import pytest

from ringd.engine.early import MAX_EARLY_BYTES, MAX_EARLY_FRAMES_OF_PEER, EarlyStore
from ringd.engine.run_ahead import RUN_AHEAD_BYTES
from ringd.vocabulary import OpSpec
from ringd.wire.frame import FrameError
from tests.engine.scene import Scene

EAGER = OpSpec("all_reduce", "float32", "sum", (8000,), algorithm="exchange")
STUCK = OpSpec("all_reduce", "float32", "sum", (200_000,), algorithm="ring")
CAST = OpSpec("broadcast", "float32", "", (100_000,), root=0)


def test_a_rank_far_ahead_parks_no_more_than_the_bound_and_all_completes() -> None:
    scene = Scene(2, max_in_flight=500)

    async def main() -> None:
        ahead = [scene.call(0, EAGER) for _ in range(400)]
        await scene.quiet()
        held = scene.engine(1).router.early.held_bytes
        assert 0 < held <= RUN_AHEAD_BYTES
        behind = [scene.call(1, EAGER) for _ in range(400)]
        for ended in await scene.all(ahead + behind):
            assert ended.error is None
            assert (ended.array == 3).all()
        assert scene.engine(1).router.early.held_bytes == 0

    scene.run(main)


def test_more_operations_than_the_limit_are_refused_and_take_no_place() -> None:
    scene = Scene(2, max_in_flight=8)

    async def main() -> None:
        flying = [scene.call(0) for _ in range(8)]
        refused = await scene.call(0)
        assert refused.code == "too_many_operations"
        assert refused.took_s == 0
        flying += [scene.call(1) for _ in range(8)]
        assert [one.code for one in await scene.all(flying)] == ["ok"] * 16
        await scene.sum_works()

    scene.run(main)


def test_an_operation_that_one_rank_has_not_entered_blocks_no_other_on_the_same_links() -> None:
    # Rank 2 enters neither; what ranks 0 and 1 can do between them is done.
    scene = Scene(3)

    async def main() -> None:
        stuck = [scene.call(r, STUCK) for r in (0, 1)]
        await scene.quiet()
        root, leaf = scene.call(0, CAST), scene.call(1, CAST)
        await scene.quiet()
        assert leaf.done()
        assert leaf.result().error is None
        assert (leaf.result().array == 1).all()
        assert not any(future.done() for future in stuck)
        rest = [scene.call(2, STUCK), scene.call(2, CAST)]
        ended = await scene.all([*stuck, root, *rest])
        assert [one.code for one in ended] == ["ok"] * 5

    scene.run(main)


def test_many_large_operations_share_the_links_and_complete_in_any_order() -> None:
    scene = Scene(3, pipe_bytes=16 * 1024, segment_bytes=16 * 1024)

    async def main() -> None:
        flying = []
        for rank in (2, 0, 1):
            flying += [scene.call(rank, STUCK) for _ in range(6)]
            flying += [scene.call(rank) for _ in range(6)]
            await asyncio.sleep(0.1)
        for ended in await scene.all(flying):
            assert ended.error is None
            assert (ended.array == 6).all()

    scene.run(main)


def test_the_store_of_early_frames_is_bounded_in_bytes_and_frames_and_forgets() -> None:
    store = EarlyStore()
    flow = store.flow(0, 1, 0, peer=1, overhead_bytes=48)
    store.keep(flow, [1, 0, 0], b"x" * 1000)
    assert store.held_bytes == 1000
    assert store.take(0, 1, 0) == {1: flow}
    assert store.take(0, 1, 0) is None
    assert store.held_bytes == 0
    flow = store.flow(0, 1, 1, peer=1, overhead_bytes=48)
    with pytest.raises(FrameError, match="bytes for operations not entered"):
        store.keep(flow, [1, 1, 0], bytes(MAX_EARLY_BYTES + 1))
    assert store.drop_before(2) == 1
    store = EarlyStore()
    for seq in range(MAX_EARLY_FRAMES_OF_PEER):
        store.flow(0, 2, seq, peer=1, overhead_bytes=48)
    with pytest.raises(FrameError, match="frames for operations not entered"):
        store.flow(0, 2, 0, peer=1, overhead_bytes=48)
    assert store.flow(0, 2, 0, peer=2, overhead_bytes=48), "each peer has bounds of its own"


def test_operations_may_complete_in_another_order_than_they_were_called() -> None:
    scene = Scene(3)

    async def main() -> None:
        first = [scene.call(r, STUCK) for r in (0, 1)]
        await scene.quiet()
        later = [scene.call(r, CAST) for r in (0, 1)]
        await later[1]
        assert not first[0].done()
        rest = [scene.call(2, STUCK), scene.call(2, CAST)]
        ended = await scene.all([*first, later[0], *rest])
        assert [one.code for one in ended] == ["ok"] * 5

    scene.run(main)
