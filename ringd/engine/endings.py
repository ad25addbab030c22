"""How calls end other than well: failures are reported, verdicts awaited, late ones told.

A failure that a rank sees is only its own view. It is reported to the rendezvous, which asks all
and gives one verdict for every rank; the operation is still in flight until it comes. Without a
rendezvous in reach, or without an answer in time, the rank's own view is what it raises, says that
it is partial, and tells its neighbours, who pass it on. A rank that only sees that others wait too
asks its peers first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringd.engine import failures
from ringd.errors import CollectiveMismatchError, CollectiveTimeoutError, RingdError
from ringd.vocabulary import POINT_TO_POINT, OpSpec
from ringd.wire.frame import Kind

if TYPE_CHECKING:
    from ringd.engine.engine import Engine, Surroundings
    from ringd.engine.group import Group
    from ringd.engine.operation import Operation

VERDICT_S = 0.18
"""How long a verdict may take; the rendezvous waits 0.1 s for answers."""
ASK_S = 0.04
"""How long peers may take to say what they know, where there is no verdict."""


class Endings:
    """The verdicts of one rank."""

    def __init__(self, engine: Engine, surroundings: Surroundings) -> None:
        self._engine = engine
        self._surroundings = surroundings

    def in_reach(self) -> bool:
        """Whether the rendezvous is, so that there will be a verdict."""
        return self._surroundings.in_reach()

    # What fails here

    def fail(self, op: Operation, error: RingdError) -> None:
        """``op`` failed here: it moves nothing more, and ends with the verdict on it."""
        if not op.live or op.failing:
            return
        op.fail_soon(error)
        if self._report(op.group, op.seq, error):
            self._engine.loop.call_later(VERDICT_S, self._no_verdict, op)
        else:
            self._no_verdict(op)

    def _no_verdict(self, op: Operation) -> None:
        """Our own view has to do, or that of a peer that knows more."""
        if not op.live:
            return
        if _knows(op.failing):
            self._end_alone(op)
        else:
            for flow in op.flows.values():
                flow.announce(again=True)  # a peer where it is over answers how
            self._engine.loop.call_later(ASK_S, self._end_alone, op)

    def _end_alone(self, op: Operation) -> None:
        if op.live and op.failing is not None:
            error = failures.partial(op.failing)
            op.end(failures.here(error, op))
            self._flood(op.group, op.seq, error)

    def spread(self, group: Group, seq: int, error: RingdError) -> None:
        """A call that is not in flight here is void: every rank is to know."""
        group.remember(seq, error)
        if not self._report(group, seq, error):
            self._flood(group, seq, error)

    def _report(self, group: Group, seq: int, error: RingdError) -> bool:
        return self._surroundings.op_failed(group.epoch, group.number, group.ranks, seq, error)

    def _flood(self, group: Group, seq: int, error: RingdError) -> None:
        """Tell the group's members on the links we have; each passes it on."""
        group.remember(seq, error)
        header = [group.epoch, seq, error.to_wire()]
        for link in list(self._engine.links.values()):
            if link.peer in group.ranks:
                link.send_note(Kind.ABORT, group.stream, header)

    # What others say

    def verdict(self, number: int, member: int, epoch: int, seq: int, error: RingdError) -> None:
        """The rendezvous says how an operation of the group that ``member`` is in ended."""
        group = self._engine.groups.numbered(number)
        if group is not None and group.epoch == epoch and member in group.ranks:
            self._end(group, seq, error)

    def cut_short(self, number: int, member: int, epoch: int, seq: int, error: RingdError) -> None:
        """The rendezvous says that the end of the epoch, of which all are told, left a call undone
        on some ranks: that matters to who has got a group by that call, and to nobody else."""
        group = self._engine.groups.numbered(number)
        if group is None or group.epoch != epoch or member not in group.ranks:
            return
        if group.broken is not None or group.left_before(seq) is not None:
            self._engine.groups.void(group, seq, error)
        else:  # we were not told, so that it is an error like any other
            self._end(group, seq, error)

    def told(self, group: Group, peer: int, epoch: int, seq: int, error: RingdError) -> None:
        """A peer says on a link how an operation ended there."""
        if group.epoch != epoch or peer not in group.ranks:
            return
        op = group.ops.get(seq)
        is_final = bool(error.fields.get("verdict")) or not self._surroundings.in_reach()
        if op is not None and not is_final:
            if op.failing is not None and not _knows(op.failing):
                op.fail_soon(error)
            self.fail(op, error)  # it is one rank's view: let all be asked
        else:
            news = seq not in group.verdicts
            self._end(group, seq, error)
            if news and not error.fields.get("verdict"):
                self._flood(group, seq, error)

    def _end(self, group: Group, seq: int, error: RingdError) -> None:
        op = group.ops.get(seq)
        if op is not None:
            op.end(failures.here(error, op))
            group.remember(seq, error)
            _take_quote(group, seq, error)
        elif seq >= group.next_seq:
            group.remember(seq, error)
        else:
            if isinstance(error, CollectiveMismatchError):
                # Rooted operations return before they can know; the next call says it.
                if seq not in group.verdicts:
                    group.pending = group.pending or error
                group.remember(seq, error)
            self._engine.groups.void(group, seq, error)

    # Calls that do not begin

    def refuse(self, spec: OpSpec, cause: RingdError) -> None:
        """This rank's trainer refused its own call: the call takes its place, and is void."""
        group = self._engine.groups.numbered(spec.group)
        if group is None or spec.collective in POINT_TO_POINT or group.broken is not None:
            return
        seq = group.next_seq
        group.next_seq = seq + 1
        self._surroundings.call_void(group, spec, seq, cause)
        if group.verdicts.get(seq) is None:
            self._engine.router.early.take(group.number, group.epoch, seq)
            error = failures.refused_locally(
                seq=seq, epoch=group.epoch, rank=self._engine.rank, spec=spec, cause=cause
            )
            self.spread(group, seq, error)

    def obstacle(self, group: Group) -> RingdError | None:
        """Why a call may not begin; a verdict or first cause takes its place in the order."""
        seq = group.next_seq
        verdict = group.verdicts.get(seq)
        if verdict is not None:  # also when the epoch is over since: it came to its end before
            group.next_seq = seq + 1
            self._engine.router.early.take(group.number, group.epoch, seq)
            _take_quote(group, seq, verdict)
            return failures.too_late(verdict, self._engine.rank)
        if group.broken is not None:
            return group.broken.copy()
        if group.pending is not None:
            first, group.pending = group.pending, None
            error = type(first)(
                "an earlier operation, which had returned here or elsewhere before it could be "
                f"known, was void, and this call is void with it on all ranks: {first.message}",
                **first.fields,
            )
            group.next_seq = seq + 1
            self.spread(group, seq, error)
            return error
        left = group.left_before(seq)
        if left is not None:
            group.break_by(left, goodbye=True)
            return left.copy()
        return None

    def void_late(self, group: Group, seq: int, peer: int, theirs: bytes) -> None:
        """A peer turns out to have called something else than what has returned here."""
        ours = group.returned.get(seq)
        if ours is not None and ours.packed != theirs:
            error = failures.mismatch(
                seq=seq,
                epoch=group.epoch,
                rank=self._engine.rank,
                ours=ours,
                peer=peer,
                theirs=theirs,
            )
            group.pending = group.pending or error
            self.spread(group, seq, error)


def _knows(error: RingdError | None) -> bool:
    """Whether an error says who is to blame; a rank may only see that its peers wait too."""
    return not isinstance(error, CollectiveTimeoutError) or bool(error.fields.get("culprits"))


def _take_quote(group: Group, seq: int, error: RingdError) -> None:
    """An error that quotes an earlier operation's has told of that one: once is enough."""
    first = error.fields.get("seq")
    if not isinstance(first, int) or first >= seq:
        return
    if first not in group.verdicts:
        group.remember(first, error)
    if group.pending is not None and group.pending.fields.get("seq") == first:
        group.pending = None
