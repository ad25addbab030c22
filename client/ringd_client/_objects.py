"""Python objects between ranks, as msgpack: never pickle, which would run a peer's code.

The first exchange of each call is one that makes every rank depend on every other, and carries
the lengths: so whatever is wrong with one rank's object, all ranks learn it at the same
operation, and none goes on to a second one alone. Where there is room beside the lengths, it has
the first bytes too, and small objects need no second exchange.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from ringd.errors import (
    CollectiveMismatchError,
    InvalidArgumentError,
    ObjectTooLargeError,
    ProtocolError,
    UnsupportedTypeError,
)
from ringd_client import _collectives as collectives
from ringd_client._calls import Caller
from ringd_client._environment import out_of
from ringd_client._steps import Budget, Steps

DEFAULT_MAX_OBJECT_BYTES: Final = 16 << 20
HEAD_BYTES: Final = 1024
"""What the first exchange moves for one object."""
_TERMS: Final = struct.Struct("<5q")
ROOM_BYTES: Final = HEAD_BYTES - _TERMS.size


@dataclass(frozen=True, slots=True)
class _Terms:
    """What all ranks must say alike, in a form whose bitwise or shows if they do not."""

    limit_bytes: int
    root: int

    def packed(self, length: int) -> bytes:
        return _TERMS.pack(length, self.limit_bytes, ~self.limit_bytes, self.root, ~self.root)

    def length_in(self, caller: Caller, head: bytes) -> int:
        """The length in one rank's head, or in the bitwise or of all.

        Raises:
            CollectiveMismatchError: a rank has other terms.
        """
        length, *terms = _TERMS.unpack_from(head)
        if terms != [self.limit_bytes, ~self.limit_bytes, self.root, ~self.root]:
            raise CollectiveMismatchError(
                "the ranks do not pass the same root and max_object_bytes: here these are "
                f"{self.root if self.root >= 0 else 'none'} and {self.limit_bytes}. "
                "Pass the same on all",
                group=caller.group,
            )
        return int(length)


def all_gather_object(
    caller: Caller,
    obj: Any,
    *,
    max_object_bytes: int = DEFAULT_MAX_OBJECT_BYTES,
    timeout_s: float | None = None,
) -> Steps[list[Any]]:
    """Give every rank the objects of all.

    Objects travel as msgpack: None, bool, int of 64 bits, float, str, bytes, list, dict, and what
    is made of them. Tuples come back as lists, also on the rank that gave them; nothing that
    could run code can be sent.

    Args:
        obj: this rank's.
        max_object_bytes: the cap for one packed object, the same on all ranks (16 MiB).
        timeout_s: for all of it; see the class.

    Returns:
        The objects in rank order.

    Raises, besides what the class says:
        UnsupportedTypeError: (a TypeError) msgpack can't carry it. The peers get
            CollectiveMismatchError that quotes it.
        ObjectTooLargeError: on every rank; it names the rank whose object is over the cap.

    Cost: one all_gather of 1 KiB per rank if no object is larger; else another one of the rest.
    """
    budget = Budget(caller, timeout_s)
    with caller._refusing("all_gather", "all_gather_object"):
        terms = _Terms(_checked_limit(max_object_bytes), -1)
        data = _packed(obj)
        everybody, head = _room(caller.world_size * HEAD_BYTES), _head(terms, data)
    yield budget.bounds(collectives.all_gather(caller, everybody, head, timeout_s=timeout_s))
    heads, lengths = _told(caller, terms, everybody)
    rests = [max(0, length - ROOM_BYTES) for length in lengths]
    tails = [b""] * caller.world_size
    if any(rests):
        with budget.committed("all_gather", "all_gather_object"):
            whole = _room(sum(rests))
            tail = _array(data[ROOM_BYTES:])
            rest = collectives.all_gather(caller, whole, tail, counts=rests)
        yield budget.bounds(rest)
        tails = _cut(whole.tobytes(), rests)
    return _joined(caller, heads, lengths, tails)


def gather_object(
    caller: Caller,
    obj: Any,
    root: int,
    *,
    max_object_bytes: int = DEFAULT_MAX_OBJECT_BYTES,
    timeout_s: float | None = None,
) -> Steps[list[Any] | None]:
    """Give rank ``root`` the objects of all.

    Args:
        obj, max_object_bytes, timeout_s: as for :meth:`all_gather_object`.
        root: a rank of the group, the same on all ranks.

    Returns:
        The objects in rank order on the root, None elsewhere.

    Raises: as :meth:`all_gather_object`.

    Cost: one all_gather of 1 KiB per rank if no object is larger; else also a gather of the rest.
    """
    budget = Budget(caller, timeout_s)
    with caller._refusing("all_gather", "gather_object"):
        terms = _checked_terms(caller, max_object_bytes, root)
        data = _packed(obj)
        everybody, head = _room(caller.world_size * HEAD_BYTES), _head(terms, data)
    yield budget.bounds(collectives.all_gather(caller, everybody, head, timeout_s=timeout_s))
    heads, lengths = _told(caller, terms, everybody)
    rests = [max(0, length - ROOM_BYTES) for length in lengths]
    tails = [b""] * caller.world_size
    is_root = terms.root == caller.rank
    if any(rests):
        with budget.committed("gather", "gather_object"):
            whole = _room(sum(rests)) if is_root else None
            tail = _array(data[ROOM_BYTES:])
            rest = collectives.gather(caller, whole, tail, terms.root, counts=rests)
        yield budget.bounds(rest)
        tails = tails if whole is None else _cut(whole.tobytes(), rests)
    return _joined(caller, heads, lengths, tails) if is_root else None


def broadcast_object(
    caller: Caller,
    obj: Any,
    root: int,
    *,
    max_object_bytes: int = DEFAULT_MAX_OBJECT_BYTES,
    timeout_s: float | None = None,
) -> Steps[Any]:
    """Give every rank the object of rank ``root``.

    Args:
        obj: the object on the root; ignored elsewhere.
        root: a rank of the group, the same on all ranks.
        max_object_bytes, timeout_s: as for :meth:`all_gather_object`.

    Returns:
        The object; on the root too it is a copy.

    Raises: as :meth:`all_gather_object`.

    Cost: one all_reduce of 1 KiB if the object is not larger; else also a broadcast of the rest.
    """
    budget = Budget(caller, timeout_s)
    return (yield from broadcast_within(caller, obj, root, max_object_bytes, timeout_s, budget))


def broadcast_within(
    caller: Caller,
    obj: Any,
    root: int,
    max_object_bytes: int,
    timeout_s: float | None,
    budget: Budget,
) -> Steps[Any]:
    """As :func:`broadcast_object`, as a part of a call with this budget."""
    with caller._refusing("all_reduce", "broadcast_object"):
        terms = _checked_terms(caller, max_object_bytes, root)
        data = _packed(obj) if terms.root == caller.rank else b""
        head = _head(terms, data)
    yield budget.bounds(collectives.all_reduce(caller, head, "bor", timeout_s=timeout_s))
    first = head.tobytes()
    length = terms.length_in(caller, first)
    _check_lengths(caller, terms, {terms.root: length})
    tail = b""
    if length > ROOM_BYTES:
        with budget.committed("broadcast", "broadcast_object"):
            whole = _array(data[ROOM_BYTES:]) if data else _room(length - ROOM_BYTES)
            rest = collectives.broadcast(caller, whole, terms.root)
        yield budget.bounds(rest)
        tail = whole.tobytes()
    return _unpacked(caller, terms.root, _content(first, length) + tail)


def scatter_object(
    caller: Caller,
    objs: Sequence[Any] | None,
    root: int,
    *,
    max_object_bytes: int = DEFAULT_MAX_OBJECT_BYTES,
    timeout_s: float | None = None,
) -> Steps[Any]:
    """Give each rank its object of those that rank ``root`` has.

    Args:
        objs: on the root one object for each rank, in rank order; ignored elsewhere.
        root: a rank of the group, the same on all ranks.
        max_object_bytes, timeout_s: as for :meth:`all_gather_object`.

    Returns:
        This rank's object; on the root too it is a copy.

    Raises: as :meth:`all_gather_object`.

    Cost: an all_reduce of 8 bytes per rank, and a scatter.
    """
    budget = Budget(caller, timeout_s)
    with caller._refusing("all_reduce", "scatter_object"):
        terms = _checked_terms(caller, max_object_bytes, root)
        is_root = terms.root == caller.rank
        packed = _all_packed(caller, objs) if is_root else [b""] * caller.world_size
        lengths = struct.pack(f"<{len(packed)}q", *map(len, packed))
        head = _array(terms.packed(0) + lengths)
    yield budget.bounds(collectives.all_reduce(caller, head, "bor", timeout_s=timeout_s))
    terms.length_in(caller, head.tobytes())
    counts = head[_TERMS.size :].view("<i8").tolist()
    _check_lengths(caller, terms, dict(enumerate(counts)))
    with budget.committed("scatter", "scatter_object"):
        ours = _room(counts[caller.rank])
        whole = _array(b"".join(packed)) if is_root else None
        parts = collectives.scatter(caller, ours, whole, terms.root, counts=counts)
    yield budget.bounds(parts)
    return _unpacked(caller, terms.root, ours.tobytes())


# ------------------------------------------------------------ heads


def _told(caller: Caller, terms: _Terms, everybody: Any) -> tuple[list[bytes], list[int]]:
    """The heads of all ranks, and the lengths of their objects."""
    heads = _cut(everybody.tobytes(), [HEAD_BYTES] * caller.world_size)
    lengths = [terms.length_in(caller, head) for head in heads]
    _check_lengths(caller, terms, dict(enumerate(lengths)))
    return heads, lengths


def _check_lengths(caller: Caller, terms: _Terms, lengths: dict[int, int]) -> None:
    for rank, length in lengths.items():
        if not 0 < length <= terms.limit_bytes:
            world_rank = caller.ranks[rank]
            raise ObjectTooLargeError(
                f"the object of rank {world_rank} has {length:,} bytes as msgpack; "
                f"max_object_bytes is {terms.limit_bytes:,}. Raise it on all ranks, or send less",
                rank=world_rank,
                size_bytes=length,
                limit_bytes=terms.limit_bytes,
            )


def _head(terms: _Terms, data: bytes) -> Any:
    return _array((terms.packed(len(data)) + data[:ROOM_BYTES]).ljust(HEAD_BYTES, b"\0"))


def _content(head: bytes, length: int) -> bytes:
    return head[_TERMS.size : _TERMS.size + min(length, ROOM_BYTES)]


def _joined(
    caller: Caller, heads: list[bytes], lengths: list[int], tails: list[bytes]
) -> list[Any]:
    parts = zip(heads, lengths, tails, strict=True)
    return [
        _unpacked(caller, rank, _content(head, length) + tail)
        for rank, (head, length, tail) in enumerate(parts)
    ]


def _cut(data: bytes, sizes: list[int]) -> list[bytes]:
    cut, at = [], 0
    for size in sizes:
        cut.append(data[at : at + size])
        at += size
    return cut


def _room(size_bytes: int) -> Any:
    import numpy as np

    return np.zeros(size_bytes, np.uint8)


def _array(data: bytes) -> Any:
    import numpy as np

    return np.frombuffer(bytearray(data), np.uint8)


# ------------------------------------------------------------ objects


_CARRIED: Final = "None, bool, int, float, str, bytes, and lists and dicts of them"


def _packed(obj: Any) -> bytes:
    """An object as bytes that every rank can read.

    Raises:
        UnsupportedTypeError: there are none.
    """
    try:
        data: bytes = msgpack.packb(obj)
        _unpack(data)  # a tuple as a key is written, and can't be read
    except Exception as exc:  # msgpack raises several unrelated classes
        if lack := out_of(exc):
            raise lack from exc
        is_array = any(library in str(exc) for library in ("'numpy.", "'torch.", "'Tensor'"))
        hint = "a scalar's .item(), an array's .tolist()" if is_array else _CARRIED
        raise UnsupportedTypeError(f"msgpack can't carry the object: {exc}; pass {hint}") from exc
    return data


def _all_packed(caller: Caller, objs: Any) -> list[bytes]:
    if not isinstance(objs, (list, tuple)) or len(objs) != caller.world_size:
        got = f"{len(objs)} of them" if isinstance(objs, (list, tuple)) else repr(objs)
        raise InvalidArgumentError(
            f"objs is a list of {caller.world_size} objects on the root, one for each rank, "
            f"not {got}"
        )
    return [_packed(obj) for obj in objs]


def _unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, strict_map_key=False)


def _unpacked(caller: Caller, rank: int, data: bytes) -> Any:
    try:
        return _unpack(data)
    except MemoryError:
        raise
    except Exception as exc:
        sender = caller.ranks[rank]
        raise ProtocolError(
            f"what rank {sender} sent is no msgpack: {exc}", rank=sender, group=caller.group
        ) from exc


def _checked_limit(limit: Any) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 < limit < 1 << 62:
        raise InvalidArgumentError(f"max_object_bytes is a positive whole number, not {limit!r}")
    return limit


def _checked_terms(caller: Caller, limit: Any, root: Any) -> _Terms:
    number = caller._planner.kinds.checked_rank("root", root)
    return _Terms(_checked_limit(limit), number)
