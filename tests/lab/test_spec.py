"""Words for labs, and what a host believes of names."""

from __future__ import annotations

import json

import pytest

from ringd.errors import InvalidArgumentError
from ringd.lab.etc_hosts import etc_hosts
from ringd.lab.spec import (
    IPV6_ONLY,
    OWN_LOOPBACK,
    TWO_INTERFACES,
    LabSpec,
    parse_duration,
    parse_lab,
    parse_loss,
    parse_rate,
)


@pytest.mark.parametrize(
    ("text", "bits"), [("1gbit", 10**9), ("2.5Gbit", 2_500_000_000), ("100mbit", 10**8)]
)
def test_a_rate_has_decimal_units(text: str, bits: int) -> None:
    assert parse_rate(text) == bits


@pytest.mark.parametrize(("text", "seconds"), [("1ms", 1e-3), ("250us", 250e-6), ("0", 0.0)])
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(("text", "share"), [("0.1%", 0.001), ("100%", 1.0), ("0", 0.0)])
def test_a_loss_is_in_percent(text: str, share: float) -> None:
    assert parse_loss(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "1", "1gb", "-1gbit", "1kbit", "gbit"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="no rate"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["", "1", "-1ms", "11s", "ms"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="no duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "1", "101%", "-1%"])
def test_what_is_no_loss_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="no share"):
        parse_loss(text)


def test_a_lab_is_one_word() -> None:
    wanted = LabSpec(hosts=8, rate_bps=10**9, delay_s=0.001, loss=0.001, mtu=1500, switch="user")
    assert parse_lab("8x1gbit,delay=1ms,loss=0.1%,mtu=1500,switch=user") == wanted
    assert parse_lab("4") == LabSpec(hosts=4)


@pytest.mark.parametrize("text", ["", "x1gbit", "4x", "4x1gbit,", "4,delay", "4,colour=red", "0"])
def test_what_is_no_lab_is_refused(text: str) -> None:
    if text == "4x":
        assert parse_lab(text) == LabSpec(hosts=4)
        return
    with pytest.raises(InvalidArgumentError):
        parse_lab(text)


def test_the_kernel_is_the_switch_unless_it_can_not_do_what_is_asked() -> None:
    assert LabSpec(hosts=2, rate_bps=10**9).in_kernel
    assert not LabSpec(hosts=2, delay_s=0.001).in_kernel
    assert not LabSpec(hosts=2, loss=0.001).in_kernel
    assert not LabSpec(hosts=2, switch="user").in_kernel
    with pytest.raises(InvalidArgumentError):
        LabSpec(hosts=2, loss=0.001, switch="kernel")


def test_weather_is_netems_where_there_is_netem_and_else_a_programs() -> None:
    slow, quick = LabSpec(hosts=2, delay_s=0.001), LabSpec(hosts=2, rate_bps=10**9)
    assert slow.settled(netem=True).switch == "netem"
    assert slow.settled(netem=True).in_kernel
    assert slow.settled(netem=False).switch == "user"
    assert quick.settled(netem=True).switch == "kernel"
    wanted = LabSpec(hosts=2, delay_s=0.001, switch="user")
    assert wanted.settled(netem=True) == wanted
    assert parse_lab("2,delay=1ms,switch=netem").frame_bytes == 1500


def test_a_spec_survives_its_file() -> None:
    spec = LabSpec(hosts=3, name="x", delay_s=0.5, quirks=(OWN_LOOPBACK,))
    assert LabSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    ("quirk", "own", "other"),
    [
        ((), "10.213.78.1", "10.213.78.2"),
        ((OWN_LOOPBACK,), "127.0.1.1", "10.213.78.2"),
        ((TWO_INTERFACES,), "10.213.79.1", "10.213.78.2"),
        ((IPV6_ONLY,), "fd00:213:78::1", "fd00:213:78::2"),
    ],
)
def test_a_hosts_own_name_is_what_its_quirk_says_and_the_others_are_as_they_are(
    quirk: tuple[str, ...], own: str, other: str
) -> None:
    lines = etc_hosts(LabSpec(hosts=2, quirks=quirk), 0).splitlines()
    assert lines[2:] == [f"{own} host0", f"{other} host1"]
