"""Where the ranks' flight recorders part: a pure function of their dumps.

In each group the ranks' operations are laid side by side by seq. One that every rank did alike is
agreed on; any other is a parting. What matters is the first parting after the last agreement: what
came before it was overcome.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ringd.errors import InvalidArgumentError
from ringd.observe.explain_messages import messages
from ringd.observe.explain_report import (
    ABSENT,
    BEHIND,
    ERROR,
    FORGOTTEN,
    GRAVITY,
    LEFT,
    MISMATCH,
    MISSING,
    NEVER,
    NO_DUMP,
    OLDER,
    UNFINISHED,
    Entry,
    Parting,
    Report,
)
from ringd.observe.explain_waits import chain_of, instead_of, roots_of, waits_of
from ringd.observe.outcomes import FAILED, IN_FLIGHT
from ringd.observe.records import Loss, RankDump

WORLD = 0
"""The number of the group of all ranks."""
MAX_PARTINGS = 100
MAX_MESSAGES = 100


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
    stuck = tuple(messages(current, epoch))
    waits = waits_of(current, epoch, headline, stuck)
    chain, circle = chain_of(waits, headline)
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
        messages=stuck[:MAX_MESSAGES],
        headline=headline,
        chain=chain,
        circle=circle,
        last_epoch=epoch,
        loss=loss,
        ended=broken[0] if broken else "",
        roots=roots_of(waits, headline),
        instead=instead_of(current, epoch, headline),
        gone=tuple(sorted(_gone(current, epoch, WORLD))),
    )


def _is_waiting(dump: RankDump, epoch: int) -> bool:
    """Whether something is in flight there."""
    return any(op.state == IN_FLIGHT and op.epoch == epoch for op in dump.operations)


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
    if states.intersection(ABSENT):
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
        return min(first.values(), key=lambda p: (GRAVITY.index(p.kind), p.began_at))
    return max(partings, key=lambda p: p.began_at, default=None)
