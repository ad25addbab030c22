"""What a scenario lives in: a cluster on a network with seeded weather, and a loop of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from ringd.engine.engine import EngineOptions
from ringd.sim.clock import VirtualLoop, run
from ringd.sim.cluster import Cluster
from ringd.sim.trace import Trace
from ringd.sim.weather import Climate, SeededWeather
from ringd.transport.memory import MemoryNetwork

MAX_DELAY_S = 0.5
CALM_MAX_DELAY_S = 0.01
"""Where verdicts are judged, every daemon can answer in time."""
TIME_LIMIT_S = 2 * 3600.0
STEP_LIMIT = 10_000_000
REST_S = 60.0
"""After the end: longer than any timer that is left behind."""


class WrongOutcome(AssertionError):
    """A rank got what it must never get; the text has the command that replays it."""


class World:
    """One run's surroundings.

    Args:
        calm: no weather, size or pipe that would make a call late by itself.
        trace: gets what happens; without one nothing is recorded, and the run is quicker.
    """

    def __init__(self, rng: random.Random, n: int, *, calm: bool, trace: Trace | None) -> None:
        self.loop = VirtualLoop(time_limit_s=TIME_LIMIT_S, step_limit=STEP_LIMIT)
        self.network = MemoryNetwork(
            self.loop,
            livable_weather(rng, CALM_MAX_DELAY_S if calm else MAX_DELAY_S),
            pipe_bytes=256 * 1024 if calm else rng.choice((4 * 1024, 16 * 1024, 256 * 1024)),
            trace=trace,
        )
        if trace is not None:
            self.loop.on_step = trace.step
        options = EngineOptions(
            segment_bytes=rng.choice((1024, 16 * 1024) if calm else (64, 1024, 16 * 1024)),
            eager_bytes=rng.choice((0, 256, 4096)),
            inline_bytes=rng.choice((4096, 64 * 1024)),
        )
        self.cluster = Cluster(self.network, n, rng, options)
        self.loop.diagnose += [self.network.describe, self.cluster.describe]

    def run(
        self, main: Callable[[], Coroutine[Any, Any, None]], describe: Callable[[], str]
    ) -> None:
        """Start the cluster, run ``main``, stop it: nothing may be left.

        Raises:
            WrongOutcome: whatever went wrong, with ``describe()`` before it.
        """
        try:
            run(self._whole(main), loop=self.loop)
            if self.loop.unhandled:
                raise WrongOutcome(f"unhandled: {self.loop.unhandled[0]}")
            if self.cluster.violations:
                raise WrongOutcome(f"protocol violation: {self.cluster.violations[0]}")
        except Exception as exc:
            raise WrongOutcome(f"{describe()}: {type(exc).__name__}: {exc}") from exc

    async def _whole(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await self.cluster.start()
        await main()
        await self.cluster.stop()
        await asyncio.sleep(REST_S)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if left or self.loop.timers():
            raise WrongOutcome(f"left over: {left} {self.loop.timers()}")
        if self.network.open_channels():
            raise WrongOutcome(f"left open: {self.network.open_channels()}")


def livable_weather(rng: random.Random, max_delay_s: float) -> SeededWeather:
    """A weather in which a heartbeat is never late enough to be taken for a death."""
    while True:
        weather = SeededWeather(random.Random(rng.getrandbits(32)), Climate.draw(rng))
        if weather.max_delay_s < max_delay_s:
            return weather
