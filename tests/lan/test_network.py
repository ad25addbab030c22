"""A lab's network is what was asked for, by measurements from within it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringd.errors import InvalidArgumentError
from ringd.lab.lab import Lab
from ringd.lab.spec import IPV6_ONLY
from tests.lan.conftest import MakeLab

PROBE = Path(__file__).parent / "probe.py"
LIMIT_S = 60.0


@contextlib.contextmanager
def server(lab: Lab, host: int) -> Iterator[None]:
    """Something that answers on a host."""
    command = [*lab.enter(host), sys.executable, str(PROBE), "serve", lab.address(host)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
        process.kill()


def measure(lab: Lab, source: int, target: int, what: str, number: int) -> Any:
    """What the probe says of the way from one host to another."""
    command = [sys.executable, str(PROBE), what, lab.address(target), str(number)]
    done = subprocess.run(
        [*lab.enter(source), *command], capture_output=True, timeout=LIMIT_S, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("switch", ["kernel", "user"])
def test_a_cable_has_the_rate_that_was_asked_for_and_a_changed_one(
    lab: MakeLab, switch: str
) -> None:
    made = lab(f"2x80mbit,switch={switch}")
    with server(made, 1):
        before = measure(made, 0, 1, "rate", 8_000_000)
        made.change_rate([1], 8_000_000)
        slow = measure(made, 0, 1, "rate", 1_000_000)
        made.change_rate([1], 80_000_000)
        after = measure(made, 0, 1, "rate", 8_000_000)
    assert 40e6 < before < 82e6
    assert 40e6 < after < 82e6
    assert 4e6 < slow < 9e6  # the bucket is full when it begins


def test_a_cable_has_its_rate_in_the_other_direction_too(lab: MakeLab) -> None:
    made = lab("2x80mbit,switch=user")
    made.change_rate([0], 8_000_000)
    with server(made, 1):
        assert 4e6 < measure(made, 0, 1, "rate", 1_000_000) < 9e6


def test_without_a_rate_it_goes_quicker_than_any_that_is_tested(lab: MakeLab) -> None:
    made = lab("2,switch=user")
    with server(made, 1):
        assert measure(made, 0, 1, "rate", 32_000_000) > 160e6


@pytest.mark.parametrize("quirks", [(), (IPV6_ONLY,)])
def test_a_round_trip_takes_twice_the_delay(lab: MakeLab, quirks: tuple[str, ...]) -> None:
    made = lab("2,delay=20ms", quirks=quirks)
    with server(made, 1):
        times = measure(made, 0, 1, "round_trips", 20)
        assert min(times) >= 0.040
        made.change(delay_s=0.0)
        assert min(measure(made, 0, 1, "round_trips", 20)) < min(times)


def test_one_direction_can_be_slow_alone(lab: MakeLab) -> None:
    made = lab("2,switch=user")
    made.change(sources=[1], delay_s=0.020)
    with server(made, 1):
        one_way = min(measure(made, 0, 1, "round_trips", 20))
        made.change(sources=[0], delay_s=0.020)
        assert 0.020 <= one_way < min(measure(made, 0, 1, "round_trips", 20))


def test_with_jitter_round_trips_spread(lab: MakeLab) -> None:
    made = lab("2,delay=10ms,jitter=8ms")
    with server(made, 1):
        times = sorted(measure(made, 0, 1, "round_trips", 60))
    assert times[0] >= 0.004
    assert times[45] - times[15] > 0.002, "the middle half of them"


def test_packets_are_lost_as_often_as_was_asked(lab: MakeLab) -> None:
    made = lab("3,switch=user")
    with server(made, 1):
        assert measure(made, 0, 1, "datagrams", 1000) >= 990
        # Only from 0 to 1: what asks and answers goes over host 2, or back.
        made.change(sources=[0], targets=[1], loss=0.3)
        assert 600 < measure(made, 0, 1, "datagrams", 1000) < 800
        assert measure(made, 2, 1, "datagrams", 1000) >= 990
    status = made.status()["switch"]
    assert 200 < status["lost"] < 450


def arrives(lab: Lab, source: int, target: int) -> bool:
    """Whether a datagram gets from one host to another."""
    receive = (
        "import socket, sys; s = socket.socket(type=socket.SOCK_DGRAM)\n"
        "s.bind((sys.argv[1], 5001)); s.settimeout(2.0); print(flush=True)\n"
        "try: s.recv(9)\nexcept TimeoutError: sys.exit(1)"
    )
    send = (
        "import socket, sys; s = socket.socket(type=socket.SOCK_DGRAM)\n"
        "for _ in range(3): s.sendto(b'x', (sys.argv[1], 5001))"
    )
    address = lab.address(target)
    command = [*lab.enter(target), sys.executable, "-c", receive, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as receiver:
        assert receiver.stdout is not None
        receiver.stdout.readline()
        command = [*lab.enter(source), sys.executable, "-c", send, address]
        subprocess.run(command, timeout=LIMIT_S, check=True)
        return receiver.wait(LIMIT_S) == 0


@pytest.mark.parametrize("switch", ["kernel", "user"])
def test_a_host_that_is_cut_off_gets_nothing_and_sends_nothing_until_it_is_healed(
    lab: MakeLab, switch: str
) -> None:
    made = lab(f"3,switch={switch}")
    assert arrives(made, 0, 1)
    made.cut([1])
    assert not arrives(made, 0, 1)
    assert not arrives(made, 1, 2)
    assert arrives(made, 0, 2)
    made.heal([1])
    assert arrives(made, 0, 1)
    assert arrives(made, 1, 2)


def test_one_direction_can_be_cut_alone(lab: MakeLab) -> None:
    made = lab("2,switch=user")
    made.change(sources=[0], targets=[1], cut=True)
    assert not arrives(made, 0, 1)
    assert arrives(made, 1, 0)


def test_the_kernels_switch_says_that_it_can_not(lab: MakeLab) -> None:
    made = lab("2")
    with pytest.raises(InvalidArgumentError, match="--switch user"):
        made.change(delay_s=0.001)
    with pytest.raises(InvalidArgumentError, match="has hosts 0 to 1, not 2"):
        made.cut([2])
