"""From a daemon's control message to an event: every field is checked, whoever sent it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ringd.rendezvous.events import (
    DaemonJoined,
    DaemonLeft,
    FromDaemon,
    Heartbeat,
    LinkLost,
    LinkWanted,
    OpFailed,
    TrainerAttached,
    TrainerDetached,
)
from ringd.transport.base import Address
from ringd.wire.control import field, int_list
from ringd.wire.frame import FrameError

MAX_TEXT = 4096
"""Characters of a reason or a detail that are passed on."""
MAX_PAIRS = 8192
_HOWS = frozenset({"goodbye", "died", "raised", "gave_up"})

Fields = dict[str, Any]


def event_of(rank: int, kind: str, fields: Fields) -> FromDaemon | None:
    """The event that the message ``kind`` of this rank's daemon is; None: it is not one.

    Raises:
        FrameError: a field is missing or malformed.
    """
    reader = _READERS.get(kind)
    return reader(rank, fields) if reader is not None else None


def address_of(value: object) -> Address:
    """The address that ``[host, port]`` describes.

    Raises:
        FrameError: it is something else, or the port is out of range.
    """
    if isinstance(value, list) and len(value) == 2:
        host, port = value
        fits = isinstance(host, str) and 0 < len(host) <= 255 and type(port) is int
        if fits and 0 < port < 65536:
            return Address(host, port)
    raise FrameError(f"not an address [host, port]: {str(value)[:100]}")


def clip(text: str) -> str:
    """Bounded, for what is passed on to all."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def pairs(fields: Fields, name: str) -> tuple[tuple[int, int], ...]:
    """A list of pairs of whole numbers.

    Raises:
        FrameError: it is something else, or longer than MAX_PAIRS.
    """
    found = field(fields, name, list)
    if len(found) > MAX_PAIRS:
        raise FrameError(f"{name}: more than {MAX_PAIRS} entries")
    for entry in found:
        well_formed = isinstance(entry, list) and len(entry) == 2
        if not well_formed or not all(type(number) is int for number in entry):
            raise FrameError(f"{name}: not a list of pairs of whole numbers")
    return tuple((first, second) for first, second in found)


def _join(rank: int, fields: Fields) -> FromDaemon:
    return DaemonJoined(
        rank,
        address_of(fields.get("address")),
        pid=field(fields, "pid", int),
        host=field(fields, "host", str)[:255],
        version=field(fields, "version", str)[:64],
        sizes=tuple(int_list(fields, "sizes")),
    )


def _attach(rank: int, fields: Fields) -> FromDaemon:
    attempt = field(fields, "attempt", int)
    if attempt < 1:
        raise FrameError("attach: attempts count from 1")
    return TrainerAttached(rank, attempt)


def _detach(rank: int, fields: Fields) -> FromDaemon:
    how: Any = field(fields, "how", str)
    if how not in _HOWS:
        raise FrameError(f"detach: unknown way to go {how[:32]!r}")
    detail = clip(field(fields, "detail", str))
    epoch, next_seq = field(fields, "epoch", int), field(fields, "next_seq", int)
    return TrainerDetached(rank, how, detail, epoch, next_seq, pairs(fields, "groups"))


def _link_lost(rank: int, fields: Fields) -> FromDaemon:
    reason = clip(field(fields, "reason", str))
    return LinkLost(rank, field(fields, "peer", int), reason, field(fields, "epoch", int))


def _op_failed(rank: int, fields: Fields) -> FromDaemon:
    names = ("epoch", "group", "lowest", "seq")
    epoch, group, lowest, seq = (field(fields, name, int) for name in names)
    return OpFailed(rank, epoch, group, lowest, seq, field(fields, "error", dict))


_READERS: dict[str, Callable[[int, Fields], FromDaemon]] = {
    "join": _join,
    "attach": _attach,
    "detach": _detach,
    "link_lost": _link_lost,
    "op_failed": _op_failed,
    "want_link": lambda rank, fields: LinkWanted(rank, field(fields, "peer", int)),
    "heartbeat": lambda rank, fields: Heartbeat(rank),
    "leave": lambda rank, fields: DaemonLeft(rank),
}
