"""When calls end that can't complete: to the tick."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ringd.errors import CollectiveTimeoutError
from ringd.vocabulary import OpSpec
from ringd.wire.bounds import Bound
from tests.engine.scene import ALL_REDUCE, BARRIER, DELAY_S, TICK_S, VERDICT_S, Ended, Scene

EXCHANGE = replace(ALL_REDUCE, algorithm="exchange")
LARGE = OpSpec("all_reduce", "float32", "sum", (100_000,), algorithm="ring")
MS = 0.001
"""Remaining times travel in whole milliseconds."""


@pytest.mark.parametrize("spec", [EXCHANGE, LARGE])
def test_a_call_ends_at_its_deadline_and_at_most_a_tick_later(spec: OpSpec) -> None:
    scene = Scene(3)

    async def main() -> None:
        ended = await scene.all(scene.call(r, spec, timeout_s=2.0) for r in (0, 1))
        for one in ended:
            assert one.code == "timeout"
            assert 2.0 - MS <= one.took_s <= 2.0 + TICK_S + VERDICT_S

    scene.run(main)


@pytest.mark.parametrize("late_s", [0.5, 1.9, 30.0])
def test_a_call_that_was_read_late_ends_when_it_would_have(late_s: float) -> None:
    scene = Scene(3)

    async def main() -> None:
        began = scene.loop.time() - late_s  # its daemon stood still since
        bound = Bound(2.0)
        call = scene.call(0, EXCHANGE, timeout_s=0.0, deadline=began + 2.0, bound=bound)
        [one] = await scene.all([call])
        assert one.code == "timeout"
        left_s = max(2.0 - late_s, 0.0)
        assert left_s - MS <= one.took_s <= left_s + TICK_S + VERDICT_S + MS

    scene.run(main)


def test_a_deadline_of_another_clock_gives_no_call_more_than_it_asked_for() -> None:
    scene = Scene(3)

    async def main() -> None:
        far = scene.loop.time() + 5000.0
        bound = Bound(2.0)
        [one] = await scene.all([scene.call(0, EXCHANGE, timeout_s=0.0, deadline=far, bound=bound)])
        assert 2.0 - MS <= one.took_s <= 2.0 + TICK_S + VERDICT_S

    scene.run(main)


def test_a_timeout_says_op_seq_peer_bytes_and_time() -> None:
    scene = Scene(3)

    async def main() -> None:
        await scene.sum_works()
        ended = await scene.all(scene.call(r, EXCHANGE, timeout_s=2.0) for r in (0, 1))
        for one in ended:
            assert one.error is not None
            fields = one.error.fields
            assert (fields["op"], fields["group"], fields["epoch"], fields["seq"]) == (
                ("all_reduce", 0, 1, 1)
            )
            assert fields["waiting_on"] == fields["culprits"] == [2]
            assert (fields["case"], fields["partial"]) == ("never entered", False)
            assert (fields["bytes_done"], fields["bytes_total"]) == (20, 40)
            assert 2.0 - MS <= fields["elapsed_s"] <= 2.0 + TICK_S + VERDICT_S
            text = str(one.error)
            assert text.startswith(
                "all_reduce (operation 1 of the world, epoch 1) ended at its deadline of 2 s "
                "(timeout_s of the "
                "call): "
            )
            assert "rank 2 never entered it; the trainer of rank 2 (process 1002) is in" in text
            assert fields["stacks"] == {"2": ["train.py:1 in main"]}
            assert f"Rank {fields['rank']} had 20 of 40 bytes after 2.0" in text

    scene.run(main)


def test_the_first_deadline_to_expire_ends_the_operation_for_all_who_entered() -> None:
    scene = Scene(4)

    async def main() -> None:
        futures = [scene.call(0, EXCHANGE, timeout_s=60.0), scene.call(1, EXCHANGE, timeout_s=1.0)]
        futures.append(scene.call(2, EXCHANGE, timeout_s=30.0))
        for one in await scene.all(futures):
            assert one.code == "timeout"
            assert one.took_s <= 1.0 + TICK_S + VERDICT_S

    scene.run(main)


def test_the_deadline_is_counted_from_the_call_not_from_the_entry_of_the_last() -> None:
    scene = Scene(2)

    async def main() -> None:
        first = scene.call(0, LARGE, timeout_s=1.0)
        await asyncio.sleep(0.9)
        scene.network.cut(scene.host(0), scene.host(1))
        second = scene.call(1, LARGE, timeout_s=60.0)
        assert (await first).took_s <= 1.0 + TICK_S + VERDICT_S
        # The cut link can't tell rank 1, but the rendezvous does.
        assert (await second).took_s <= 0.1 + TICK_S + VERDICT_S

    scene.run(main)


@pytest.mark.parametrize("late_by_s", [0.0, 5.0, 100.0])
def test_a_late_entrant_gets_the_stored_verdict_at_once_and_the_next_call_works(
    late_by_s: float,
) -> None:
    scene = Scene(3)

    async def main() -> None:
        ended = await scene.all(scene.call(r, EXCHANGE, timeout_s=1.0) for r in (0, 1))
        await asyncio.sleep(4 * DELAY_S + late_by_s)
        late = await scene.call(2, EXCHANGE, timeout_s=60.0)
        assert late.code == "timeout"
        assert late.took_s == 0
        assert late.error is not None
        own = " Rank 2 had not made this call when it ended: this rank came late itself."
        verdict, told, _ = str(late.error).partition(own)
        assert told
        assert late.error.fields["rank"] == 2
        assert late.error.fields["in_place"] is False, "it has not begun"
        for one in ended:
            assert one.error is not None
            assert "in_place" not in one.error.fields, "that is for its own client to say"
            assert str(one.error).startswith(verdict + " Rank ")
            assert "itself" not in str(one.error)
            assert one.error.fields["verdict"] == late.error.fields["verdict"]
        await scene.sum_works()

    scene.run(main)


def test_a_ranks_own_silence_limit_ends_the_operation_to_the_tick() -> None:
    scene = Scene(3)

    async def main() -> None:
        call = scene.call(0, EXCHANGE, timeout_s=60.0, recv_timeout_s=0.5)
        other = scene.call(1, EXCHANGE, timeout_s=60.0)
        ended = await call
        assert ended.code == "timeout"
        assert ended.error is not None
        assert ended.error.fields["setting"] == "recv_timeout_ms"
        assert ended.error.fields["waiting_on"] == [2]
        assert 0.5 - TICK_S <= ended.took_s <= 0.5 + 3 * TICK_S + VERDICT_S
        assert (await other).took_s == ended.took_s

    scene.run(main)


def test_a_slow_peer_that_goes_on_sending_does_not_run_into_the_silence_limit() -> None:
    scene = Scene(2, pipe_bytes=4096, segment_bytes=4096)

    async def main() -> None:
        scene.network.delay(scene.host(0), scene.host(1), 0.02)
        ended = await scene.all(scene.call(r, LARGE, recv_timeout_s=0.5) for r in (0, 1))
        for one in ended:
            assert one.error is None
            assert one.took_s > 1.0

    scene.run(main)


def test_operations_before_and_after_one_that_times_out_complete() -> None:
    scene = Scene(3)

    async def main() -> None:
        before = [scene.call(r) for r in range(3)]
        stuck = [scene.call(r, EXCHANGE, timeout_s=1.0) for r in (0, 1)]
        await asyncio.sleep(2.0)
        late = scene.call(2, EXCHANGE)
        after = [scene.call(r) for r in range(3)]
        assert [one.code for one in await scene.all(before + after)] == ["ok"] * 6
        assert [one.code for one in await scene.all([*stuck, late])] == ["timeout"] * 3

    scene.run(main)


def test_barriers_name_every_late_rank() -> None:
    for algorithm in ("tree", "exchange"):
        scene = Scene(7)
        spec = replace(BARRIER, algorithm=algorithm)

        async def main(scene: Scene = scene, spec: OpSpec = spec) -> None:
            here = [0, 1, 3, 6]
            ended: list[Ended] = await scene.all(
                scene.call(rank, spec, timeout_s=2.0) for rank in here
            )
            for one in ended:
                assert isinstance(one.error, CollectiveTimeoutError)
                assert one.error.fields["late_ranks"] == [2, 4, 5]
                assert "ranks 2, 4 and 5" in str(one.error)
            for rank in (2, 4, 5):
                assert (await scene.call(rank, spec)).code == "timeout"
            await scene.sum_works()

        scene.run(main)
