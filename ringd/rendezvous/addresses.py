"""What an advertised address can be reached from."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether ``host`` reaches only its own machine; of names only "localhost" is known."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def is_any(host: str) -> bool:
    """Whether ``host`` means all addresses of a machine, so that nobody can dial it."""
    return host in ("0.0.0.0", "::")


def loopback_text(rank: int, address: object, other: str) -> str:
    """One wording for a fault that two places find."""
    return (
        f"rank {rank} advertises loopback ({address}), which {other} can't reach; "
        f"set the advertised address of rank {rank} to one that its peers can reach"
    )
