"""The types of settings: how text becomes a value, its bounds, and the bounds in words.

Plain functions: every daemon reads its settings before anything else, and the import of a library
for that cost each a third of its start.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from ringd.config.values import HostPort, PortRange, Secret, parse_size

MAX_WORLD_SIZE = 4096
MAX_SOCKET_PATH_BYTES = 107
"""Linux: sun_path holds 108 bytes, the last of them NUL."""
MAX_TIMEOUT_S = 7 * 24 * 3600.0
KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

Read = Callable[[Any], Any]
"""From what was given (text; of a file or a flag also a number, truth value, path) to the value.
ValueError: it is none; the text says why."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a value may be, for the program and in words; it stands beside the type."""

    read: Read
    allowed: str


# ---------------------------------------------------------------- reading


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise ValueError("a truth value is no number")
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, int | str):
        raise ValueError("no whole number")
    try:
        return int(value)
    except ValueError:
        raise ValueError("no whole number") from None


def _real(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError("a truth value is no number")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("no number") from None
    if not math.isfinite(number):
        raise ValueError("not finite")
    return number


def _within(read: Read, low: float, high: float, *, above_low: bool = False) -> Read:
    """A number from ``low`` (or just above it) to ``high``, both included."""

    def bounded(value: Any) -> Any:
        number = read(value)
        if number > high:
            raise ValueError(f"more than {high:.15g}")
        if number < low or (above_low and number == low):
            raise ValueError(f"not more than {low:.15g}" if above_low else f"less than {low:.15g}")
        return number

    return bounded


def _segment_size(value: Any) -> Any:
    size_bytes = _within(parse_size, 4 * KIB, 8 * MIB)(value)
    if size_bytes % 64:
        raise ValueError("not a multiple of 64")
    return size_bytes


def _real_time(value: Any) -> Any:
    number = _whole(value)
    if number and not 34 <= number <= 64:
        raise ValueError("not a real-time signal")
    return number


def _flag(value: Any) -> bool:
    word = str(value).strip().lower() if isinstance(value, bool | int | str) else ""
    if word in ("true", "yes", "on", "1", "t", "y"):
        return True
    if word in ("false", "no", "off", "0", "f", "n"):
        return False
    raise ValueError("neither true nor false")


def _matching(pattern: str) -> Read:
    compiled = re.compile(pattern)

    def matched(value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError("no text")
        if not compiled.fullmatch(value):
            raise ValueError("of other letters, or another length")
        return value

    return matched


def _one_of(*words: str) -> Read:
    def chosen(value: Any) -> Any:
        word = str(value).strip().lower() if isinstance(value, str | int) else value
        if word not in words:
            raise ValueError("none of these")
        return word

    return chosen


def _path(value: Any) -> Path:
    if value == "":
        raise ValueError("an empty path")
    if not isinstance(value, str | Path):
        raise ValueError("no path")
    return Path(value).expanduser()


def _socket_path(value: Any) -> Path:
    path = _path(value)
    if len(str(path).encode()) > MAX_SOCKET_PATH_BYTES:
        raise ValueError(f"longer than {MAX_SOCKET_PATH_BYTES} bytes")
    return path


def _host(value: Any) -> Any:
    if value == "":
        return value
    address = HostPort.parse(value)
    if address.port:
        raise ValueError("a port does not belong here: set port")
    return address.host


# ---------------------------------------------------------------- the types

Flag = Annotated[bool, Kind(_flag, "true or false")]
AnyPath = Annotated[Path, Kind(_path, "a path")]
SocketPath = Annotated[Path, Kind(_socket_path, f"a path of at most {MAX_SOCKET_PATH_BYTES} bytes")]
SecretText = Annotated[Secret, Kind(Secret.parse, "text")]
JobId = Annotated[
    str,
    Kind(
        _matching(r"[A-Za-z0-9._-]{1,64}"),
        "1 to 64 of letters, digits, dot, dash, underscore",
    ),
]
Rank = Annotated[
    int,
    Kind(_within(_whole, 0, MAX_WORLD_SIZE - 1), "a whole number from 0 to world_size - 1"),
]
WorldSize = Annotated[
    int,
    Kind(_within(_whole, 1, MAX_WORLD_SIZE), f"a whole number from 1 to {MAX_WORLD_SIZE}"),
]
ProcessId = Annotated[int, Kind(_within(_whole, 1, 2**31 - 1), "the number of a process")]
MinSize = Annotated[
    int,
    Kind(
        _within(_whole, 0, MAX_WORLD_SIZE),
        f"a whole number of ranks up to {MAX_WORLD_SIZE}; 0 is all",
    ),
]
Operations = Annotated[int, Kind(_within(_whole, 1, 65536), "a whole number from 1 to 65536")]
Seconds = Annotated[
    float,
    Kind(
        _within(_real, 0, MAX_TIMEOUT_S, above_low=True),
        f"seconds, more than 0 and at most {MAX_TIMEOUT_S:.0f} (a week)",
    ),
]
MicrosecondsOrOff = Annotated[
    int,
    Kind(_within(_whole, 0, 1_000_000), "whole microseconds up to a second; 0 is off"),
]
StackSignal = Annotated[int, Kind(_real_time, "a real-time signal, 34 to 64; 0 is off")]
MillisecondsOrOff = Annotated[
    int,
    Kind(_within(_whole, 0, int(MAX_TIMEOUT_S * 1000)), "whole milliseconds; 0 is off"),
]
ServiceAddress = Annotated[HostPort, Kind(HostPort.parse_with_port, "host:port or [IPv6]:port")]
AdvertisedAddress = Annotated[HostPort, Kind(HostPort.parse, "host, host:port or [IPv6]:port")]
Host = Annotated[str, Kind(_host, "a local IP address or host name, without a port")]
Ports = Annotated[PortRange, Kind(PortRange.parse, '0 (any), a port, or "7000-7010"')]
Interface = Annotated[
    str, Kind(_matching(r"[^\s/]{0,15}"), "the name of a network interface, like eth0")
]
IpVersion = Annotated[Literal["any", "4", "6"], Kind(_one_of("any", "4", "6"), '"any", "4" or "6"')]
Quorum = Annotated[
    Literal["auto", "majority", "any"],
    Kind(_one_of("auto", "majority", "any"), '"auto", "majority" or "any"'),
]
Congestion = Annotated[
    str,
    Kind(
        _matching(r"[a-z0-9_-]{1,15}"),
        '"auto", "system", or an algorithm of the kernel, like cubic',
    ),
]
SegmentSize = Annotated[  # float32 partial sums of 8M fill 16M frames
    int, Kind(_segment_size, "4K to 8M, a multiple of 64 bytes")
]
EagerSize = Annotated[int, Kind(_within(parse_size, 0, 64 * KIB), "0 to 64K")]
ArenaSize = Annotated[int, Kind(_within(parse_size, MIB, 64 * TIB), "1M to 64T")]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    Kind(_one_of("debug", "info", "warning", "error"), "debug, info, warning or error"),
]
