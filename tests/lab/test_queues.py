"""What ``tc`` is told, and where: rates, and netem's weather on a kernel that has it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ringd.errors import UnsupportedPlatformError
from ringd.lab import queues
from ringd.lab.spec import LabSpec

SPEC = LabSpec(hosts=2, name="x", switch="netem", rate_bps=10**8, delay_s=0.001)
BUCKET = "tbf rate 100000000bit burst 20000 limit 151072"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Namespace and line of every command, none of which is run."""
    lines: list[tuple[str, str]] = []

    def note(namespace: str, batch: Sequence[str]) -> None:
        lines.extend((namespace, line) for line in batch)

    monkeypatch.setattr(queues, "tc", note)
    monkeypatch.setattr(queues, "ip", note)
    monkeypatch.setattr(queues, "_has_bucket", lambda namespace, device: True)
    return lines


def test_every_port_of_the_bridge_has_netem_and_every_host_sends_single_segments(
    told: list[tuple[str, str]],
) -> None:
    queues.add_weather(SPEC)
    netem = "root handle 1: netem limit 1000000 delay 1000us"
    assert told == [
        ("ringd-x-0", "link set eth0 gso_max_segs 1"),
        ("ringd-x-1", "link set eth0 gso_max_segs 1"),
        ("ringd-x-switch", f"qdisc add dev port0 {netem}"),
        ("ringd-x-switch", f"qdisc add dev port1 {netem}"),
    ]


@pytest.mark.parametrize(
    ("weather", "words"),
    [
        ({"delay_s": 0.25}, "delay 250000us"),
        ({"delay_s": 0.01, "jitter_s": 0.004}, "delay 10000us 4000us rate 100gbit"),
        ({"loss": 0.001}, "delay 0us loss random 0.1%"),
        ({}, "delay 0us"),
    ],
)
def test_weather_is_changed_as_a_whole(
    told: list[tuple[str, str]], weather: dict[str, float], words: str
) -> None:
    queues.change_weather(LabSpec(hosts=1, name="x", switch="netem", **weather))
    line = f"qdisc change dev port0 root handle 1: netem limit 1000000 {words}"
    assert told == [("ringd-x-switch", line)]


def test_a_rate_is_below_netem_at_the_switch_and_first_at_the_host(
    told: list[tuple[str, str]],
) -> None:
    queues.set_rate(SPEC, 1, SPEC.rate_bps)
    queues.set_rate(SPEC, 1, 0)
    assert told == [
        ("ringd-x-1", f"qdisc replace dev eth0 root {BUCKET}"),
        ("ringd-x-switch", f"qdisc replace dev port1 parent 1:1 handle 2: {BUCKET}"),
        ("ringd-x-1", "qdisc delete dev eth0 root"),
        ("ringd-x-switch", "qdisc delete dev port1 parent 1:1 handle 2:"),
    ]


def test_a_kernel_is_asked_for_netem_and_its_refusal_is_quoted(
    told: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert queues.why_no_netem("ringd-x-switch") == ""
    assert told == [
        ("ringd-x-switch", "qdisc add dev lo root netem delay 1ms"),
        ("ringd-x-switch", "qdisc delete dev lo root"),
    ]

    def refuse(namespace: str, batch: Sequence[str]) -> None:
        raise UnsupportedPlatformError("tc: Specified qdisc kind is unknown.")

    monkeypatch.setattr(queues, "tc", refuse)
    assert "kind is unknown" in queues.why_no_netem("ringd-x-switch")
