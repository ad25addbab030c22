"""Values that are written as text: sizes, ports, host:port, secrets. Pure, no look-up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_PORT = 65535
MAX_WORLD_SIZE = 4096
MAX_SOCKET_PATH_BYTES = 107
"""Linux: sun_path holds 108 bytes, the last of them NUL."""
KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

_UNITS = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?")


def parse_size(value: object) -> int:
    """A number of bytes: 65536, "64K", "1M", "1MiB", "1 GB"; 1K is 1024 in all of them.

    Raises:
        ValueError: not such a size.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError("a size is a whole number of bytes, or 64K, 1M, 1MiB (1K = 1024)")
    return int(found[1]) * _UNITS[found[2].lower()]


def format_size(size_bytes: int) -> str:
    """The shortest text that :func:`parse_size` reads back to the same number."""
    for unit in "TGMK":
        factor = _UNITS[unit.lower()]
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)


def _parse_port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= MAX_PORT):
        raise ValueError(f"a port is 0 to {MAX_PORT}, not {text!r}")
    return int(text)


@dataclass(frozen=True, slots=True)
class PortRange:
    """Ports from ``first`` to ``last``, both included; 0 to 0 means any free port."""

    first: int
    last: int

    @classmethod
    def parse(cls, value: object) -> PortRange:
        """From 7000, "7000" or "7000-7010"; 0 is any free port.

        Raises:
            ValueError: not such a range.
        """
        if isinstance(value, PortRange):
            return value
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError('a port is a number or a range like "7000-7010"')
        first, dash, last = str(value).strip().partition("-")
        low = _parse_port(first.strip())
        high = _parse_port(last.strip()) if dash else low
        if high < low or (dash and low == 0):
            raise ValueError("a port range goes upwards and starts at 1 or more")
        return cls(low, high)

    @property
    def any(self) -> bool:
        """Whether the system is to choose a free port."""
        return self.last == 0

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host (name or IP literal, without brackets) and a port; port 0: not given."""

    host: str
    port: int = 0

    @classmethod
    def parse(cls, value: object) -> HostPort:
        """From "host", "host:port", "[v6]:port" or a bare IPv6 literal.

        Raises:
            ValueError: not such an address.
        """
        if isinstance(value, HostPort):
            return value
        if not isinstance(value, str):
            raise ValueError("an address is text: host:port")
        host, port = _split_host_port(value.strip())
        if not _HOST.fullmatch(host):
            raise ValueError(f"{host!r} is no host name or IP address")
        return cls(host, _parse_port(port) if port is not None else 0)

    @classmethod
    def parse_with_port(cls, value: object) -> HostPort:
        """Like :meth:`parse`, but the port must be there and must not be 0."""
        address = cls.parse(value)
        if not address.port:
            raise ValueError("the port is missing: host:port is wanted")
        return address

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else self.host


class Secret:
    """Text that is not shown by accident: neither its repr nor its str has it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    @classmethod
    def parse(cls, value: object) -> Secret:
        """From text.

        Raises:
            ValueError: no text.
        """
        if not isinstance(value, str):
            raise ValueError("no text")
        return cls(value)

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __str__(self) -> str:
        return "***"


def _split_host_port(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is not [IPv6]:port")
        return host, rest[1:] if rest else None
    if text.count(":") > 1:
        return text, None
    host, colon, port = text.partition(":")
    return host, port if colon else None
