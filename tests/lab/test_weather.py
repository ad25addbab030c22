"""When a packet is due, by the definition of rate, delay, jitter and loss."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ringd.lab.spec import LabSpec
from ringd.lab.weather import Weather

SPEC = LabSpec(hosts=3, switch="user")


def weather(**more: object) -> Weather:
    return Weather(replace(SPEC, **more), random.Random(5))


def test_without_weather_a_packet_is_due_at_once() -> None:
    assert weather().due(0, 1, 1000, 5.0) == 5.0


def test_a_packet_takes_the_delay_and_its_time_on_the_cable() -> None:
    made = weather(delay_s=0.25, rate_bps=8_000_000)
    assert made.due(0, 1, 1000, 5.0) == pytest.approx(5.0 + 0.001 + 0.25)


def test_packets_to_one_host_take_turns_on_its_cable_and_others_do_not_wait_for_them() -> None:
    made = weather(rate_bps=8_000_000)
    assert made.due(0, 2, 1000, 5.0) == pytest.approx(5.001)
    assert made.due(1, 2, 1000, 5.0) == pytest.approx(5.002)
    assert made.due(0, 1, 1000, 5.0) == pytest.approx(5.001)
    assert made.due(0, 2, 1000, 9.0) == pytest.approx(9.001), "the cable is free again"


def test_what_finds_a_full_queue_is_lost() -> None:
    made = weather(rate_bps=8_000_000)
    room = SPEC.queue_bytes // 1000
    found = [made.due(0, 1, 1000, 5.0) for _ in range(room + 10)]
    assert None not in found[:room]
    assert found[-8:] == [None] * 8
    assert made.counts.overflowed == found.count(None)
    assert made.due(0, 1, 1000, 6.0) is not None


def test_jitter_is_around_the_delay_and_no_packet_overtakes_another_of_its_path() -> None:
    made = weather(delay_s=0.010, jitter_s=0.004)
    apart = [made.due(0, 1, 100, float(n)) for n in range(1000)]
    delays = [due - n for n, due in enumerate(apart) if due is not None]
    assert 0.006 <= min(delays) < 0.0065
    assert 0.0135 < max(delays) <= 0.014
    at_once = [made.due(0, 2, 100, 5.0 + n / 1e6) for n in range(100)]
    assert at_once == sorted(at_once, key=float)


def test_so_many_packets_are_lost_by_chance() -> None:
    made = weather(loss=0.25)
    lost = [made.due(0, 1, 100, 0.0) for _ in range(4000)].count(None)
    assert 880 < lost < 1120  # four standard deviations
    assert made.counts.lost == lost


def test_a_change_holds_for_its_directions_only() -> None:
    made = weather()
    made.change([0], [1, 2], cut=True)
    made.change([1], [2], delay_s=1.0)
    assert made.due(0, 1, 100, 0.0) is None
    assert made.due(0, 2, 100, 0.0) is None
    assert made.due(1, 0, 100, 0.0) == 0.0
    assert made.due(1, 2, 100, 0.0) == 1.0
    assert made.due(2, 1, 100, 0.0) == 0.0
    made.change([0], [1], cut=False)
    assert made.due(0, 1, 100, 0.0) == 0.0
    assert made.counts.cut == 2


def test_a_changed_rate_holds_for_the_hosts_cable() -> None:
    made = weather(rate_bps=8_000_000)
    made.change_rate([1], 800_000)
    assert made.due(0, 1, 1000, 0.0) == pytest.approx(0.010)
    assert made.due(0, 2, 1000, 0.0) == pytest.approx(0.001)
