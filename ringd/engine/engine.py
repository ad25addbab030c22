"""All operations of one rank: takes requests, routes frames, keeps time.

The engine knows links and groups, and nothing of sockets, processes or the rendezvous; what it
needs of them it asks of its ``Surroundings``. The same code runs in a daemon and, over the
in-memory transport and virtual time, in the simulation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns
from typing import Protocol

from ringd.engine import failures
from ringd.engine.busy_poll import BusyPoll
from ringd.engine.deadlines import Deadlines
from ringd.engine.group import Compiled, Compiler, Group
from ringd.engine.landing import PIECE_BYTES, ScratchPool
from ringd.engine.link import Link
from ringd.engine.operation import OnDone, Operation
from ringd.engine.router import Router
from ringd.errors import (
    CollectiveMismatchError,
    MembershipChangedError,
    RingdError,
    TooManyOperationsError,
)
from ringd.schedules.select import Thresholds
from ringd.vocabulary import OpSpec, check_spec, spec_or_unknown, unpack_spec
from ringd.wire.frame import Kind

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

    def op_failed(self, epoch: int, group: int, seq: int, error: RingdError) -> None:
        """Tell the rendezvous, which tells every rank."""

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
        self.world = Group(0, rank, world_size)
        self.completed = 0
        self.groups = {self.world.stream: self.world}
        self.router = Router(self)
        self._compiler = Compiler(
            rank, world_size, options.segment_bytes, options.eager_bytes, bring_torch
        )
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
    ) -> None:
        """Enter a collective.

        Args:
            packed_spec: the call, equal on all ranks.
            region: gives the working region of so many bytes; may raise RingdError.
            on_done: called once, perhaps before this returns, with None or the error.
            timeout_s: deadline from now on, 0: the default.
            recv_timeout_s: limit of a peer's silence, 0: the default.
        """
        if len(self.live) >= self.options.max_in_flight:
            # Not posted: it took no place in the order, and may be tried again.
            on_done(
                TooManyOperationsError(
                    f"{len(self.live)} operations are in flight, the limit; wait for some first"
                )
            )
            return
        try:
            compiled, mem = self._prepared(packed_spec, region)
        except (ValueError, TypeError, RingdError) as exc:
            error = exc if isinstance(exc, RingdError) else RingdError(str(exc))
            self.refuse(spec_or_unknown(packed_spec), error)
            on_done(error)
            return
        stopped = self._stopped(self.world, compiled)
        if stopped is not None:
            on_done(stopped)
            return
        self._enter(compiled, mem, on_done, timeout_s, recv_timeout_s)

    def _prepared(
        self, packed_spec: bytes, region: Callable[[int], memoryview]
    ) -> tuple[Compiled, memoryview]:
        """Plan and region of a call.

        Raises:
            RingdError, ValueError, TypeError: it is not a call that can be made.
        """
        compiled = self._compiler.known(packed_spec)
        if compiled is not None:
            return compiled, region(compiled.region_bytes)
        spec = unpack_spec(packed_spec)
        check_spec(spec, self.world_size)
        # The region first: a plan's cost grows with the size that is claimed.
        mem = region(spec.region_count(self.world_size) * spec.itemsize)
        return self._compiler.compile(packed_spec, spec), mem

    def _enter(
        self,
        compiled: Compiled,
        mem: memoryview,
        on_done: OnDone,
        timeout_s: float,
        recv_timeout_s: float,
    ) -> None:
        group = self.world
        seq = group.next_seq
        group.next_seq = seq + 1
        op = Operation(self, group, compiled, seq, mem, on_done)
        self._time(op, timeout_s, recv_timeout_s)
        group.ops[seq] = op
        self.live[op] = None
        self._busy_poll.begin()
        op.start(self.router.early.take(group.number, group.epoch, seq))

    def _time(self, op: Operation, timeout_s: float, recv_timeout_s: float) -> None:
        op.timeout_s = timeout_s or self.options.timeout_s
        op.recv_timeout_s = recv_timeout_s or self.options.recv_timeout_s
        op.started = self.now()
        op.deadline = op.started + op.timeout_s
        op.started_ns = self._clock_ns()
        self._deadlines.watch()

    def _stopped(self, group: Group, compiled: Compiled) -> RingdError | None:
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
                group.broken = failures.peer_lost(
                    rank,
                    case="it left the job",
                    detail=f"it said goodbye before operation {seq}",
                    epoch=group.epoch,
                )
                return group.broken.copy()
        return None

    def refuse(self, spec: OpSpec, cause: RingdError) -> None:
        """This rank's trainer refused its own call: the call takes its place, and is void."""
        group = self.world
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
        self._compiler.choose_by(thresholds)

    def begin_epoch(self, epoch: int) -> None:
        """All trainers are attached: a fresh order of operations begins."""
        changed = MembershipChangedError(
            f"epoch {self.world.epoch} is over, epoch {epoch} has begun", epoch=epoch
        )
        self.end_all(changed)
        self.world.begin_epoch(epoch)
        self.router.dropped_frames += self.router.early.drop_before(epoch)

    def end_all(self, error: RingdError) -> None:
        """Every operation in flight here ends with ``error``."""
        for op in list(self.live):
            op.end(failures.during(error, op))

    def peer_lost(self, rank: int, error: RingdError) -> None:
        """A rank is gone: everything that needs it ends now."""
        group = self.world
        if group.broken is None:
            group.broken = error
        self.end_all(error)

    def peer_left(self, rank: int, next_seq: int) -> None:
        """A rank said goodbye after its calls up to ``next_seq``: later ones can't complete."""
        group = self.world
        group.left[rank] = next_seq
        for op in list(self.live):
            if op.seq >= next_seq:
                error = failures.peer_lost(
                    rank,
                    case="it left the job",
                    detail=f"it said goodbye before operation {op.seq}",
                    epoch=group.epoch,
                )
                group.broken = group.broken or error
                op.end(failures.during(error, op))

    def link_up(self, link: Link) -> None:
        """A link to a peer is there (again)."""
        self.links[link.peer] = link
        for op in self._waiting_for_link.pop(link.peer, []):
            if op.live:
                op.open_flow(op.flows[link.peer], link)

    def await_link(self, op: Operation, peer: int) -> None:
        """``op`` goes on with ``peer`` once there is a link."""
        self._waiting_for_link.setdefault(peer, []).append(op)
        self._surroundings.want_link(peer)

    def on_link_closed(self, link: Link, error: BaseException | None) -> None:
        """A link's connection ended."""
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
        if group.epoch != epoch or not any(f is not None and f.link is link for f in flows):
            return
        error = failures.peer_lost(
            link.peer, case="its link broke", detail=reason, epoch=epoch, partial=True
        )
        self.peer_lost(link.peer, error)

    def abort(self, group_number: int, epoch: int, seq: int, error: RingdError) -> None:
        """An operation of the group ended elsewhere with ``error``: it ends here too."""
        group = self.groups.get(1 + group_number)
        if group is None or group.epoch != epoch:
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
            link.send_note(Kind.ABORT, group.stream, header)
        self._surroundings.op_failed(group.epoch, group.number, seq, error)

    def ended(self, op: Operation, error: RingdError | None) -> None:
        """``op`` is over; called by it."""
        op.ended_ns = self._clock_ns()
        op.group.ops.pop(op.seq, None)
        self.live.pop(op, None)
        if error is None:
            self.completed += 1
            if op.spec.root >= 0:
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
