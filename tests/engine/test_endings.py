"""Verdicts that cross something else: completions, late entrants, other errors, epochs, crowds."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from ringd.sim.cluster import SimTrainer
from ringd.sim.invariants import disagreement, leftovers
from ringd.vocabulary import OpSpec
from tests.engine.scene import ALL_REDUCE, BARRIER, DELAY_S, TICK_S, VERDICT_S, Ended, Scene

EXCHANGE = replace(ALL_REDUCE, algorithm="exchange")
LARGE = OpSpec("all_reduce", "float32", "sum", (60_000,), algorithm="ring")
BROADCAST = OpSpec("broadcast", "float32", "", (5,), root=0)
DEADLINE_S = 1.0


def agree(ended: list[Ended]) -> str:
    """The id of the one verdict with which all of these failed."""
    errors = [one.error for one in ended if one.error is not None]
    assert len(errors) == len(ended)
    assert disagreement(errors) is None
    (verdict,) = {error.fields["verdict"] for error in errors}
    return str(verdict)


async def in_order(scene: Scene) -> None:
    await scene.sum_works()
    await scene.quiet()
    assert [leftovers(node.engine) for node in scene.cluster.nodes] == [[]] * scene.n


@pytest.mark.parametrize("spec", [EXCHANGE, LARGE, BARRIER])
@pytest.mark.parametrize("half_delays", range(14))
def test_a_rank_that_enters_while_the_verdict_is_made_falls_in_step(
    spec: OpSpec, half_delays: int
) -> None:
    """From before the report to after the verdict; whoever ended first, the next call works."""
    scene = Scene(3)

    async def main() -> None:
        began = scene.loop.time()
        early = [scene.call(rank, spec, timeout_s=DEADLINE_S) for rank in (0, 1)]
        await asyncio.sleep(DEADLINE_S + (half_delays - 2) * DELAY_S / 2)
        late = await scene.call(2, spec, timeout_s=60.0)
        ended = await scene.all(early)
        failed = [one for one in [*ended, late] if one.error is not None]
        assert not failed or agree(failed)
        assert failed or half_delays < 4
        assert max(one.at for one in [*ended, late]) - began <= DEADLINE_S + TICK_S + 3 * VERDICT_S
        await in_order(scene)

    scene.run(main)


def test_a_call_that_has_all_it_needs_by_the_time_of_the_verdict_fails_like_the_others() -> None:
    scene = Scene(3)

    async def main() -> None:
        early = [scene.call(rank, EXCHANGE, timeout_s=DEADLINE_S) for rank in (0, 1)]
        await asyncio.sleep(DEADLINE_S + TICK_S / 2)
        late = scene.call(2, EXCHANGE)
        ended = await scene.all(early)
        agree(ended)
        assert {one.code for one in ended} == {"timeout"}
        assert (await late).code in ("ok", "timeout")
        await in_order(scene)

    scene.run(main)


def test_of_a_group_its_ranks_in_the_world_are_named_and_others_go_on() -> None:
    scene = Scene(5)

    async def main() -> None:
        members = (4, 1, 3)
        made = OpSpec("new_group", "int64", "max", (1,), counts=members)
        ended = await scene.all(scene.call(r, made, np.zeros(1, "int64")) for r in range(5))
        number = int(ended[1].array[0])
        spec = replace(EXCHANGE, group=number)
        calls = [scene.call(rank, spec, timeout_s=DEADLINE_S) for rank in (4, 1)]
        await asyncio.sleep(DEADLINE_S / 2)
        await scene.sum_works()
        ended = await scene.all(calls)
        agree(ended)
        for one in ended:
            assert one.error is not None
            assert one.error.fields["culprits"] == [3]
            assert f"of group {number}" in str(one.error)
        late = await scene.call(3, spec)
        assert (late.code, late.took_s) == ("timeout", 0)
        in_group = await scene.all(scene.call(rank, spec) for rank in members)
        assert [one.code for one in in_group] == ["ok"] * 3
        await in_order(scene)

    scene.run(main)


def test_a_verdict_on_a_group_that_a_rank_has_not_got_yet_reaches_it_when_it_calls() -> None:
    scene = Scene(3)

    async def main() -> None:
        scene.network.delay(scene.host(0), scene.host(2), 3.0, both=False)
        scene.network.delay(scene.host(1), scene.host(2), 3.0, both=False)
        made = OpSpec("new_group", "int64", "max", (1,), counts=(0, 1, 2))
        groups = [scene.call(rank, made, np.zeros(1, "int64")) for rank in range(3)]
        ended = await scene.all(groups[:2])
        number = int(ended[0].array[0])
        spec = replace(LARGE, group=number)
        failed = await scene.all(scene.call(r, spec, timeout_s=DEADLINE_S) for r in (0, 1))
        assert not groups[2].done()
        assert agree(failed)
        scene.network.delay(scene.host(0), scene.host(2), 0.0)
        scene.network.delay(scene.host(1), scene.host(2), 0.0)
        await groups[2]
        late = await scene.call(2, spec)
        assert late.code == "timeout"
        assert late.took_s <= 1.0  # the answer may not overtake what is slow on the same link
        assert agree([*failed, late])
        ended = await scene.all(scene.call(rank, spec) for rank in range(3))
        assert [one.code for one in ended] == ["ok"] * 3
        await in_order(scene)

    scene.run(main)


@pytest.mark.parametrize("half_delays", range(10))
def test_an_epoch_that_ends_while_all_are_asked_takes_nothing_into_the_next(
    half_delays: int,
) -> None:
    scene = Scene(3)

    async def main() -> None:
        early = [scene.call(rank, EXCHANGE, timeout_s=DEADLINE_S) for rank in (0, 1)]
        await asyncio.sleep(DEADLINE_S + TICK_S / 2 + half_delays * DELAY_S / 2)
        for trainer in scene.cluster.trainers:
            trainer.goodbye()
        scene.cluster.trainers = [SimTrainer(node) for node in scene.cluster.nodes]
        await asyncio.gather(*(trainer.attach(30.0) for trainer in scene.cluster.trainers))
        for one in await scene.all(early):
            assert one.code in ("timeout", "membership_changed", "peer_lost")
        await in_order(scene)

    scene.run(main)


@pytest.mark.parametrize("n_calls", [100, 256, 300, 1000])
def test_a_crowd_of_calls_that_fail_at_once_end_in_time_and_each_with_one_verdict(
    n_calls: int,
) -> None:
    scene = Scene(3)

    async def main() -> None:
        calls = {
            rank: [scene.call(rank, EXCHANGE, timeout_s=DEADLINE_S) for _ in range(n_calls)]
            for rank in (0, 1)
        }
        ended = {rank: await scene.all(futures) for rank, futures in calls.items()}
        verdicts = [agree(list(pair)) for pair in zip(*ended.values(), strict=True)]
        assert len(set(verdicts)) == n_calls
        for one in (*ended[0], *ended[1]):
            assert one.error is not None
            assert one.error.fields["culprits"] == [2]
            assert one.took_s <= DEADLINE_S + 0.25
        for verdict in verdicts:
            late = await scene.call(2, EXCHANGE)
            assert (late.code, late.took_s) == ("timeout", 0)
            assert late.error is not None
            assert late.error.fields["verdict"] == verdict
        await in_order(scene)

    scene.run(main)


@pytest.mark.parametrize("half_delays", range(6))
def test_frames_of_another_call_that_come_until_the_verdict_break_no_link(half_delays: int) -> None:
    """Many segments follow the first one, which shows the difference."""
    scene = Scene(3, segment_bytes=16, eager_bytes=64 * 1024)
    odd = replace(ALL_REDUCE, algorithm="ring", shape=(200,))

    async def main() -> None:
        early = [scene.call(rank, odd, timeout_s=DEADLINE_S) for rank in (0, 1)]
        await asyncio.sleep(DEADLINE_S + half_delays * DELAY_S if half_delays else 0.0)
        agree(await scene.all([*early, scene.call(2, replace(odd, shape=(300,)))]))
        await in_order(scene)

    scene.run(main)


@pytest.mark.parametrize("half_delays", range(10))
def test_a_rank_that_fails_the_same_call_with_another_error_gets_the_one_verdict(
    half_delays: int,
) -> None:
    """Rank 2 calls something else while all are asked about the timeout, or just before."""
    scene = Scene(3)
    odd = replace(EXCHANGE, reduce_op="max")

    async def main() -> None:
        early = [scene.call(rank, EXCHANGE, timeout_s=DEADLINE_S) for rank in (0, 1)]
        await asyncio.sleep(DEADLINE_S + (half_delays - 1) * DELAY_S / 2)
        late = scene.call(2, odd)
        agree(await scene.all([*early, late]))
        await in_order(scene)

    scene.run(main)


def test_a_mismatch_has_one_verdict_on_all_and_who_had_returned_quotes_that_one() -> None:
    scene = Scene(3)

    async def main() -> None:
        assert (await scene.call(0, BROADCAST)).code == "ok"
        odd = replace(BROADCAST, shape=(6,))
        failed = await scene.all([scene.call(1, BROADCAST), scene.call(2, odd)])
        await scene.quiet()
        first = agree([one for one in failed if one.error is not None])  # 1 may have returned too
        told = await scene.call(0)
        await scene.quiet()
        rest = await scene.all(scene.call(rank) for rank in (1, 2))
        for one in (told, *rest):
            assert one.code == "mismatch"
            assert one.error is not None
            assert one.error.fields["verdict"] == first
            assert "before it could be known, was void" in str(one.error)
        await in_order(scene)

    scene.run(main)


def test_a_silent_peer_is_not_blamed_for_what_it_waits_for_itself() -> None:
    """Rank 1's limit of silence expires, but rank 0, its neighbour, waits for rank 3."""
    scene = Scene(4)

    async def main() -> None:
        calls = [scene.call(0, LARGE), scene.call(1, LARGE, recv_timeout_s=0.5)]
        calls.append(scene.call(2, LARGE))
        ended = await scene.all(calls)
        agree(ended)
        for one in ended:
            assert one.error is not None
            assert one.error.fields["culprits"] == [3]
            assert "500 ms without a byte" in str(one.error)
        late = await scene.call(3, LARGE)
        assert late.took_s == 0
        await in_order(scene)

    scene.run(main)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_a_daemon_that_stalls_amid_a_row_of_calls_is_alone_to_blame(n: int) -> None:
    """Ranks fail at calls next to each other, and who is kept in the first is absent from the
    second; one that only lacks an acknowledgement has all its bytes."""
    spec = replace(LARGE, shape=(n * 40_000,))

    async def row(scene: Scene, rank: int) -> Ended:
        while (ended := await scene.call(rank, spec, timeout_s=DEADLINE_S)).error is None:
            pass
        return ended

    def stall_at(moment_s: float) -> None:
        scene = Scene(n, pipe_bytes=64 * 1024)
        victim = int(moment_s * 1e6) % n

        async def main() -> None:
            rows = [asyncio.ensure_future(row(scene, rank)) for rank in range(n)]
            await asyncio.sleep(moment_s)
            scene.network.stall(scene.host(victim))
            for one in await asyncio.gather(*(rows[r] for r in range(n) if r != victim)):
                assert one.code == "timeout"
                assert one.error.fields["culprits"] == [victim], (moment_s, one.error)
                assert not one.error.fields["partial"]
            scene.network.resume(scene.host(victim))
            await rows[victim]

        scene.run(main)

    for step in range(40):
        stall_at(0.05 + step * DELAY_S / 2)
