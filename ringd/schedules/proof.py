"""Proof that the schedules of a group do what their collective promises.

A symbolic run: a chunk's value is not numbers but the expression that was computed, so one run
stands for all data and all sizes. It is written from the meaning of a schedule (see ``model``) and
of the collectives, never from the builders, and it assumes of the executor only what ``model``
says: no order between ranks but the one that messages make.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringd.schedules.formula import sent_bytes
from ringd.schedules.linking import (
    Application,
    Key,
    Message,
    ScheduleError,
    applications,
    in_order,
    in_segments,
    link,
)
from ringd.schedules.meaning import chunks_due, holds_at_start, is_reducing, result_chunks
from ringd.schedules.model import Schedule
from ringd.vocabulary import ROOTED

__all__ = ["Proof", "ScheduleError", "prove"]

Expr = int | tuple["Expr", ...]
"""A rank's own contribution, or a fold from the left of other expressions.

A fold never begins with a fold: ((0, 1), 2) is the same as (0, 1, 2), and written so.
"""


@dataclass(frozen=True, slots=True)
class Proof:
    """What was shown of a group's schedules.

    Attributes:
        n_messages: messages that pass in the whole group.
        n_rounds: rounds of the longest schedule.
        in_rank_order: every result is the left fold in rank order, whatever the number of chunks.
        rounds_once: no partial sum travels in the narrow type, so 16-bit floats lose nothing on
            the way.
    """

    collective: str
    algorithm: str
    world_size: int
    n_messages: int
    n_rounds: int
    in_rank_order: bool
    rounds_once: bool


@dataclass(frozen=True, slots=True)
class _Version:
    """A chunk at a rank, between two changes.

    Attributes:
        expr: its value; None where it holds nothing of use yet.
        final: reduced and finalised (or never to be reduced).
        known: bit set of the messages that have certainly been delivered when it exists.
    """

    expr: Expr | None
    final: bool
    known: int = 0

    @property
    def is_partial(self) -> bool:
        """A sum that is not finished; neither a raw contribution nor a result."""
        return isinstance(self.expr, tuple) and not self.final


def prove(schedules: tuple[Schedule, ...], *, root: int = -1) -> Proof:
    """Show that the group's schedules are right, or say why they are not.

    Shown: every send meets its receive; no deadlock, with the least buffering; no chunk is
    overwritten while a send may still read it (where sends are guarded, the executor sees to
    that); each contribution counts once, in the order that ``fold`` names; owned chunks are
    finalised once, before they are passed on; all ranks hold the same result; every rank sends
    the bytes that ``formula`` states.

    Args:
        schedules: one per rank, in rank order.
        root: of a broadcast, reduce, gather or scatter.

    Raises:
        ScheduleError: something of this does not hold.
    """
    _check_group(schedules, root)
    messages = link(schedules)
    changes = applications(schedules, messages)
    guarded = schedules[0].guarded
    run = _Run(schedules, messages, changes, root)
    for application in in_order(messages, changes, guarded=guarded):
        run.apply(application)
    if guarded:
        _check_room(schedules)
    run.check_sends()
    results = run.results()
    _check_bytes(schedules, root, wide=any(message.wide for message in messages))
    first = schedules[0]
    in_rank_order = _left_fold(range(first.world_size))
    return Proof(
        collective=first.collective,
        algorithm=first.algorithm,
        world_size=first.world_size,
        n_messages=len(messages),
        n_rounds=max(len(schedule.rounds) for schedule in schedules),
        in_rank_order=all(expr == in_rank_order for expr in results.values()),
        rounds_once=not any(not m.wide and run.carried(m).is_partial for m in messages),
    )


class _Run:
    """The state of a symbolic run: every version of every chunk at every rank."""

    def __init__(
        self,
        schedules: tuple[Schedule, ...],
        messages: tuple[Message, ...],
        changes: dict[Key, Application],
        root: int,
    ) -> None:
        self._schedules = schedules
        self._messages = messages
        self._root = root
        self._last = {(rank, chunk): version for rank, chunk, version in sorted(changes)}
        reductions = (key for key, change in sorted(changes.items()) if change.action == "reduce")
        self._last_reduction = {(rank, chunk): version for rank, chunk, version in reductions}
        self._readers: dict[tuple[int, int], list[Message]] = {}
        for message in messages:
            self._readers.setdefault((message.source, message.chunk), []).append(message)
        self._versions: dict[Key, _Version] = {
            (schedule.rank, chunk, 0): _at_start(schedule, chunk, root)
            for schedule in schedules
            for chunk in range(schedule.n_chunks)
        }

    def carried(self, message: Message) -> _Version:
        """What a message has in it."""
        return self._versions[message.source, message.chunk, message.reads]

    def apply(self, application: Application) -> None:
        """Change a chunk; everything that this depends on has been done."""
        before = self._versions[application.rank, application.chunk, application.version - 1]
        known = before.known
        for message in application.messages:
            if self.carried(message).expr is None:
                raise ScheduleError(f"{message} carries nothing")
            known |= self.carried(message).known | 1 << message.number
        self._check_overwrite(application, known)
        if application.action == "copy":
            expr, final = self._copied(application)
        else:
            expr, final = self._folded(application, before)
        key = (application.rank, application.chunk, application.version)
        self._versions[key] = _Version(expr, final, known)

    def check_sends(self) -> None:
        """If partial sums travel wide at all, none of them is rounded on the way."""
        any_wide = any(message.wide for message in self._messages)
        for message in self._messages:
            if any_wide and not message.wide and self.carried(message).is_partial:
                raise ScheduleError(f"{message} rounds a partial sum: it must be wide")

    def results(self) -> dict[int, Expr]:
        """The final value of each chunk.

        Raises:
            ScheduleError: a rank does not hold it, or not the right one.
        """
        found: dict[int, Expr] = {}
        for schedule in self._schedules:
            for chunk in schedule.owned:
                if not self._at_end(schedule.rank, chunk).final:
                    raise ScheduleError(f"rank {schedule.rank} owns chunk {chunk} in vain")
            for chunk in result_chunks(schedule, self._root):
                expr = _checked_result(schedule, chunk, self._at_end(schedule.rank, chunk))
                if found.setdefault(chunk, expr) != expr:
                    raise ScheduleError(
                        f"rank {schedule.rank} reduces chunk {chunk} in another order than others"
                    )
        return found

    def _at_end(self, rank: int, chunk: int) -> _Version:
        return self._versions[rank, chunk, self._last.get((rank, chunk), 0)]

    def _check_overwrite(self, application: Application, known: int) -> None:
        """Every earlier send of the chunk must be delivered, as far as causality can tell."""
        if self._schedules[application.rank].guarded:
            return
        for message in self._readers.get((application.rank, application.chunk), ()):
            if message.reads < application.version and not known >> message.number & 1:
                raise ScheduleError(
                    f"{application} is overwritten while {message} may still read it: "
                    "it must be guarded"
                )

    def _copied(self, application: Application) -> tuple[Expr | None, bool]:
        (message,) = application.messages
        version = self.carried(message)
        if not version.final:
            raise ScheduleError(f"{message} is copied, but the chunk is not finished")
        if message.wide:
            raise ScheduleError(f"{message} is copied, but carries partial sums")
        if application.chunk in self._schedules[application.rank].owned:
            raise ScheduleError(f"{application} is owned there, but a copy overwrites it")
        return version.expr, True

    def _folded(self, application: Application, before: _Version) -> tuple[Expr, bool]:
        schedule = self._schedules[application.rank]
        if before.expr is None:
            raise ScheduleError(f"{application} has nothing in it to reduce into")
        terms: list[tuple[int, Expr]] = [(application.rank, before.expr)]
        for message in application.messages:
            version = self.carried(message)
            if version.final or before.final or version.expr is None:
                raise ScheduleError(f"{message} is reduced into {application}, but one is finished")
            terms.append((message.source, version.expr))
        if schedule.fold == "rank":
            terms.sort(key=lambda term: term[0])
            if any(rank != expr for rank, expr in terms):
                raise ScheduleError(
                    f"{application} is folded in rank order, but takes partial sums"
                )
        elif schedule.fold == "sorted":
            terms.sort(key=lambda term: term[0])
        owned = application.chunk in schedule.owned
        is_last = self._last_reduction[application.rank, application.chunk] == application.version
        return _left_fold([expr for _, expr in terms]), owned and is_last


def _check_group(schedules: tuple[Schedule, ...], root: int) -> None:
    if not schedules:
        raise ScheduleError("a group has at least one rank")
    for rank, schedule in enumerate(schedules):
        if schedule.rank != rank or schedule.world_size != len(schedules):
            raise ScheduleError(
                f"schedule {rank} of {len(schedules)} is for rank {schedule.rank} "
                f"of {schedule.world_size}"
            )
        if _common(schedule) != _common(schedules[0]):
            raise ScheduleError(
                f"ranks 0 and {rank} differ: {_common(schedules[0])} and {_common(schedule)}"
            )
        if not set(schedule.owned) <= set(range(schedule.n_chunks)):
            raise ScheduleError(f"rank {rank} owns {schedule.owned} of {schedule.n_chunks} chunks")
        if schedule.owned and not is_reducing(schedule.collective):
            raise ScheduleError(f"rank {rank} owns a chunk, but nothing is reduced")
    first = schedules[0]
    if first.collective in ROOTED and not 0 <= root < len(schedules):
        raise ScheduleError(f"root {root} is not in a group of {len(schedules)}")
    due = chunks_due(first.collective, len(schedules))
    if due is not None and first.n_chunks != due:
        raise ScheduleError(f"{first.collective} has {due} chunks, not {first.n_chunks}")


def _common(schedule: Schedule) -> tuple[str, str, int, str, bool]:
    """What must be equal on all ranks."""
    return (
        schedule.collective,
        schedule.algorithm,
        schedule.n_chunks,
        schedule.fold,
        schedule.guarded,
    )


def _check_room(schedules: tuple[Schedule, ...]) -> None:
    """Guarded sends need room at the receiver: that of a segment, never that of a chunk."""
    cut = in_segments(schedules)
    messages = link(cut)
    in_order(messages, applications(cut, messages), guarded=True)


def _at_start(schedule: Schedule, chunk: int, root: int) -> _Version:
    mine = holds_at_start(schedule, chunk, root)
    if is_reducing(schedule.collective):
        final = schedule.world_size == 1 and chunk in schedule.owned
    else:
        final = mine
    return _Version(schedule.rank if mine else None, final)


def _checked_result(schedule: Schedule, chunk: int, version: _Version) -> Expr:
    """The value of a result chunk: there, finished, and with each contribution counted once."""
    if version.expr is None or not version.final:
        raise ScheduleError(f"rank {schedule.rank} ends without chunk {chunk} finished")
    if is_reducing(schedule.collective):
        counted = sorted(_contributions(version.expr))
        if counted != list(range(schedule.world_size)):
            raise ScheduleError(
                f"chunk {chunk} of rank {schedule.rank} has the contributions of ranks {counted}"
            )
    return version.expr


def _contributions(expr: Expr) -> list[int]:
    """The ranks in an expression, as often as they are in it."""
    found, left = [], [expr]
    while left:
        term = left.pop()
        if isinstance(term, int):
            found.append(term)
        else:
            left.extend(term)
    return found


def _left_fold(terms: Sequence[Expr]) -> Expr:
    """The terms folded from the left; a first term that is a fold itself is continued."""
    first, *others = terms
    if not others:
        return first
    return (*(first if isinstance(first, tuple) else (first,)), *others)


def _check_bytes(schedules: tuple[Schedule, ...], root: int, *, wide: bool) -> None:
    """Compare what each rank sends with the formula, for all sizes of chunks at once.

    Chunk c counts base**c bytes, and partial sums base**n_chunks times as much. No number of
    sends comes near the base, so equal sums have equal numbers of sends of each chunk and kind.
    """
    base = 1 << 32
    n_chunks = schedules[0].n_chunks
    sizes = tuple(base**chunk for chunk in range(n_chunks))
    widening = base**n_chunks if wide else 1
    for schedule in schedules:
        sends = [send for round_ in schedule.rounds for send in round_.sends]
        sent = sum(sizes[s.chunk] * (widening if s.wide else 1) for s in sends)
        try:
            stated = sent_bytes(
                schedule.collective,
                schedule.algorithm,
                rank=schedule.rank,
                world_size=schedule.world_size,
                chunk_bytes=sizes,
                root=root,
                widening=widening,
            )
        except ValueError as error:
            raise ScheduleError(str(error)) from error
        if sent != stated:
            raise ScheduleError(f"rank {schedule.rank} sends other bytes than the formula states")
