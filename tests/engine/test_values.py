"""Exact results on 7 ranks, in rough weather, for every algorithm and every way to cut segments."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import numpy as np
import pytest

from ringd.schedules.layout import region_of
from ringd.sim.calls import Call
from ringd.sim.weather import Climate, SeededWeather
from ringd.vocabulary import ALGORITHMS, IN_PARTS, REDUCING, ROOTED, OpSpec
from tests.engine.scene import Array, Ended, Scene

ROUGH = Climate(
    mean_delay_s=0.0005,
    path_spread=8.0,
    spike_chance=0.02,
    spike_factor=20.0,
    whole_weight=1,
    part_weight=2,
    crumb_weight=1,
    crumb_bytes=7,
)


def rough(seed: int) -> SeededWeather:
    return SeededWeather(random.Random(seed), ROUGH)


def all_calls(n: int, count: int) -> list[Call]:
    """Every collective by every algorithm; parts and rows are uneven, some of them empty."""
    calls: list[Call] = []
    everybody = tuple(range(n))
    for collective, algorithms in ALGORITHMS.items():
        if collective in ("agree", "new_group"):
            continue
        for algorithm in algorithms:
            for dtype in ("float32", "int64", "float16"):
                reduce_op = (
                    "" if collective not in REDUCING else "max" if dtype == "int64" else "sum"
                )
                spec = OpSpec(
                    collective,
                    "" if collective == "barrier" else dtype,
                    reduce_op,
                    () if collective == "barrier" else (count,),
                    root=n // 2 if collective in ROOTED else -1,
                    algorithm=algorithm,
                )
                rows: tuple[tuple[int, ...], ...] = ()
                if collective == "all_to_all":
                    spec = replace(spec, shape=(2,))
                    rows = tuple(
                        tuple(count * ((a + 2 * b) % 3) // (2 * n) for b in everybody)
                        for a in everybody
                    )
                elif collective in IN_PARTS and dtype == "int64":
                    spec = replace(
                        spec, shape=(3,), counts=tuple(count * (r % 3) // 9 for r in everybody)
                    )
                calls.append(Call(spec, len(calls), everybody, rows))
    return calls


@pytest.mark.parametrize(("n", "count"), [(7, 1), (7, 1000), (7, 40_000), (2, 70_000), (5, 9001)])
def test_every_algorithm_gives_exact_results_with_six_operations_in_flight(
    n: int, count: int
) -> None:
    scene = Scene(n, weather=rough(n * count), segment_bytes=16 * 1024, eager_bytes=4096)

    async def main() -> None:
        async def program(rank: int) -> None:
            flying = []
            for call in all_calls(n, count):
                region = call.region(rank)
                future = scene.call(rank, call.spec, region, local=call.splits(rank))
                flying.append((call, region, future))
                if len(flying) > 5:
                    await land(rank, *flying.pop(0))
            for one in flying:
                await land(rank, *one)

        async def land(rank: int, call: Call, region: Array, future: asyncio.Future[Ended]) -> None:
            ended = await future
            assert ended.error is None, (call.spec, ended.error)
            result = call.result_of(region, rank)
            assert np.array_equal(result, call.expected(rank)), (rank, call.spec)

        await asyncio.gather(*(program(rank) for rank in range(n)))

    scene.run(main)


def test_two_landings_that_pause_halfway_do_not_share_their_scratch_memory() -> None:
    # On a tree rank 0 folds the segments of several children while both are half here.
    n, count = 5, 60_000
    scene = Scene(n, weather=rough(3), pipe_bytes=16 * 1024, inline_bytes=1024)
    calls = [
        Call(
            OpSpec("all_reduce", "float64", "sum", (count,), algorithm=algorithm),
            salt,
            tuple(range(n)),
        )
        for salt, algorithm in enumerate(("tree", "ring", "tree", "ring"))
    ]

    async def main() -> None:
        regions = [[call.region(rank) for call in calls] for rank in range(n)]
        futures = [
            scene.call(rank, call.spec, region)
            for rank in range(n)
            for call, region in zip(calls, regions[rank], strict=True)
        ]
        for ended in await scene.all(futures):
            assert ended.error is None
        for rank in range(n):
            for call, region in zip(calls, regions[rank], strict=True):
                assert np.array_equal(region, call.expected(rank)), (rank, call.spec)

    scene.run(main)


def irregular(rank: int, count: int, dtype: str) -> Array:
    values = np.random.default_rng(rank).normal(size=count) * 10.0 ** (rank % 3)
    return values.astype(dtype)


def left_fold(n: int, count: int, dtype: str) -> Array:
    total = irregular(0, count, dtype).astype("float32" if dtype == "float16" else dtype)
    for rank in range(1, n):
        total += irregular(rank, count, dtype).astype(total.dtype)
    return total.astype(dtype)


@pytest.mark.parametrize("n", [3, 7])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_deterministic_gives_the_left_fold_whatever_segments_and_algorithm(
    n: int, dtype: str
) -> None:
    count = 5000 - 5000 % n
    expected = left_fold(n, count, dtype)
    plain = OpSpec("all_reduce", dtype, "sum", (count,), deterministic=True)
    calls = [replace(plain, algorithm=a) for a in ("auto", "direct", "exchange", "chain")]
    reduce = replace(plain, collective="reduce", root=1)
    calls += [replace(reduce, algorithm=a) for a in ("auto", "direct", "chain")]
    scatter = replace(plain, collective="reduce_scatter", shape=(count // n,))
    calls += [replace(scatter, algorithm=a) for a in ("auto", "direct")]
    for segment_bytes, eager_bytes in ((64, 0), (1024, 256), (1 << 20, 1 << 16)):
        for spec in calls:
            scene = Scene(n, weather=rough(1), segment_bytes=segment_bytes, eager_bytes=eager_bytes)

            async def main(scene: Scene = scene, spec: OpSpec = spec) -> None:
                futures = [scene.call(r, spec, irregular(r, count, dtype)) for r in range(n)]
                for rank, ended in enumerate(await scene.all(futures)):
                    assert ended.error is None
                    start, length = region_of(spec, rank, n).result
                    got, due = (x[start : start + length] for x in (ended.array, expected))
                    assert got.tobytes() == due.tobytes()

            scene.run(main)


@pytest.mark.parametrize("n", [2, 3, 5, 7])
@pytest.mark.parametrize(
    "algorithm", ["ring", "tree", "recursive_doubling", "halving_doubling", "chain"]
)
def test_n10_every_algorithm_gives_all_ranks_the_same_bits_and_again_when_repeated(
    n: int, algorithm: str
) -> None:
    spec = OpSpec("all_reduce", "float32", "sum", (1000,), algorithm=algorithm)
    seen = set()
    for seed in range(5):
        scene = Scene(n, weather=rough(seed), segment_bytes=1024, eager_bytes=256)

        async def main(scene: Scene = scene) -> None:
            cancelling = np.array([1e8, 1, -1e8, 1], np.float32)
            regions = [np.resize(np.roll(cancelling, -rank), 1000) for rank in range(n)]
            ended = await scene.all(scene.call(r, spec, regions[r]) for r in range(n))
            seen.update(one.array.tobytes() for one in ended)

        scene.run(main)
    assert len(seen) == 1
