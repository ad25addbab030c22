"""What chance does to a simulated network: calm, or drawn from a seed.

A seed first draws a climate, then lives in it, so that seeds differ in kind and not only in
detail: some runs see single bytes, some see long delays, some see next to nothing.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CalmWeather:
    """Every delivery takes the same time and is told whole."""

    fixed_delay_s: float = 100e-6

    def delay_s(self, source: str, target: str) -> float:
        """The same for all."""
        return self.fixed_delay_s

    def chop(self, available_bytes: int) -> int:
        """All that is there."""
        return available_bytes


@dataclass(frozen=True, slots=True)
class Climate:
    """How a seeded weather is distributed.

    Attributes:
        mean_delay_s: mean of the exponential delay of a path of factor 1.
        path_spread: each directed path has a factor of its own, between 1/spread and spread.
        spike_chance: part of the deliveries that take ``spike_factor`` times as long.
        spike_factor: see there.
        whole_weight: how often all arrived bytes are told at once, against
        part_weight: any part of them, and
        crumb_weight: at most ``crumb_bytes`` of them.
        crumb_bytes: see there.
    """

    mean_delay_s: float
    path_spread: float
    spike_chance: float
    spike_factor: float
    whole_weight: float
    part_weight: float
    crumb_weight: float
    crumb_bytes: int

    def __post_init__(self) -> None:
        if min(self.whole_weight, self.part_weight, self.crumb_weight) < 0 or (
            self.whole_weight + self.part_weight + self.crumb_weight <= 0
        ):
            raise ValueError("weights are not negative, and one is above zero")
        if self.mean_delay_s < 0 or self.path_spread < 1 or self.crumb_bytes < 1:
            raise ValueError("a delay is not negative, a spread and a crumb are at least 1")

    @classmethod
    def draw(cls, rng: random.Random) -> Climate:
        """A climate, from still air to storm."""
        return cls(
            mean_delay_s=math.exp(rng.uniform(math.log(10e-6), math.log(10e-3))),
            path_spread=rng.choice((1.0, 2.0, 10.0)),
            spike_chance=rng.choice((0.0, 0.01, 0.1)),
            spike_factor=rng.choice((10.0, 100.0)),
            whole_weight=rng.choice((1.0, 4.0)),
            part_weight=rng.choice((0.0, 1.0, 4.0)),
            crumb_weight=rng.choice((0.0, 1.0, 4.0)),
            crumb_bytes=rng.choice((1, 7, 64)),
        )


class SeededWeather:
    """Delays and pieces drawn from one random generator, which nothing else may use.

    Args:
        rng: the source of all chance, seeded by the caller.
        climate: fixed instead of drawn.
    """

    def __init__(self, rng: random.Random, climate: Climate | None = None) -> None:
        self._rng = rng
        self.climate = climate or Climate.draw(rng)
        self._factors: dict[tuple[str, str], float] = {}

    def delay_s(self, source: str, target: str) -> float:
        """An exponential delay around the path's own mean, now and then a spike."""
        climate = self.climate
        mean_s = climate.mean_delay_s * self._factor(source, target)
        if self._rng.random() < climate.spike_chance:
            mean_s *= climate.spike_factor
        # The draw is cut off at ten times its mean: bounds in tests can be computed.
        return mean_s * min(10.0, self._rng.expovariate(1.0))

    def _factor(self, source: str, target: str) -> float:
        path = (source, target)
        if path not in self._factors:
            exponent = self._rng.uniform(-1.0, 1.0)
            self._factors[path] = self.climate.path_spread**exponent
        return self._factors[path]

    def chop(self, available_bytes: int) -> int:
        """All, any part, or a crumb."""
        climate = self.climate
        weights = (climate.whole_weight, climate.part_weight, climate.crumb_weight)
        largest = (0, available_bytes, min(available_bytes, climate.crumb_bytes))
        bound = self._rng.choices(largest, weights)[0]
        return self._rng.randint(1, bound) if bound else available_bytes

    @property
    def max_delay_s(self) -> float:
        """No delivery is on the wire for longer (but for what ``delay`` adds)."""
        spike = max(1.0, self.climate.spike_factor) if self.climate.spike_chance else 1.0
        return 10.0 * self.climate.mean_delay_s * self.climate.path_spread * spike

    def __repr__(self) -> str:
        return f"SeededWeather({self.climate})"
