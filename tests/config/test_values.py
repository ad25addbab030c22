"""Sizes, ports and addresses as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringd.config.values import HostPort, PortRange, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        (65536, 65536),
        ("64K", 65536),
        ("64k", 65536),
        ("1M", 1048576),
        ("1MiB", 1048576),
        (" 2 GB ", 2 << 30),
        ("512B", 512),
        ("1T", 1 << 40),
    ],
)
def test_a_size_counts_in_powers_of_1024(text: object, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "K", "1.5M", "-1", "1X", "1 K B", "0x10", True, None, 1.0])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="1K = 1024"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=1 << 60))
def test_a_formatted_size_is_read_back_exactly(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes


def test_sizes_are_formatted_in_their_largest_whole_unit() -> None:
    assert [format_size(n) for n in (0, 1000, 1024, 3 << 20, 8 << 30)] == [
        "0",
        "1000",
        "1K",
        "3M",
        "8G",
    ]


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("7000", [7000]),
        (7000, [7000]),
        ("7000-7002", [7000, 7001, 7002]),
        ("7000 - 7000", [7000]),
        ("0", [0]),
    ],
)
def test_a_port_range_holds_both_ends(text: object, ports: list[int]) -> None:
    assert list(PortRange.parse(text)) == ports


def test_only_port_zero_means_any() -> None:
    assert PortRange.parse("0").any
    assert not PortRange.parse("1-2").any


@pytest.mark.parametrize("text", ["", "x", "70000", "7-3", "0-10", "1-2-3", "-1", "٣", True, 1.5])
def test_what_is_no_port_range_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="port"):
        PortRange.parse(text)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("node-1", "node-1", 0),
        ("node-1:7000", "node-1", 7000),
        ("10.0.0.1:7000", "10.0.0.1", 7000),
        ("[::1]:7000", "::1", 7000),
        ("[fe80::1%eth0]:7000", "fe80::1%eth0", 7000),
        ("::1", "::1", 0),
        ("[::1]", "::1", 0),
    ],
)
def test_an_address_is_a_host_and_perhaps_a_port(text: str, host: str, port: int) -> None:
    assert HostPort.parse(text) == HostPort(host, port)


@pytest.mark.parametrize(
    "text", ["", ":7000", "a b", "[::1", "[::1]7000", "a:b", "a:70000", "a/b", 7]
)
def test_what_is_no_address_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="address|port|IPv6"):
        HostPort.parse(text)


@pytest.mark.parametrize("text", ["node-1:7000", "[::1]:7000", "node-1"])
def test_an_address_reads_as_it_was_written(text: str) -> None:
    assert str(HostPort.parse(text)) == text


@pytest.mark.parametrize("text", ["node-1", "node-1:0"])
def test_a_service_needs_its_port(text: str) -> None:
    with pytest.raises(ValueError, match="port is missing"):
        HostPort.parse_with_port(text)
