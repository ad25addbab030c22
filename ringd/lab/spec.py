"""What a lab is to be: how many hosts, which links, which quirks. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from ringd.errors import InvalidArgumentError

Switch = Literal["auto", "kernel", "netem", "user"]
SWITCHES: tuple[Switch, ...] = ("auto", "kernel", "netem", "user")

MAX_HOSTS = 100
PREFIX = "ringd-"
"""What the name of each namespace begins with, so that all of them can be found."""
IPV4, IPV6 = "10.213.78.{}", "fd00:213:78::{:x}"
NOWHERE = "10.213.79.{}"
"""Addresses of interfaces that lead nowhere."""
OWN_LOOPBACK, TWO_INTERFACES, IPV6_ONLY = "own-loopback", "two-interfaces", "ipv6-only"
QUIRKS = {
    OWN_LOOPBACK: "a host's own name is 127.0.1.1 there, as on Debian",
    TWO_INTERFACES: "each host has an eth0 that leads nowhere, which its own name names",
    IPV6_ONLY: "there are IPv6 addresses only",
}

_NAME = re.compile(r"[a-z0-9_]{1,32}")
_NUMBER = r"(\d+(?:\.\d+)?)"
_RATE = re.compile(_NUMBER + r"\s*([kmg]?)bit", re.IGNORECASE)
_RATES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_DURATION = re.compile(_NUMBER + r"\s*(us|ms|s)")
_DURATIONS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_PERCENT = re.compile(_NUMBER + r"\s*%")


def parse_rate(text: str) -> int:
    """Bits per second: "1gbit", "100mbit", "2.5gbit"; decimal units, as ``tc`` has them.

    Raises:
        InvalidArgumentError: no such rate, or less than 100 kbit.
    """
    found = _RATE.fullmatch(text.strip())
    rate = int(float(found[1]) * _RATES[found[2].lower()]) if found else 0
    if rate < 100_000:
        raise InvalidArgumentError(f"{text!r} is no rate from 100kbit on, like 1gbit or 100mbit")
    return rate


def parse_duration(text: str) -> float:
    """Seconds: "1ms", "250us", "0.5s", or "0".

    Raises:
        InvalidArgumentError: no such duration, or more than 10 s.
    """
    found = _DURATION.fullmatch(text.strip())
    duration = float(found[1]) * _DURATIONS[found[2]] if found else math.inf
    if text.strip() == "0":
        return 0.0
    if duration > 10.0:
        raise InvalidArgumentError(f"{text!r} is no duration up to 10s, like 1ms or 250us")
    return duration


def parse_loss(text: str) -> float:
    """A share from 0 to 1: "0.1%", or "0".

    Raises:
        InvalidArgumentError: no such share.
    """
    found = _PERCENT.fullmatch(text.strip())
    share = float(found[1]) / 100 if found else math.inf
    if text.strip() == "0":
        return 0.0
    if share > 1.0:
        raise InvalidArgumentError(f"{text!r} is no share of packets, like 0.1%")
    return share


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSpec:
    """A LAN: hosts 0 to N-1, each with a cable to one switch.

    Attributes:
        name: of the lab; several may stand beside each other.
        rate_bps: of each cable, in each direction, in bits per second; 0: as quick as it goes.
        delay_s: of a packet from one host to another, in each direction.
        jitter_s: the delay is so much more or less, evenly; packets of one pair keep their order.
        loss: the share of packets that are lost.
        mtu: 0: 1500 where the kernel is the switch, else 9000.
        switch: who passes packets on. "kernel": a bridge; "netem": a bridge whose ports have delay,
            jitter and loss by ``tc netem``; "user": a program. "auto": the first of them that can
            do what is asked, which of a kernel's netem only :meth:`settled` knows.
        quirks: of all hosts; see :data:`QUIRKS`.

    Raises:
        InvalidArgumentError: there can be no such lab.
    """

    hosts: int
    name: str = "lab"
    rate_bps: int = 0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    mtu: int = 0
    switch: Switch = "auto"
    quirks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidArgumentError(f"a lab's name has a to z, 0 to 9 and _, not {self.name!r}")
        if not 1 <= self.hosts <= MAX_HOSTS:
            raise InvalidArgumentError(f"a lab has 1 to {MAX_HOSTS} hosts, not {self.hosts}")
        if self.mtu and not 1280 <= self.mtu <= 65_000:
            raise InvalidArgumentError(f"an MTU is 1280 to 65000 bytes, not {self.mtu}")
        if self.jitter_s > self.delay_s:
            raise InvalidArgumentError(
                "the jitter is more than the delay: lower it, or raise the delay"
            )
        for quirk in self.quirks:
            if quirk not in QUIRKS:
                raise InvalidArgumentError(f"{quirk!r} is unknown; known: {', '.join(QUIRKS)}")
        if {TWO_INTERFACES, IPV6_ONLY} <= set(self.quirks):
            raise InvalidArgumentError(
                "the interface that leads nowhere has an IPv4 address only: leave ipv6 out"
            )
        if self.switch == "kernel" and self.has_weather:
            raise InvalidArgumentError(
                "the kernel's switch has no delay, jitter or loss: leave them out, or take "
                "--switch user"
            )

    @property
    def has_weather(self) -> bool:
        """Whether packets are late or lost in it, from the start."""
        return bool(self.delay_s or self.jitter_s or self.loss)

    @property
    def in_kernel(self) -> bool:
        """Whether the kernel's bridge is the switch, with or without netem, and not a program."""
        if self.switch == "auto":
            return not self.has_weather
        return self.switch != "user"

    def settled(self, *, netem: bool) -> LabSpec:
        """The same on a kernel that has netem, or has not: its switch is no longer "auto"."""
        if self.switch != "auto":
            return self
        weather: Switch = "netem" if netem else "user"
        return replace(self, switch=weather if self.has_weather else "kernel")

    @property
    def frame_bytes(self) -> int:
        """The largest packet, without its Ethernet header."""
        return self.mtu or (1500 if self.in_kernel else 9000)

    @property
    def queue_bytes(self) -> int:
        """What waits at the end of a cable before packets are lost: 10 ms of it, and 128 KiB."""
        return max(128 * 1024, self.rate_bps // 800)

    def namespace(self, host: int | None) -> str:
        """The network namespace of a host, or (None) of the switch."""
        return f"{PREFIX}{self.name}-{'switch' if host is None else host}"

    def host_name(self, host: int) -> str:
        """What the host calls itself, and is called by the others."""
        return f"host{host}"

    def address(self, host: int) -> str:
        """Where the others reach it."""
        return (IPV6 if IPV6_ONLY in self.quirks else IPV4).format(host + 1)

    @property
    def interface(self) -> str:
        """The interface that the others reach, the same on each host."""
        return "eth1" if TWO_INTERFACES in self.quirks else "eth0"

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LabSpec:
        """The reverse of :meth:`to_json`."""
        return cls(**data | {"quirks": tuple(data["quirks"])})


def parse_lab(text: str, **more: Any) -> LabSpec:
    """A lab in one word: "4x1gbit", "8x1gbit,delay=1ms,loss=0.1%", "4".

    After the comma: delay, jitter, loss, mtu, switch.

    Raises:
        InvalidArgumentError: no such lab.
    """
    first, *rest = text.split(",")
    count, _, rate = first.strip().partition("x")
    if not count.isdecimal():
        raise InvalidArgumentError(f"{text!r} is no lab: HOSTSxRATE, like 4x1gbit,delay=1ms")
    found: dict[str, Any] = {"hosts": int(count)}
    if rate:
        found["rate_bps"] = parse_rate(rate)
    for word in rest:
        key, _, value = word.strip().partition("=")
        found |= _option(key, value)
    return LabSpec(**found, **more)


def _option(key: str, value: str) -> dict[str, Any]:
    match key:
        case "delay" | "jitter":
            return {f"{key}_s": parse_duration(value)}
        case "loss":
            return {"loss": parse_loss(value)}
        case "mtu" if value.isdecimal():
            return {"mtu": int(value)}
        case "switch" if value in SWITCHES:
            return {"switch": value}
    raise InvalidArgumentError(f"{key}={value} says nothing of a lab: delay, jitter, loss, mtu, …")


def check_hosts(spec: LabSpec, hosts: Iterable[int]) -> list[int]:
    """The hosts, if the lab has them all.

    Raises:
        InvalidArgumentError: it has not.
    """
    found = list(hosts)
    for host in found:
        if not 0 <= host < spec.hosts:
            raise InvalidArgumentError(
                f"the lab {spec.name!r} has hosts 0 to {spec.hosts - 1}, not {host}"
            )
    return found
