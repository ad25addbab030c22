"""Addresses by the name of an interface."""

from __future__ import annotations

import pytest

from ringd.errors import ConfigError
from ringd.transport.interfaces import interface_address, refused_host


def test_the_loopback_interface_has_its_address() -> None:
    assert interface_address("lo") == "127.0.0.1"
    assert interface_address("lo", "4") == "127.0.0.1"


def test_the_loopback_interface_has_its_ipv6_address_where_there_is_ipv6() -> None:
    try:
        assert interface_address("lo", "6") == "::1"
    except ConfigError:
        pytest.skip("this machine has no IPv6")


@pytest.mark.parametrize("name", ["nosuch0", "", "a-name-that-is-far-too-long-for-one"])
def test_an_interface_that_is_not_there_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(ConfigError, match=r"interfaces here: .*\blo\b"):
        interface_address(name)


def test_a_host_of_another_machine_is_refused_with_the_addresses_that_there_are() -> None:
    assert refused_host("127.0.0.1") == refused_host("localhost") == ""
    why = refused_host("198.51.100.7")
    assert why.startswith("can't listen there (Cannot assign requested address); this host has ")
    assert "127.0.0.1 (lo)" in why
    assert "no address of this name" in refused_host("no.such.host.invalid")
