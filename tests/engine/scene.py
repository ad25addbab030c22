"""A job in virtual time: N ranks in calm weather, where every bound can be asserted exactly."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ringd.engine.engine import Engine, EngineOptions, Local
from ringd.errors import RingdError
from ringd.schedules.layout import region_of
from ringd.sim.clock import VirtualLoop
from ringd.sim.cluster import Cluster, SimTrainer, host
from ringd.sim.weather import CalmWeather
from ringd.transport.memory import MemoryNetwork, Weather
from ringd.vocabulary import OpSpec
from ringd.wire.bounds import Bound

DELAY_S = 1 / 1024
"""Each delivery's time on the wire: a power of two, so sums of it are exact."""
VERDICT_S = 4 * DELAY_S
"""A verdict's way, where every daemon answers: report, question, answer, verdict."""
TICK_S = EngineOptions().tick_s
Array = np.ndarray[Any, np.dtype[Any]]

ALL_REDUCE = OpSpec("all_reduce", "float32", "sum", (5,))
BARRIER = OpSpec("barrier", "", "", ())


def splits_of(local: Local) -> tuple[int, ...]:
    """The splits of an all_to_all; () elsewhere."""
    return local if isinstance(local, tuple) else ()


@dataclass
class Ended:
    """How a call ended, and when."""

    error: RingdError | None
    array: Array
    began: float
    at: float
    result: int | None = None

    @property
    def took_s(self) -> float:
        return self.at - self.began

    @property
    def code(self) -> str:
        return "ok" if self.error is None else self.error.code


class Scene:
    """One job. ``run`` runs a test's coroutine once all trainers are attached."""

    def __init__(
        self,
        n: int,
        *,
        weather: Weather | None = None,
        pipe_bytes: int = 256 * 1024,
        embed: int | None = None,
        majority: bool | None = None,
        **options: Any,
    ) -> None:
        self.n = n
        self.loop = VirtualLoop(start_s=0.0, time_limit_s=3600.0)
        self.network = MemoryNetwork(
            self.loop, weather or CalmWeather(DELAY_S), pipe_bytes=pipe_bytes, trace=[]
        )
        self.loop.diagnose.append(self.network.describe)
        self.cluster = Cluster(
            self.network,
            n,
            random.Random(1),
            replace(EngineOptions(), **options),
            embed=embed,
            majority=majority,
        )

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start, run ``main``, stop; nothing may be unhandled."""

        async def whole() -> None:
            await self.cluster.start()
            await self.quiet()
            await main()
            await self.cluster.stop()

        try:
            self.loop.run_until_complete(whole())
            assert not self.loop.unhandled
        finally:
            self.loop.close()

    async def quiet(self) -> None:
        """Until all links of the ring are there and nothing is on its way."""
        await asyncio.sleep(1.0)

    def engine(self, rank: int) -> Engine:
        return self.cluster.nodes[rank].engine

    def trainer(self, rank: int) -> SimTrainer:
        return self.cluster.trainers[rank]

    def host(self, rank: int) -> str:
        return host(rank)

    def call(
        self,
        rank: int,
        spec: OpSpec = ALL_REDUCE,
        array: Array | None = None,
        *,
        timeout_s: float = 60.0,
        deadline: float | None = None,
        recv_timeout_s: float = 0.0,
        local: Local = None,
        bound: Bound | None = None,
    ) -> asyncio.Future[Ended]:
        """Begin a call on one rank; its region is ``array``, or rank + 1 everywhere."""
        if array is None:
            group = self.engine(rank).groups.numbered(spec.group)
            assert group is not None
            count = region_of(spec, group.rank, group.size, splits_of(local)).count
            array = np.full(count, rank + 1).astype(spec.dtype or "uint8")
        future: asyncio.Future[Ended] = self.loop.create_future()
        view = memoryview(array).cast("B") if array.size else memoryview(b"")
        began = self.loop.time()

        def done(error: RingdError | None, result: int | None) -> None:
            future.set_result(Ended(error, array, began, self.loop.time(), result))

        self.engine(rank).submit(
            spec.packed,
            lambda size: view[:size],
            done,
            timeout_s=timeout_s,
            deadline=deadline,
            recv_timeout_s=recv_timeout_s,
            local=local,
            bound=bound,
        )
        return future

    async def calls(self, specs: Sequence[OpSpec], **options: Any) -> list[Ended]:
        """Rank r calls specs[r], all at once; how each ended."""
        return await self.all(self.call(r, spec, **options) for r, spec in enumerate(specs))

    async def all(self, futures: Iterable[asyncio.Future[Ended]]) -> list[Ended]:
        """How these calls ended, in their order."""
        return list(await asyncio.gather(*futures))

    async def sum_works(self, ranks: Sequence[int] | None = None) -> None:
        """The next call is an ordinary one, and every rank has the same place in the order."""
        everyone = range(self.n) if ranks is None else ranks
        ended = await self.all(self.call(rank) for rank in everyone)
        total = sum(range(1, self.n + 1))
        for one in ended:
            assert one.error is None, one.error
            assert (one.array == total).all()
        assert len({self.engine(rank).world.next_seq for rank in everyone}) == 1
