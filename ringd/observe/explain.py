"""Where the ranks' flight recorders part: a pure function of their dumps.

In each group the ranks' operations are laid side by side by seq. One that every rank did alike is
agreed on; any other is a parting. What matters is the first parting after the last agreement: what
came before it was overcome.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ringd.errors import InvalidArgumentError
from ringd.observe.records import DONE, FAILED, IN_FLIGHT, Loss, Op, RankDump
from ringd.vocabulary import ANY_SOURCE, RECV, SEND

NEVER, LEFT, NO_DUMP = "never entered", "left", "no dump"
FORGOTTEN, OLDER = "forgotten", "dump is older"
_ABSENT = (NEVER, LEFT)
_FOLLOWS_A_LOSS = ("peer_lost", "membership_changed")
"""Errors of calls that a loss, or a wish for the next epoch, cut short."""

MISMATCH, MISSING, ERROR, UNFINISHED, BEHIND = (
    "mismatch", "never entered", "failed", "unfinished", "behind",
)  # fmt: skip
_GRAVITY = (MISMATCH, MISSING, ERROR, UNFINISHED, BEHIND)
MAX_PARTINGS = 100
MAX_MESSAGES = 100


@dataclass(frozen=True, slots=True)
class Entry:
    """One rank at one place in a group's order.

    Attributes:
        state: "done", "failed", "in flight", "never entered", "left" (it had said goodbye), "no
            dump" (of this epoch), "forgotten" (too long ago), "dump is older" (than the call).
        op: what it did there, if it is known.
        last: where it did nothing, its last operation in this group.
    """

    rank: int
    state: str
    op: Op | None = None
    last: Op | None = None


@dataclass(frozen=True, slots=True)
class Parting:
    """A place in a group's order where ranks did not all do the same, well.

    Attributes:
        kind: "mismatch" (different calls), "never entered", "failed", "unfinished" (in flight
            everywhere), or "behind" (who has entered is done).
        overcome: all ranks agreed on a later operation.
    """

    group: int
    seq: int
    kind: str
    entries: tuple[Entry, ...]
    overcome: bool

    def ranks(self, *states: str) -> list[int]:
        """The ranks in one of these states."""
        return [entry.rank for entry in self.entries if entry.state in states]

    def late(self) -> list[int]:
        """The ranks that entered when it had failed on another already."""
        ends = [e.op.ended_at for e in self.entries if e.op and e.state == FAILED]
        failed_at = min((end for end in ends if end is not None), default=None)
        if failed_at is None:
            return []
        return [e.rank for e in self.entries if e.op and e.op.entered_at > failed_at]

    @property
    def began_at(self) -> float:
        """When the first rank entered."""
        return min(entry.op.entered_at for entry in self.entries if entry.op is not None)


@dataclass(frozen=True, slots=True)
class Message:
    """A send or a receive that is in flight, or failed.

    Attributes:
        partner: "no dump", "not posted", "posted", "differs" (in dtype or count), "sent" (it is on
            its way), or "any" (a receive from any source).
        other: the other side, where there is one.
    """

    rank: int
    op: Op
    partner: str
    other: Op | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What the dumps say together, of one epoch: the last one, or if nothing went wrong in it the
    last one in which something did.

    Attributes:
        last_epoch: the last one.
        loss: of whom, if that ended the epoch.
        ended: what else did, in words.
        others: other jobs of which there are dumps, with their world sizes; this one's are newer.
        dumps: one per rank; missing: the ranks of which there is none.
        partings: by group and seq; messages: sends and receives that are stuck.
        headline: the parting to look at first, if there is one.
        chain: rank after rank, each waiting on the next; the last one waits for nobody, or
            (``circle``) on one before it.
    """

    job_id: str
    world_size: int
    epoch: int
    dumps: tuple[RankDump, ...]
    missing: tuple[int, ...]
    partings: tuple[Parting, ...]
    messages: tuple[Message, ...]
    headline: Parting | None
    chain: tuple[int, ...]
    circle: bool
    last_epoch: int = 0
    loss: Loss | None = None
    ended: str = ""
    others: tuple[tuple[str, int], ...] = ()

    @property
    def loss_came_first(self) -> bool:
        """Whether what failed in the headline failed because of the loss."""
        if self.loss is None:
            return False
        open_one = self.headline if self.headline and not self.headline.overcome else None
        return open_one is None or _follows_a_loss(open_one.entries)


