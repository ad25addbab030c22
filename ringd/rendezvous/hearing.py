"""From control messages to what they tell, for both sides: every field is checked, whoever sent it.

What only a rendezvous is told is in ``intake.py``.
"""

from __future__ import annotations

from typing import Any

from ringd.rendezvous.news import Claim, History, Lost, Start
from ringd.transport.base import Address
from ringd.vocabulary import MAX_WORLD
from ringd.wire.control import field, int_list
from ringd.wire.frame import FrameError
from ringd.wire.raised import Raised

MAX_TEXT = 4096
"""Characters of a reason or a detail that are passed on."""
MAX_PAIRS = 8192
MAX_CLAIMED = 16
"""Verdicts that a claim may quote."""

Fields = dict[str, Any]


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


def raised_in(fields: Fields) -> Raised | None:
    """The field ``exception``, which may be nil, or left out.

    Raises:
        FrameError: it is something else.
    """
    try:
        return Raised.read(fields.get("exception"))
    except ValueError as exc:
        raise FrameError(f"{fields.get('type')}: {exc}") from None


def places_of(fields: Fields, name: str) -> tuple[tuple[int, Address], ...]:
    """Ranks and addresses, from [[rank, host, port], ...].

    Raises:
        FrameError: it is something else, or longer than the largest group.
    """
    places: list[tuple[int, Address]] = []
    for entry in field(fields, name, list):
        if not isinstance(entry, list) or len(entry) != 3 or type(entry[0]) is not int:
            raise FrameError(f"{name}: not a list of [rank, host, port]")
        places.append((entry[0], address_of(entry[1:])))
    if len(places) > MAX_WORLD:
        raise FrameError(f"{name}: more than {MAX_WORLD} entries")
    return tuple(places)


def claim_fields(claim: Claim | None) -> Fields | None:
    """A claim, as it travels in "join"."""
    if claim is None:
        return None
    return {
        "epoch": claim.epoch,
        "members": list(claim.members),
        "running": claim.running,
        "n_verdicts": claim.n_verdicts,
        "lost": [lost.to_fields() for lost in claim.lost[:MAX_CLAIMED]],
        "addresses": [[rank, at.host, at.port] for rank, at in claim.addresses],
    }


def lost_of(fields: object) -> Lost:
    """The verdict that the fields of a message "lost" tell.

    Raises:
        FrameError: a field is missing or malformed.
    """
    if not isinstance(fields, dict):
        raise FrameError("lost: a verdict is a map")
    link = int_list(fields, "link") if fields.get("link") is not None else None
    if link is not None and len(link) != 2:
        raise FrameError("lost: a link has two ends")
    return Lost(
        field(fields, "rank", int),
        clip(field(fields, "case", str)),
        clip(field(fields, "detail", str)),
        field(fields, "epoch", int),
        (link[0], link[1]) if link is not None else None,
        field(fields, "verdict", str)[:64],
        raised_in(fields),
    )


def start_of(fields: Fields) -> Start:
    """The epoch that a message "start" tells.

    Raises:
        FrameError: a field is missing or malformed.
    """
    members = tuple(int_list(fields, "members"))
    return Start(field(fields, "epoch", int), members, _history(fields.get("last")))


def _history(value: object) -> History | None:
    """What "start" says of the epoch before.

    Raises:
        FrameError: it is malformed.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        raise FrameError("start: 'last' is no map")
    return History(
        field(value, "epoch", int),
        tuple(int_list(value, "members")),
        tuple(int_list(value, "survivors")),
        field(value, "completed_by_all", int),
        field(value, "completed_by_any", int),
        pairs(value, "agreed"),
    )


def count_of(verdict: object) -> int:
    """The count in a verdict's id: 7 of "3.7"; 0 of what is no id."""
    tail = str(verdict).rpartition(".")[2]
    return int(tail) if tail.isascii() and tail.isdigit() and len(tail) < 10 else 0


def question_of(fields: Fields) -> Fields:
    """What "inquire_post" asks.

    Raises:
        FrameError: a field is missing or malformed.
    """
    names = ("inquiry", "epoch", "group", "lowest", "rank", "number", "tag")
    asked: Fields = {name: field(fields, name, int) for name in names}
    return {**asked, "op": field(fields, "op", str), "peers": pairs(fields, "peers")}


def post_verdict_of(fields: Fields) -> Fields:
    """What "post_verdict" says.

    Raises:
        FrameError: a field is missing or malformed.
    """
    texts = {name: clip(field(fields, name, str)) for name in ("verdict", "case", "text", "advice")}
    link = None if fields.get("link") is None else int_list(fields, "link")
    lists = {name: int_list(fields, name) for name in ("culprits", "chain")} | {"link": link}
    numbers = {name: field(fields, name, int) for name in ("epoch", "rank", "number")}
    return {**numbers, **texts, **lists, "stacks": field(fields, "stacks", dict)}
