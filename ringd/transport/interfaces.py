"""Addresses of network interfaces, by name."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from pathlib import Path

from ringd.errors import ConfigError

_SIOCGIFADDR = 0x8915
_IF_INET6 = Path("/proc/net/if_inet6")


def interface_address(name: str, ip_version: str = "any") -> str:
    """The address of interface ``name``: IPv4 where it has one, unless ``ip_version`` is "6".

    Raises:
        ConfigError: no such interface, or none of its addresses is of that version; the text
            lists the interfaces there are.
    """
    if ip_version != "6":
        found = _ipv4(name)
        if found:
            return found
    if ip_version != "4":
        found = _ipv6(name)
        if found:
            return found
    names = ", ".join(n for _, n in socket.if_nameindex())
    raise ConfigError(
        f"interface {name!r} has no address for ip_version {ip_version!r}; "
        f"interfaces here: {names}",
        key="interface",
    )


def refused_host(host: str, family: int = socket.AF_UNSPEC) -> str:
    """Why nobody can listen at ``host`` here, with the addresses that this host has; "": one can.

    Args:
        host: an address, or a name.
        family: of sockets; AF_UNSPEC: any.
    """
    try:
        found = socket.getaddrinfo(host, 0, family=family, type=socket.SOCK_STREAM)
        with socket.socket(found[0][0], socket.SOCK_STREAM) as probe:
            probe.bind(found[0][4])
    except socket.gaierror as exc:
        return f"no address of this name is known ({exc.strerror}); {_addresses_text()}"
    except OSError as exc:
        why = os.strerror(exc.errno) if exc.errno else str(exc)
        return f"can't listen there ({why}); {_addresses_text()}"
    return ""


def _addresses_text() -> str:
    found = [f"{a} ({name})" for _, name in socket.if_nameindex() for a in _of(name)]
    return f"this host has {', '.join(found) or 'no address'}"


def _of(name: str) -> list[str]:
    return [address for address in (_ipv4(name), _ipv6(name)) if address]


def _ipv4(name: str) -> str:
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            reply = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return ""
    return socket.inet_ntoa(reply[20:24])


def _ipv6(name: str) -> str:
    """A global address if there is one (a link-local one would need a scope at every peer)."""
    try:
        lines = _IF_INET6.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        digits, _, _, _, _, owner = line.split()
        address = ipaddress.IPv6Address(int(digits, 16))
        if owner == name and not address.is_link_local:
            return str(address)
    return ""
