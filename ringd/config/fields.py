"""The types of settings: how text becomes a value, its bounds, and the bounds in words.

Imported where something was given to be checked, and by type checkers: pydantic's import would be
a third of a daemon's start.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, StringConstraints

from ringd.config.values import (
    KIB,
    MAX_SOCKET_PATH_BYTES,
    MAX_WORLD_SIZE,
    MIB,
    TIB,
    HostPort,
    PortRange,
    Secret,
    parse_size,
)

MAX_TIMEOUT_S = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a value may be, in words; it stands beside the type and ends up in error texts."""

    text: str


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a truth value is no number")
    return value


def _real_time(value: int) -> int:
    if value and not 34 <= value <= 64:
        raise ValueError("not a real-time signal")
    return value


def _lower(value: Any) -> Any:
    return str(value).strip().lower() if isinstance(value, str | int) else value


def _path(value: Any) -> Any:
    if value == "":
        raise ValueError("an empty path")
    return Path(value).expanduser() if isinstance(value, str | Path) else value


def _socket_path(value: Any) -> Any:
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


Flag = Annotated[bool, Allowed("true or false")]
AnyPath = Annotated[Path, BeforeValidator(_path), Allowed("a path")]
SocketPath = Annotated[
    Path,
    BeforeValidator(_socket_path),
    Allowed(f"a path of at most {MAX_SOCKET_PATH_BYTES} bytes"),
]
SecretText = Annotated[Secret, PlainValidator(Secret.parse), Allowed("text")]
JobId = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$"),
    Allowed("1 to 64 of letters, digits, dot, dash, underscore"),
]
Rank = Annotated[
    int,
    BeforeValidator(_number),
    Field(ge=0, lt=MAX_WORLD_SIZE),
    Allowed("a whole number from 0 to world_size - 1"),
]
WorldSize = Annotated[
    int,
    BeforeValidator(_number),
    Field(ge=1, le=MAX_WORLD_SIZE),
    Allowed(f"a whole number from 1 to {MAX_WORLD_SIZE}"),
]
ProcessId = Annotated[
    int,
    BeforeValidator(_number),
    Field(ge=1, lt=2**31),
    Allowed("the number of a process"),
]
MinSize = Annotated[
    int,
    BeforeValidator(_number),
    Field(ge=0, le=MAX_WORLD_SIZE),
    Allowed(f"a whole number of ranks up to {MAX_WORLD_SIZE}; 0 is all"),
]
Operations = Annotated[
    int,
    BeforeValidator(_number),
    Field(ge=1, le=65536),
    Allowed("a whole number from 1 to 65536"),
]
Seconds = Annotated[
    float,
    BeforeValidator(_number),
    Field(gt=0, le=MAX_TIMEOUT_S, allow_inf_nan=False),
    Allowed(f"seconds, more than 0 and at most {MAX_TIMEOUT_S:.0f} (a week)"),
]
MicrosecondsOrOff = Annotated[
    int,
    BeforeValidator(_number),
    Field(ge=0, le=1_000_000),
    Allowed("whole microseconds up to a second; 0 is off"),
]
StackSignal = Annotated[
    int,
    BeforeValidator(_number),
    AfterValidator(_real_time),
    Allowed("a real-time signal, 34 to 64; 0 is off"),
]
MillisecondsOrOff = Annotated[
    int,
    BeforeValidator(_number),
    Field(ge=0, le=int(MAX_TIMEOUT_S * 1000)),
    Allowed("whole milliseconds; 0 is off"),
]
ServiceAddress = Annotated[
    HostPort,
    BeforeValidator(HostPort.parse_with_port),
    Allowed("host:port or [IPv6]:port"),
]
AdvertisedAddress = Annotated[
    HostPort,
    BeforeValidator(HostPort.parse),
    Allowed("host, host:port or [IPv6]:port"),
]
Host = Annotated[
    str, BeforeValidator(_host), Allowed("a local IP address or host name, without a port")
]
Ports = Annotated[
    PortRange, BeforeValidator(PortRange.parse), Allowed('0 (any), a port, or "7000-7010"')
]
Interface = Annotated[
    str,
    StringConstraints(pattern=r"^[^\s/]{0,15}$"),
    Allowed("the name of a network interface, like eth0"),
]
IpVersion = Annotated[
    Literal["any", "4", "6"], BeforeValidator(_lower), Allowed('"any", "4" or "6"')
]
Quorum = Annotated[
    Literal["auto", "majority", "any"],
    BeforeValidator(_lower),
    Allowed('"auto", "majority" or "any"'),
]
Congestion = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9_-]{1,15}$"),
    Allowed('"auto", "system", or an algorithm of the kernel, like cubic'),
]
SegmentSize = Annotated[
    int,
    BeforeValidator(parse_size),
    Field(ge=4 * KIB, le=8 * MIB, multiple_of=64),  # float32 partial sums of it fill 16M frames
    Allowed("4K to 8M, a multiple of 64 bytes"),
]
EagerSize = Annotated[
    int, BeforeValidator(parse_size), Field(ge=0, le=64 * KIB), Allowed("0 to 64K")
]
ArenaSize = Annotated[
    int, BeforeValidator(parse_size), Field(ge=MIB, le=64 * TIB), Allowed("1M to 64T")
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    BeforeValidator(_lower),
    Allowed("debug, info, warning or error"),
]