def explain(dumps: Sequence[RankDump]) -> Report:
    """Lay the ranks' dumps side by side; of several jobs the one with the newest dump counts.

    Raises:
        InvalidArgumentError: there is none.
    """
    if not dumps:
        raise InvalidArgumentError("no dump is here; name files of ringd dump, or folders of them")
    newest = max(dumps, key=lambda dump: dump.taken_at)
    job = (newest.job_id, newest.world_size)
    others = sorted({(d.job_id, d.world_size) for d in dumps} - {job})
    own = [dump for dump in dumps if (dump.job_id, dump.world_size) == job]
    return replace(_latest(own), others=tuple(others))


def _latest(dumps: Sequence[RankDump]) -> Report:
    """Of the last epoch; if nothing went wrong in it, of the last one in which something did."""
    newest = {d.rank: d for d in sorted(dumps, key=lambda dump: dump.taken_at)}
    used = [op.epoch for dump in newest.values() for op in dump.operations]
    last = max(used, default=max(dump.epoch for dump in newest.values()))
    report = _of_epoch(newest, last)
    if _is_wrong(report):
        return report
    ended = {epoch for dump in dumps for epoch in dump.losses} | {dump.epoch for dump in dumps}
    earlier = ended | {op.epoch for dump in dumps for op in dump.operations}
    for epoch in sorted((e for e in earlier if e < last), reverse=True):
        before = _of_epoch(_best_of(dumps, epoch), epoch)
        if before.loss is not None or _has_failed(before):
            return replace(before, last_epoch=last)
    return report


def _of_epoch(dumps: Mapping[int, RankDump], epoch: int) -> Report:
    """What these say of an epoch."""
    any_dump = next(iter(dumps.values()))
    current = {rank: dump for rank, dump in dumps.items() if _knows(dump, epoch)}
    loss = _loss(current, epoch)
    partings = tuple(_partings(current, epoch, _dead(loss)))
    headline = _headline(partings)
    chain, circle = _chain(_waits(current, epoch, headline))
    if circle and not any(_is_waiting(current[rank], epoch) for rank in chain):
        chain, circle = (), False  # they did wait so, until the call failed
    broken = [dump.broken for dump in current.values() if dump.epoch == epoch and dump.broken]
    return Report(
        job_id=any_dump.job_id,
        world_size=any_dump.world_size,
        epoch=epoch,
        dumps=tuple(dumps[rank] for rank in sorted(dumps)),
        missing=tuple(sorted(set(range(any_dump.world_size)) - dumps.keys())),
        partings=partings,
        messages=tuple(_messages(current, epoch))[:MAX_MESSAGES],
        headline=headline,
        chain=chain,
        circle=circle,
        last_epoch=epoch,
        loss=loss,
        ended=broken[0] if broken else "",
    )


def _knows(dump: RankDump, epoch: int) -> bool:
    """Whether a dump can say anything of an epoch: a daemon may have been started after it."""
    of_epoch = epoch in dump.losses or any(known == epoch for known, _ in dump.groups)
    return dump.epoch == epoch or (dump.epoch > epoch and of_epoch)


def _best_of(dumps: Sequence[RankDump], epoch: int) -> dict[int, RankDump]:
    """Each rank's dump that says most of an epoch: one of its own, else of the next after it."""

    def worth(dump: RankDump) -> tuple[bool, int, float]:
        reaches = dump.epoch >= epoch
        return reaches, -dump.epoch if reaches else dump.epoch, dump.taken_at

    return {dump.rank: dump for dump in sorted(dumps, key=worth)}


def _loss(dumps: Mapping[int, RankDump], epoch: int) -> Loss | None:
    """Who was lost in it; what the rendezvous said counts more than one rank's own view."""
    told = [dump.losses[epoch] for _, dump in sorted(dumps.items()) if epoch in dump.losses]
    return min(told, key=lambda loss: loss.partial, default=None)


def _is_wrong(report: Report) -> bool:
    headline = report.headline
    parted = headline is not None and headline.kind != BEHIND
    return parted or bool(report.messages) or report.loss is not None


def _has_failed(report: Report) -> bool:
    """Whether a call failed there that was not only cut short by the next epoch."""
    entries = report.headline.entries if report.headline is not None else ()
    ops = [entry.op for entry in entries if entry.op is not None]
    ops += [message.op for message in report.messages]
    return any(op.state == FAILED and op.error != "membership_changed" for op in ops)


