"""All operations of one rank: takes requests, routes frames, keeps time.

The engine knows links and groups, and nothing of sockets, processes or the rendezvous; what it
needs of them it asks of its ``Surroundings``. The same code runs in a daemon and, over the
in-memory transport and virtual time, in the simulation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic_ns
from typing import Protocol

from ringd.engine import failures
from ringd.engine.busy_poll import BusyPoll
from ringd.engine.compiler import Compiled, Splits
from ringd.engine.deadlines import Deadlines
from ringd.engine.group import Group
from ringd.engine.groups import Groups
from ringd.engine.landing import PIECE_BYTES, ScratchPool
from ringd.engine.leaving import Leaving
from ringd.engine.link import Link
from ringd.engine.mail import Mail
from ringd.engine.operation import OnDone, Operation
from ringd.engine.router import Router
from ringd.errors import (
    CollectiveMismatchError,
    GroupFreedError,
    InvalidArgumentError,
    MembershipChangedError,
    RingdError,
    TooManyOperationsError,
)
from ringd.schedules.select import Thresholds
from ringd.vocabulary import (
    MAY_RETURN_EARLY,
    POINT_TO_POINT,
    Collective,
    OpSpec,
    check_spec,
    spec_or_unknown,
    unpack_spec,
)
from ringd.wire.frame import Kind

Local = int | Splits | None
"""What of a call may differ between ranks: the tag of send and recv, the splits of all_to_all."""
LINK_GRACE_S = 1.0
"""How long after a broken link the rendezvous may take to say what happened."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Sizes and defaults; every rank of a job must have the same segment and eager sizes."""

    segment_bytes: int = 1024 * 1024
    eager_bytes: int = 64 * 1024
    timeout_s: float = 300.0
    recv_timeout_s: float = 0.0
    max_in_flight: int = 1024
    tick_s: float = 0.02
    busy_poll_s: float = 0.0
    inline_bytes: int = 64 * 1024


class Surroundings(Protocol):
    """What the engine asks of the daemon around it."""

    def want_link(self, peer: int) -> None:
        """Make a link to ``peer``; ``Engine.link_up`` follows, or the operation's deadline."""

    def op_failed(self, epoch: int, group: int, lowest: int, seq: int, error: RingdError) -> None:
        """Tell the rendezvous, which tells every rank; ``lowest``: the group's lowest rank."""

    def link_lost(self, peer: int, reason: str) -> None:
        """A link ended without a goodbye."""

    def op_ended(self, op: Operation, error: RingdError | None) -> None:
        """For the accounting."""


