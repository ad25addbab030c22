"""Who waits for whom, through collectives and messages, to who waits for nobody: pure.

A message is waited for where its other side was not posted. Where it was, both ranks have done
their part, and what lacks is between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ringd.observe.explain_report import ABSENT, MISMATCH, NO_DUMP, Message, Parting
from ringd.observe.outcomes import FAILED, IN_FLIGHT
from ringd.observe.records import Op, RankDump

_UNMET = ("not posted", NO_DUMP)
"""Other sides of a message that its rank waits for."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A call that a rank waits in.

    Attributes:
        call: group and seq; None: a message.
        on: the ranks it waits on, at least one.
    """

    call: tuple[int, int] | None
    on: tuple[int, ...]


Waits = Mapping[int, Sequence[Wait]]
"""By rank; who waits for nobody is not in it."""


def waits_of(
    dumps: Mapping[int, RankDump],
    epoch: int,
    headline: Parting | None,
    messages: Iterable[Message],
) -> Waits:
    """Who waits in what is in flight, or else waited where it failed.

    Not where different calls met: what failed there had not waited for anybody to come.
    """
    unmet = [m for m in messages if m.partner in _UNMET]
    found: dict[int, list[Wait]] = {}
    ops: dict[int, list[Op]] = {}
    for rank, dump in dumps.items():
        calls = [op for op in dump.operations if op.seq is not None and op.epoch == epoch]
        ops[rank] = calls + [m.op for m in unmet if m.rank == rank]
        found[rank] = _waits(op for op in ops[rank] if _is_open(op, epoch))
    if headline is not None and not headline.overcome and headline.kind != MISMATCH:
        for entry in headline.entries:
            if not found.get(entry.rank):
                then = [op for op in ops.get(entry.rank, ()) if _spans(op, headline)]
                failed = entry.op is not None and entry.state == FAILED
                found[entry.rank] = _waits([entry.op] if entry.op and failed else then)
    return {rank: waits for rank, waits in found.items() if waits}


def chain_of(waits: Waits, headline: Parting | None) -> tuple[tuple[int, ...], bool]:
    """The longest of the ways to one who waits for nobody; without any, a circle.

    From the ranks that are in the headline, if it is open and they wait; else from all.
    """
    is_open = headline is not None and not headline.overcome
    entered = [e.rank for e in headline.entries if e.op is not None] if headline else []
    starts = [rank for rank in entered if is_open and rank in waits] or sorted(waits)
    ways = [way for rank in starts if (way := _way(rank, waits))]
    if ways:
        return max(ways, key=len), False
    return (_circle(starts[0], waits), True) if starts else ((), False)


def roots_of(waits: Waits, headline: Parting | None) -> tuple[int, ...]:
    """Who waits for nobody, on all ways from those that never entered the headline; without an
    open one, on all ways there are."""
    if headline is not None and not headline.overcome:
        ahead = headline.ranks(*ABSENT)
    else:
        ahead = list(waits)
    seen: set[int] = set()
    while ahead:
        rank = ahead.pop()
        if rank not in seen:
            seen.add(rank)
            ahead += [peer for wait in waits.get(rank, ()) for peer in wait.on]
    return tuple(sorted(seen - waits.keys()))


def instead_of(
    dumps: Mapping[int, RankDump], epoch: int, headline: Parting | None
) -> dict[int, Op]:
    """What those that never entered the headline have in flight, or had while it was waited in;
    of several the oldest."""
    found: dict[int, Op] = {}
    for rank in headline.ranks(*ABSENT) if headline is not None and not headline.overcome else ():
        own = dumps[rank].operations if rank in dumps else ()
        now = [op for op in own if _is_open(op, epoch)]
        then = [op for op in own if op.epoch == epoch and headline and _spans(op, headline)]
        if now or then:
            found[rank] = min(now or then, key=lambda op: op.entered_at)
    return found


def _is_open(op: Op, epoch: int) -> bool:
    return op.state == IN_FLIGHT and op.epoch == epoch


def _waits(ops: Iterable[Op]) -> list[Wait]:
    """Of these the ones that wait on a rank."""
    return [
        Wait(None if op.seq is None else (op.group, op.seq), op.waiting_on)
        for op in ops
        if op.waiting_on
    ]


def _spans(op: Op, headline: Parting) -> bool:
    """Whether what failed was in flight for most of the time until the headline did."""
    began, failed = headline.began_at, headline.failed_at
    if op.state != FAILED or op.ended_at is None or failed is None:
        return False
    return min(op.ended_at, failed) - max(op.entered_at, began) > (failed - began) / 2


def _way(start: int, waits: Waits) -> tuple[int, ...]:
    """From ``start`` on, depth first, to one who waits for nobody; (): none is there."""
    seen: set[int] = set()
    ahead: list[tuple[int, ...]] = [(start,)]
    while ahead:
        way = ahead.pop()
        if way[-1] not in waits:
            return way
        if way[-1] not in seen:
            seen.add(way[-1])
            ahead += [(*way, peer) for peer in reversed(_onward(way[-1], waits))]
    return ()


def _circle(start: int, waits: Waits) -> tuple[int, ...]:
    """Where the ways from ``start`` on lead, as all lead back."""
    path = [start]
    while path[-1] not in path[:-1]:
        path.append(_onward(path[-1], waits)[0])
    return tuple(path[path.index(path[-1]) :])


def _onward(rank: int, waits: Waits) -> list[int]:
    """Whom it waits on: first who waits elsewhere, then who does not wait, then those that have
    entered the call, too, as they are waited on only for what they lack themselves."""

    def order(wait: Wait, peer: int) -> int:
        theirs = waits.get(peer, ())
        if wait.call is not None and any(wait.call == other.call for other in theirs):
            return 2
        return 0 if theirs else 1

    pairs = [(wait, peer) for wait in waits[rank] for peer in wait.on]
    found = sorted((order(wait, peer), peer) for wait, peer in pairs)
    return list(dict.fromkeys(peer for _, peer in found))
