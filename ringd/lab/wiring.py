"""Namespaces, cables and addresses of a lab, made with ``ip``; ``queues`` has rates and weather.

The switch stands in a namespace of its own, so no firewall of this machine sees what it passes on.
Port K of the switch is one end of host K's cable, whose other end is the host's interface.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from ringd.lab.etc_hosts import etc_hosts
from ringd.lab.spec import IPV6_ONLY, NOWHERE, PREFIX, TWO_INTERFACES, LabSpec
from ringd.lab.tools import ip

ETC = Path("/etc/netns")
"""``ip netns exec`` lays what is there for a namespace over /etc."""
_NETNS = Path("/run/netns")
"""Where ``ip netns`` keeps them."""


def make_namespaces(spec: LabSpec) -> None:
    """All namespaces, each with its own /etc/hosts.

    Raises:
        UnsupportedPlatformError: the system does not let us.
    """
    everybody = [None, *range(spec.hosts)]
    ip("", [f"netns add {spec.namespace(host)}" for host in everybody])
    for host in range(spec.hosts):
        folder = ETC / spec.namespace(host)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts").write_text(etc_hosts(spec, host))
        # A host has no name server to ask: an unknown name fails at once.
        (folder / "resolv.conf").write_text("")


def cables_to_bridge(spec: LabSpec) -> None:
    """The kernel is the switch: a cable from each host to a bridge."""
    switch = spec.namespace(None)
    lines = ["link add bridge0 type bridge", "link set bridge0 up"]
    for host in range(spec.hosts):
        peer = f"name {spec.interface} netns {spec.namespace(host)}"
        lines += [
            f"link add {port(host)} mtu {spec.frame_bytes} type veth peer {peer}",
            f"link set {port(host)} master bridge0 up",
        ]
    ip(switch, lines)


def cables_to_program(spec: LabSpec) -> None:
    """A program is the switch, and has made an interface for each host: they move there."""
    ip(
        spec.namespace(None),
        [
            f"link set {port(host)} netns {spec.namespace(host)} name {spec.interface}"
            for host in range(spec.hosts)
        ],
    )


def address_hosts(spec: LabSpec) -> None:
    """Interfaces get addresses and come up; so does what leads nowhere.

    Hosts know each other's Ethernet addresses from the start and for ever. With ARP the kernel
    would tell, 3 s after a host was cut off, that there is none; behind a router nobody tells.
    """
    bits = 64 if IPV6_ONLY in spec.quirks else 24
    for host in range(spec.hosts):
        lines = ["link set lo up"]
        if TWO_INTERFACES in spec.quirks:
            lines += [
                f"link add eth0 type veth peer name nowhere{host} netns {spec.namespace(None)}",
                f"address add {NOWHERE.format(host + 1)}/24 dev eth0",
                "link set eth0 up",
            ]
        # nodad: the address is not to wait a second for somebody who has it as well.
        nodad = " nodad" if bits == 64 else ""
        lines += [
            f"link set {spec.interface} mtu {spec.frame_bytes} address {mac(host)}",
            f"link set {spec.interface} up",
            f"address add {spec.address(host)}/{bits} dev {spec.interface}{nodad}",
        ]
        lines += [
            f"neighbour add {spec.address(other)} lladdr {mac(other)} dev {spec.interface}"
            for other in range(spec.hosts)
            if other != host
        ]
        ip(spec.namespace(host), lines)
    if TWO_INTERFACES in spec.quirks:
        ip(spec.namespace(None), [f"link set nowhere{host} up" for host in range(spec.hosts)])


def set_plugged(spec: LabSpec, host: int, plugged: bool) -> None:
    """Whether the kernel's switch knows the host's cable; no end of it notices the difference."""
    how = "master bridge0" if plugged else "nomaster"
    ip(spec.namespace(None), [f"link set {port(host)} {how}"])


def port(host: int) -> str:
    """The switch's end of a host's cable."""
    return f"port{host}"


def mac(host: int) -> str:
    """A host's Ethernet address, which says who it is."""
    return f"02:00:00:00:00:{host:02x}"


# ---------------------------------------------------------------- what is there


def namespaces(name: str) -> list[str]:
    """The namespaces of a lab that there are, also of one that was half made or half ended."""
    if not _NETNS.is_dir():
        return []
    prefix = f"{PREFIX}{name}-"
    return sorted(path.name for path in _NETNS.iterdir() if path.name.startswith(prefix))


def pids(name: str) -> list[int]:
    """The processes in a lab's namespaces."""
    inodes = {(_NETNS / namespace).stat().st_ino for namespace in namespaces(name)}
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                if os.stat(f"/proc/{entry.name}/ns/net").st_ino in inodes:
                    found.append(int(entry.name))
    return found


def remove(name: str) -> None:
    """All namespaces of a lab, with all that is in them, and what lies under /etc for them."""
    found = namespaces(name)
    if found:
        ip("", [f"netns delete {namespace}" for namespace in found])
    for folder in ETC.glob(f"{PREFIX}{name}-*"):
        shutil.rmtree(folder, ignore_errors=True)
    _remove_if_empty(ETC)


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