class Engine:
    """The operations, groups and links of one rank. Runs on its loop's thread only.

    Args:
        bring_torch: called when a 16-bit operation would be quicker with torch's conversions; it
            returns at once.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        rank: int,
        world_size: int,
        surroundings: Surroundings,
        options: EngineOptions,
        clock_ns: Callable[[], int] = monotonic_ns,
        bring_torch: Callable[[], None] | None = None,
    ) -> None:
        self.loop = loop
        self.now = loop.time
        self.rank = rank
        self.world_size = world_size
        self.options = options
        self.links: dict[int, Link] = {}
        self.scratch = ScratchPool()
        self._pieces: dict[int, memoryview] = {}
        self.completed = 0
        self.groups = Groups(self, bring_torch)
        self.world = self.groups.world
        self.router = Router(self)
        self.mail = Mail(self)
        self.leaving = Leaving(self)
        self._surroundings = surroundings
        self._waiting_for_link: dict[int, list[Operation]] = {}
        self._clock_ns = clock_ns
        self.live: dict[Operation, None] = {}
        self._deadlines = Deadlines(self, options.tick_s)
        self._busy_poll = BusyPoll(loop, options.busy_poll_s)

    def piece(self, peer: int) -> memoryview:
        """Scratch for what is landing from ``peer``: a landing may pause with some of it filled."""
        found = self._pieces.get(peer)
        if found is None:
            size = min(PIECE_BYTES, self.options.segment_bytes)
            found = self._pieces[peer] = memoryview(bytearray(size))
        return found

    # Requests

    def submit(
        self,
        packed_spec: bytes,
        region: Callable[[int], memoryview],
        on_done: OnDone,
        *,
        timeout_s: float = 0.0,
        recv_timeout_s: float = 0.0,
        local: Local = None,
    ) -> None:
        """Enter a collective, or post a send or a receive.

        Args:
            packed_spec: the call, equal on all ranks (but for send and recv).
            region: gives the working region of so many bytes; may raise RingdError.
            on_done: called once, perhaps before this returns.
            timeout_s: deadline from now on, 0: the default.
            recv_timeout_s: limit of a peer's silence, 0: the default.
            local: what of the call is this rank's own.
        """
        in_flight = len(self.live) + len(self.mail.live)
        if in_flight >= self.options.max_in_flight:
            # Not posted: it took no place in the order, and may be tried again.
            limit = f"{in_flight} operations are in flight, the limit; wait for some first"
            on_done(TooManyOperationsError(limit), None)
            return
        timeouts = (
            timeout_s or self.options.timeout_s,
            recv_timeout_s or self.options.recv_timeout_s,
        )
        try:
            spec = unpack_spec(packed_spec)
            group = self._group_of(spec)
            if spec.collective in POINT_TO_POINT:
                self._post(group, spec, local, region, on_done, timeouts)
                return
            compiled, mem = self._prepared(group, packed_spec, spec, region, local)
        except (ValueError, TypeError, RingdError) as exc:
            error = exc if isinstance(exc, RingdError) else RingdError(str(exc))
            self.refuse(spec_or_unknown(packed_spec), error)
            on_done(error, None)
            return
        stopped = self._stopped(group)
        if stopped is not None:
            on_done(stopped, None)
            return
        self._enter(group, compiled, mem, on_done, timeouts)

    def _group_of(self, spec: OpSpec) -> Group:
        group = self.groups.numbered(spec.group)
        if group is None:
            raise GroupFreedError(
                f"{spec}: there is no group {spec.group} on this rank; it was closed",
                group=spec.group,
            )
        return group

    def _post(
        self,
        group: Group,
        spec: OpSpec,
        local: Local,
        region: Callable[[int], memoryview],
        on_done: OnDone,
        timeouts: tuple[float, float],
    ) -> None:
        """Post a send or a receive; it stands beside the order of calls."""
        if not isinstance(local, int):
            raise InvalidArgumentError(f"the tag of a {spec.collective} is a whole number")
        timeout_s, recv_timeout_s = timeouts
        self._busy_poll.begin()
        self.mail.submit(
            group, spec, local, region, on_done, timeout_s=timeout_s, recv_timeout_s=recv_timeout_s
        )
        self._deadlines.watch()

    def _prepared(
        self,
        group: Group,
        packed: bytes,
        spec: OpSpec,
        region: Callable[[int], memoryview],
        local: Local,
    ) -> tuple[Compiled, memoryview]:
        """Plan and region of a call.

        Raises:
            RingdError, ValueError, TypeError: it is not a call that can be made.
        """
        if isinstance(local, int):
            raise InvalidArgumentError(f"{spec.collective} takes no tag")
        compiled = group.compiler.known(packed, local)
        if compiled is not None:
            return compiled, region(compiled.region_bytes)
        check_spec(spec, group.size)
        # The region first: a plan's cost grows with the size that is claimed.
        mem = region(group.compiler.region_bytes(spec, local))
        return group.compiler.compile(packed, spec, local), mem

    def _enter(
        self,
        group: Group,
        compiled: Compiled,
        mem: memoryview,
        on_done: OnDone,
        timeouts: tuple[float, float],
    ) -> None:
        if compiled.spec.collective == Collective.NEW_GROUP.value:
            try:
                on_done = self.groups.found(group, compiled, mem, on_done)
            except InvalidArgumentError as exc:
                self.refuse(compiled.spec, exc)
                on_done(exc, None)
                return
        seq = group.next_seq
        group.next_seq = seq + 1
        op = Operation(self, group, compiled, seq, mem, on_done)
        op.timeout_s, op.recv_timeout_s = timeouts
        op.started = self.now()
        op.deadline = op.started + op.timeout_s
        op.started_ns = self._clock_ns()
        self._deadlines.watch()
        group.ops[seq] = op
        self.live[op] = None
        self._busy_poll.begin()
        op.start(self.router.early.take(group.number, group.epoch, seq))

    def _stopped(self, group: Group) -> RingdError | None:
        """Why a call may not begin; a verdict or first cause takes its place in the order."""
        seq = group.next_seq
        verdict = group.verdicts.get(seq)
        if verdict is not None:  # also when the epoch is over since: it came to its end before
            group.next_seq = seq + 1
            self.router.early.take(group.number, group.epoch, seq)
            _take_quote(group, seq, verdict)
            return verdict.copy()
        if group.broken is not None:
            return group.broken.copy()
        if group.pending is not None:
            first, group.pending = group.pending, None
            error = type(first)(
                "an earlier operation, which had returned here before it could be known, was "
                f"void: {first.message}",
                **first.fields,
            )
            group.next_seq = seq + 1
            self.spread(group, seq, error)
            return error
        for rank, seq_left in group.left.items():
            if seq >= seq_left:
                group.broken = self._left_before(group, rank, seq)
                return group.broken.copy()
        return None

    def refuse(self, spec: OpSpec, cause: RingdError) -> None:
        """This rank's trainer refused its own call: the call takes its place, and is void."""
        group = self.groups.numbered(spec.group)
        if group is None or spec.collective in POINT_TO_POINT:
            return
        if group.broken is not None:
            return
        seq = group.next_seq
        group.next_seq = seq + 1
        if group.verdicts.get(seq) is None:
            self._void(group, seq, spec, cause)

    def _void(self, group: Group, seq: int, spec: OpSpec, cause: RingdError) -> None:
        self.router.early.take(group.number, group.epoch, seq)
        error = failures.refused_locally(
            seq=seq, epoch=group.epoch, rank=self.rank, spec=spec, cause=cause
        )
        self.spread(group, seq, error)

    # Epochs and peers

    def choose_by(self, thresholds: Thresholds) -> None:
        """How "auto" chooses, between two epochs; every rank must be told the same."""
        self.groups.choose_by(thresholds)

    def begin_epoch(self, epoch: int) -> None:
        """All trainers are attached: a fresh order of operations begins."""
        changed = MembershipChangedError(
            f"epoch {self.world.epoch} is over, epoch {epoch} has begun", epoch=epoch
        )
        self.end_all(changed)
        self.groups.begin_epoch(epoch)
        self.mail.begin_epoch(epoch)
        self.router.dropped_frames += self.router.early.drop_before(epoch)

    def end_all(self, error: RingdError) -> None:
        """Every operation in flight here ends with ``error``."""
        for op in list(self.live):
            op.end(failures.during(error, op))
        self.mail.end_all(error)

    def peer_lost(self, rank: int, error: RingdError) -> None:
        """A rank is gone: everything that needs it ends now, and its groups are over."""
        for group in self.groups:
            if rank in group.ranks:
                group.broken = group.broken or error
        for op in list(self.live):
            if rank in op.group.ranks:
                op.end(failures.during(error, op))
        self.mail.rank_lost(rank, error)

    def peer_left(self, rank: int, next_seqs: Mapping[int, int]) -> None:
        """A rank said goodbye; in each group it made the calls before ``next_seqs``."""
        self.groups.rank_left(rank, next_seqs)
        for group in self.groups:
            if rank not in group.ranks:
                continue
            next_seq = group.left[rank] = next_seqs.get(group.number, 0)
            for op in list(group.ops.values()):
                if op.seq >= next_seq:
                    error = self._left_before(group, rank, op.seq)
                    group.broken = group.broken or error
                    op.end(failures.during(error, op))
        self.mail.rank_left(rank)

    def _left_before(self, group: Group, rank: int, seq: int) -> RingdError:
        detail = f"it said goodbye before operation {seq}"
        if group.number:
            detail += f" of group {group.number}"
        return failures.peer_lost(rank, case="it left the job", detail=detail, epoch=group.epoch)

    def link_up(self, link: Link) -> None:
        """A link to a peer is there (again)."""
        self.links[link.peer] = link
        for op in self._waiting_for_link.pop(link.peer, []):
            if op.live:
                op.flows[link.peer].open(link)
        self.mail.link_up(link)

    def await_link(self, op: Operation, peer: int) -> None:
        """``op`` goes on with ``peer`` once there is a link."""
        self._waiting_for_link.setdefault(peer, []).append(op)
        self.want_link(peer)

    def want_link(self, peer: int) -> None:
        """Somebody here waits for a link to ``peer``."""
        if not self.leaving.holds_back(peer):
            self._surroundings.want_link(peer)

    def on_link_closed(self, link: Link, error: BaseException | None) -> None:
        """A link's connection ended."""
        if self.leaving.closed(link):
            return
        if self.links.get(link.peer) is not link:
            return
        del self.links[link.peer]
        if link.said_goodbye:
            return
        reason = f"{type(error).__name__}: {error}" if error else "end of stream"
        self._surroundings.link_lost(link.peer, reason)
        epoch = self.world.epoch
        self.loop.call_later(LINK_GRACE_S, self._no_verdict, link, reason, epoch)

    def _no_verdict(self, link: Link, reason: str, epoch: int) -> None:
        """The rendezvous has not said what happened: operations that used the link end."""
        group = self.world
        flows = [op.flows.get(link.peer) for op in self.live]
        used = any(f is not None and f.link is link for f in flows) or self.mail.uses(link)
        if group.epoch != epoch or not used:
            return
        error = failures.peer_lost(
            link.peer, case="its link broke", detail=reason, epoch=epoch, partial=True
        )
        self.peer_lost(link.peer, error)

    def abort(self, number: int, member: int, epoch: int, seq: int, error: RingdError) -> None:
        """An operation of the group ``number`` that ``member`` is in ended elsewhere: here too."""
        group = self.groups.numbered(number)
        if group is None or group.epoch != epoch or member not in group.ranks:
            return
        op = group.ops.get(seq)
        if op is not None:
            op.end(error.copy())
            group.remember(seq, error)
            _take_quote(group, seq, error)
        elif seq >= group.next_seq:
            group.remember(seq, error)
        elif seq not in group.verdicts and isinstance(error, CollectiveMismatchError):
            # Rooted operations return before they can know; the next call says it.
            group.remember(seq, error)
            group.pending = group.pending or error

    def void_late(self, group: Group, seq: int, peer: int, theirs: bytes) -> None:
        """A peer turns out to have called something else than what has returned here."""
        ours = group.returned.get(seq)
        if ours is not None and ours.packed != theirs:
            error = failures.mismatch(
                seq=seq, epoch=group.epoch, rank=self.rank, ours=ours, peer=peer, theirs=theirs
            )
            group.pending = group.pending or error
            self.spread(group, seq, error)

    # Ending

    def fail(self, op: Operation, error: RingdError) -> None:
        """``op`` failed here: it ends, and every rank is told."""
        if op.live:
            op.end(error)
            self.spread(op.group, op.seq, error)

    def spread(self, group: Group, seq: int, error: RingdError) -> None:
        """Tell all ranks, on the links we have and through the rendezvous."""
        group.remember(seq, error)
        header = [group.epoch, seq, error.to_wire()]
        for link in list(self.links.values()):
            if link.peer not in group.ranks:
                continue
            link.send_note(Kind.ABORT, group.stream, header)
        self._surroundings.op_failed(group.epoch, group.number, min(group.ranks), seq, error)

    def ended(self, op: Operation, error: RingdError | None) -> None:
        """``op`` is over; called by it."""
        op.ended_ns = self._clock_ns()
        op.group.ops.pop(op.seq, None)
        self.live.pop(op, None)
        if error is None:
            self.completed += 1
            if op.spec.collective in MAY_RETURN_EARLY:
                op.group.note_return(op.seq, op.spec)
        self._surroundings.op_ended(op, error)


def _take_quote(group: Group, seq: int, error: RingdError) -> None:
    """An error that quotes an earlier operation's has told of that one: once is enough."""
    first = error.fields.get("seq")
    if not isinstance(first, int) or first >= seq:
        return
    if first not in group.verdicts:
        group.remember(first, error)
    if group.pending is not None and group.pending.fields.get("seq") == first:
        group.pending = None
