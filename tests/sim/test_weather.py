"""The weather: the same seed, the same weather; within its bounds; of many kinds."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringd.sim.weather import CalmWeather, Climate, SeededWeather
from ringd.transport.memory import Weather


def _diary(weather: Weather, length: int = 200) -> list[tuple[float, int]]:
    """Some days of a weather, on four paths."""
    hosts = ("a", "b")
    return [
        (weather.delay_s(hosts[i % 2], hosts[i // 2 % 2]), weather.chop(1 + i * 37))
        for i in range(length)
    ]


def test_the_same_seed_gives_the_same_weather() -> None:
    first, second = (SeededWeather(random.Random(5)) for _ in range(2))
    assert _diary(first) == _diary(second)
    assert repr(first) == repr(second)


def test_other_seeds_give_other_weather() -> None:
    diaries = [_diary(SeededWeather(random.Random(seed))) for seed in range(10)]
    assert len({tuple(diary) for diary in diaries}) == 10


@given(st.integers(), st.integers(1, 1 << 30))
def test_pieces_and_delays_stay_in_bounds(seed: int, available_bytes: int) -> None:
    weather = SeededWeather(random.Random(seed))
    for _ in range(20):
        assert 1 <= weather.chop(available_bytes) <= available_bytes
        assert 0 <= weather.delay_s("a", "b") <= weather.max_delay_s


def test_seeds_differ_in_kind() -> None:
    climates = [SeededWeather(random.Random(seed)).climate for seed in range(100)]
    assert {c.spike_chance > 0 for c in climates} == {True, False}
    assert {c.crumb_bytes for c in climates} == {1, 7, 64}
    assert any(c.crumb_weight == c.part_weight == 0 for c in climates), "some tell all at once"
    assert min(c.mean_delay_s for c in climates) * 100 < max(c.mean_delay_s for c in climates)


def test_a_climate_can_be_fixed() -> None:
    crumbs = Climate(0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1)
    weather = SeededWeather(random.Random(1), crumbs)
    assert _diary(weather) == [(0.0, 1)] * 200


def test_a_climate_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="weights"):
        Climate(0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1)
    with pytest.raises(ValueError, match="delay"):
        Climate(-1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1)


def test_calm_weather_tells_all_at_once_after_one_delay() -> None:
    assert _diary(CalmWeather(0.5), 3) == [(0.5, 1), (0.5, 38), (0.5, 75)]
