"""What a hostile test found: each kind of fault, held here."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ringd.engine.run_ahead import RUN_AHEAD_OPERATIONS, allowance_bytes
from ringd.errors import InvalidArgumentError, UnsupportedTypeError, from_wire
from ringd.vocabulary import OpSpec
from tests.engine.scene import ALL_REDUCE, BARRIER, TICK_S, VERDICT_S, Ended, Scene

BROADCAST = OpSpec("broadcast", "float32", "", (1,), root=0)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "direct", "exchange"])
@pytest.mark.parametrize(("n", "late"), [(3, 2), (4, 1), (5, 3), (5, 0), (7, 4)])
@pytest.mark.parametrize("count", [5, 60_000])
def test_t3_every_rank_names_the_one_that_never_entered(
    algorithm: str, n: int, late: int, count: int
) -> None:
    scene = Scene(n)
    spec = replace(ALL_REDUCE, algorithm=algorithm, shape=(count,))

    async def main() -> None:
        await scene.sum_works()
        callers = [r for r in range(n) if r != late]
        for one in await scene.all(scene.call(r, spec, timeout_s=2.0) for r in callers):
            assert one.code == "timeout"
            assert one.error is not None
            assert one.error.fields["culprits"] == one.error.fields["waiting_on"] == [late]
            assert f": rank {late} never entered it" in str(one.error)
            assert one.took_s <= 2.0 + TICK_S + VERDICT_S

    scene.run(main)


def test_a_rank_that_is_stopped_in_mid_operation_is_named_not_its_neighbour() -> None:
    scene = Scene(5)
    spec = replace(ALL_REDUCE, algorithm="ring", shape=(400_000,))

    async def main() -> None:
        futures = [scene.call(r, spec, timeout_s=2.0) for r in range(5)]
        await asyncio.sleep(0.002)
        scene.network.stall(scene.host(1))
        for one in await scene.all(f for r, f in enumerate(futures) if r != 1):
            assert one.error is not None
            assert one.error.fields["waiting_on"] == [1]
        scene.network.resume(scene.host(1))
        await futures[1]

    scene.run(main)


@pytest.mark.parametrize("spec", [BROADCAST, replace(BROADCAST, shape=(0,))])
def test_a_root_that_runs_ahead_waits_for_the_others_instead_of_flooding_them(
    spec: OpSpec,
) -> None:
    scene = Scene(3)
    calls = 5000

    async def program(rank: int, ended: list[Ended]) -> None:
        for _ in range(calls):
            ended.append(await scene.call(rank, spec, timeout_s=600.0))  # noqa: PERF401

    async def main() -> None:
        root: list[Ended] = []
        task = asyncio.create_task(program(0, root))
        await asyncio.sleep(5.0)
        assert len(root) == RUN_AHEAD_OPERATIONS
        await asyncio.gather(task, program(1, []), program(2, []))
        assert [one.code for one in root] == ["ok"] * calls
        await scene.sum_works()

    scene.run(main)


def test_with_many_ranks_each_may_run_less_far_ahead() -> None:
    assert allowance_bytes(2) == 4 * 1024 * 1024
    for n in (16, 17, 24, 64, 256):
        assert allowance_bytes(n) * (n - 1) <= 64 * 1024 * 1024


def test_a_size_that_nobody_has_is_refused_before_a_plan_is_made_for_it() -> None:
    scene = Scene(2)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        refused: asyncio.Future[object] = loop.create_future()

        def region(size: int) -> memoryview:
            raise InvalidArgumentError(f"there are no {size} bytes")

        peer = scene.call(1)
        huge = OpSpec("all_reduce", "float32", "sum", (2**62, 4))
        scene.engine(0).submit(huge.packed, region, lambda error, _: refused.set_result(error))
        assert isinstance(await refused, InvalidArgumentError)
        assert (await peer).code == "mismatch"
        await scene.sum_works()

    scene.run(main)


def test_a_refused_call_does_not_swallow_a_mismatch_that_waits_for_the_next() -> None:
    scene = Scene(2)

    async def main() -> None:
        root = await scene.call(0, replace(BROADCAST, shape=(4,)))
        assert root.code == "ok"
        assert (await scene.call(1, replace(BROADCAST, shape=(5,)))).code == "mismatch"
        await scene.quiet()
        scene.engine(0).endings.refuse(ALL_REDUCE, UnsupportedTypeError("no such dtype"))
        assert (await scene.call(1)).code == "mismatch"
        told, other = await scene.all([scene.call(0, BARRIER), scene.call(1, BARRIER)])
        assert told.code == other.code == "mismatch"
        assert "before it could be known, was void" in str(told.error)
        await scene.sum_works()

    scene.run(main)


def test_an_early_frame_that_breaks_the_protocol_costs_its_sender_the_link() -> None:
    scene = Scene(3)

    async def main() -> None:
        engine = scene.engine(0)
        early = engine.router.early
        held = early.flow(0, engine.world.epoch, 0, 1, 48)
        early.keep(held, [engine.world.epoch, 0, 7], b"\0" * 20)
        begun = scene.loop.time()
        one = await scene.call(0, replace(ALL_REDUCE, algorithm="exchange"))
        assert one.code == "peer_lost"
        assert scene.loop.time() - begun < 1.0 + TICK_S
        assert scene.cluster.violations  # it was logged as the peer's, and our trainer lives
        scene.cluster.violations.clear()
        assert scene.trainer(0).node.state()["trainer"] is not None

    scene.run(main)


@pytest.mark.parametrize("name", ["self", "message", "args", "fields"])
def test_an_error_map_of_any_keys_becomes_an_error(name: str) -> None:
    error = from_wire({"code": "timeout", "message": "x", "fields": {name: 1}})
    assert error.code == "timeout"
    assert str(error) == "x"


def test_a_peers_error_of_another_kind_has_no_power_over_this_ranks_trainer() -> None:
    scene = Scene(2)

    async def main() -> None:
        epoch = scene.engine(0).world.epoch
        for code in ("closed", "daemon_lost", "peer_lost", "nonsense"):
            seq = scene.engine(0).world.next_seq
            futures = [
                scene.call(0),
            ]
            error = {"code": code, "message": "because", "fields": {"rank": 0}}
            scene.trainer(0).node.on_abort(epoch, 0, 0, seq, error)
            (one,) = await scene.all(futures)
            assert one.code == "collective"
            assert one.error is not None
            assert one.error.retry == "same_epoch"
            await scene.call(1, timeout_s=0.1)

    scene.run(main)