def _follows_a_loss(entries: Sequence[Entry]) -> bool:
    states = {entry.state for entry in entries}
    errors = {entry.op.error for entry in entries if entry.op is not None} - {None}
    return IN_FLIGHT not in states and bool(errors) and errors.issubset(_FOLLOWS_A_LOSS)


# Collectives


def _dead(loss: Loss | None) -> int | None:
    """The rank whose program made no call after its daemon's dump, as it was gone."""
    return loss.rank if loss is not None and loss.case.startswith("trainer") else None


def _partings(dumps: Mapping[int, RankDump], epoch: int, dead: int | None) -> Iterator[Parting]:
    members: dict[int, tuple[int, ...]] = {}
    for dump in dumps.values():
        for (of_epoch, group), view in dump.groups.items():
            if of_epoch == epoch:
                members[group] = view.ranks
    for group, ranks in sorted(members.items()):
        columns = {r: _Column(dumps.get(r), epoch, group, r == dead) for r in ranks}
        gone = _gone(dumps, epoch, group)
        seqs = sorted({seq for column in columns.values() for seq in column.ops})
        rows = [(seq, _row(seq, columns, gone)) for seq in seqs]
        kinds = [_kind(row) for _, row in rows]
        agreed = [i for i, kind in enumerate(kinds) if kind is None]
        last_agreed = agreed[-1] if agreed else -1
        found = [
            Parting(group, seq, kind, row, overcome=i < last_agreed)
            for i, ((seq, row), kind) in enumerate(zip(rows, kinds, strict=True))
            if kind is not None
        ]
        yield from [p for p in found if p.overcome][-MAX_PARTINGS:]
        yield from [p for p in found if not p.overcome][:MAX_PARTINGS]


def _gone(dumps: Mapping[int, RankDump], epoch: int, group: int) -> dict[int, int]:
    """Ranks that said goodbye, and the seq from which on they take no part."""
    views = [dump.groups.get((epoch, group)) for dump in dumps.values()]
    return {rank: seq for view in views if view is not None for rank, seq in view.left.items()}


class _Column:
    """One rank's operations in one group."""

    def __init__(self, dump: RankDump | None, epoch: int, group: int, dead: bool) -> None:
        self.dump = dump
        self.dead = dead
        own = dump.operations if dump is not None else ()
        self.ops = {
            op.seq: op
            for op in own
            if op.seq is not None and (op.epoch, op.group) == (epoch, group)
        }
        view = dump.groups.get((epoch, group)) if dump is not None else None
        self.last = self.ops[max(self.ops)] if self.ops else None
        self.next_seq = max(self.ops, default=-1) + 1
        if view is not None and view.next_seq is not None:
            self.next_seq = view.next_seq

    def entry(self, rank: int, seq: int, entered_at: float, left_at: int | None) -> Entry:
        """``entered_at``: when the first rank made the call."""
        op = self.ops.get(seq)
        if op is not None:
            return Entry(rank, op.state, op)
        if left_at is not None and seq >= left_at:
            return Entry(rank, LEFT, last=self.last)
        if self.dump is None:
            return Entry(rank, NO_DUMP)
        if seq < self.next_seq or (self.dump.forgotten and not self.ops):
            return Entry(rank, FORGOTTEN)
        older = self.dump.taken_at < entered_at and not self.dead
        return Entry(rank, OLDER if older else NEVER, last=self.last)


def _row(seq: int, columns: Mapping[int, _Column], gone: Mapping[int, int]) -> tuple[Entry, ...]:
    entered_at = min(c.ops[seq].entered_at for c in columns.values() if seq in c.ops)
    return tuple(
        column.entry(rank, seq, entered_at, gone.get(rank))
        for rank, column in sorted(columns.items())
    )


def _kind(row: tuple[Entry, ...]) -> str | None:
    """None: nothing speaks against it that all did the same, well."""
    states = {entry.state for entry in row}
    if len({entry.op.digest for entry in row if entry.op is not None}) > 1:
        return MISMATCH
    if states.intersection(_ABSENT):
        return MISSING if states.intersection((FAILED, IN_FLIGHT)) else BEHIND
    if FAILED in states:
        return ERROR
    return UNFINISHED if IN_FLIGHT in states else None


