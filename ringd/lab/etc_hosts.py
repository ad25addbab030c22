"""What a host believes of names: the text of its /etc/hosts. Pure."""

from __future__ import annotations

from ringd.lab.spec import NOWHERE, OWN_LOOPBACK, TWO_INTERFACES, LabSpec


def etc_hosts(spec: LabSpec, host: int) -> str:
    """The file of one host: itself, as its quirks have it, and all others as they are."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    for other in range(spec.hosts):
        address = own_address(spec, host) if other == host else spec.address(other)
        lines.append(f"{address} {spec.host_name(other)}")
    return "\n".join(lines) + "\n"


def own_address(spec: LabSpec, host: int) -> str:
    """What a host's own name is to itself."""
    if OWN_LOOPBACK in spec.quirks:
        return "127.0.1.1"
    if TWO_INTERFACES in spec.quirks:
        return NOWHERE.format(host + 1)
    return spec.address(host)