def _headline(partings: Sequence[Parting]) -> Parting | None:
    """Of each group's first parting that was not overcome the gravest; else the last of all."""
    first: dict[int, Parting] = {}
    for parting in partings:
        if not parting.overcome:
            first.setdefault(parting.group, parting)
    if first:
        return min(first.values(), key=lambda p: (_GRAVITY.index(p.kind), p.began_at))
    return max(partings, key=lambda p: p.began_at, default=None)


# Who waits for whom


def _waits(
    dumps: Mapping[int, RankDump], epoch: int, headline: Parting | None
) -> dict[int, list[int]]:
    """Rank → ranks that it waits on: in what is in flight, or else where it failed.

    Not where different calls met: what failed there had not waited for anybody to come.
    """
    waits: dict[int, list[int]] = {}
    for rank, dump in dumps.items():
        for op in dump.operations:
            any_source = op.seq is None and op.peer == ANY_SOURCE
            if op.state == IN_FLIGHT and op.epoch == epoch and not any_source:
                waits.setdefault(rank, []).extend(op.waiting_on)
    failed = headline is not None and not headline.overcome and headline.kind != MISMATCH
    for entry in headline.entries if headline is not None and failed else ():
        if entry.rank not in waits and entry.op is not None and entry.op.state == FAILED:
            waits[entry.rank] = list(entry.op.waiting_on)
    return {rank: on for rank, on in waits.items() if on}


def _is_waiting(dump: RankDump, epoch: int) -> bool:
    """Whether something is in flight there."""
    return any(op.state == IN_FLIGHT and op.epoch == epoch for op in dump.operations)


def _chain(waits: Mapping[int, Sequence[int]]) -> tuple[tuple[int, ...], bool]:
    """The longest way to one who waits for nobody; without any, a circle."""
    paths = [_path(rank, waits) for rank in sorted(waits)]
    ends = [path for path in paths if path[-1] not in waits]
    if ends:
        return max(ends, key=len), False
    if not paths:
        return (), False
    path = paths[0]
    return path[path.index(path[-1]) :], True


def _path(rank: int, waits: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """From ``rank`` on, to one who waits for nobody or is on the path already."""
    path = [rank]
    while path[-1] in waits and path[-1] not in path[:-1]:
        path.append(min(waits[path[-1]], key=lambda peer: (peer in waits, peer in path, peer)))
    return tuple(path)


# Messages


def _messages(dumps: Mapping[int, RankDump], epoch: int) -> Iterator[Message]:
    for rank, dump in sorted(dumps.items()):
        for op in dump.operations:
            if op.seq is None and op.epoch == epoch and op.state in (IN_FLIGHT, FAILED):
                yield _stuck(rank, op, dumps)


def _stuck(rank: int, op: Op, dumps: Mapping[int, RankDump]) -> Message:
    if op.peer == ANY_SOURCE:
        return Message(rank, op, "any")
    if op.peer not in dumps:
        return Message(rank, op, NO_DUMP)
    theirs = [
        other
        for other in dumps[op.peer].operations
        if other.op == (RECV if op.op == SEND else SEND)
        and (other.epoch, other.group, other.tag) == (op.epoch, op.group, op.tag)
        and other.peer in (rank, ANY_SOURCE)
    ]
    waiting = [other for other in theirs if other.state == IN_FLIGHT]
    for other in waiting or [o for o in theirs if o.state == FAILED]:
        same = _kind_of(other) == _kind_of(op)
        return Message(rank, op, "posted" if same else "differs", other)
    if op.op == RECV:
        got = [o.number for o in dumps[rank].operations if _is_like(o, op) and o.state == DONE]
        sent = [o for o in theirs if o.number > max(got, default=-1)]
        if sent:
            return Message(rank, op, "sent", sent[0])
    return Message(rank, op, "not posted")


def _is_like(one: Op, other: Op) -> bool:
    return (one.op, one.epoch, one.group, one.peer, one.tag) == (
        other.op, other.epoch, other.group, other.peer, other.tag,
    )  # fmt: skip


def _kind_of(op: Op) -> tuple[str, int]:
    """What both sides of a message must have alike: dtype, and size."""
    dtype = next((word for word in op.call.split() if word.startswith("dtype=")), "")
    return dtype, op.bytes_total
