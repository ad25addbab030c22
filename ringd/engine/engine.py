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
from typing import Any, Protocol

from ringd.engine import failures
from ringd.engine.busy_poll import BusyPoll
from ringd.engine.early import EarlyStore
from ringd.engine.group import Compiled, Compiler, Group
from ringd.engine.landing import PIECE_BYTES, ScratchPool
from ringd.engine.link import Link
from ringd.engine.operation import OnDone, Operation, bin_for
from ringd.errors import (
    CollectiveMismatchError,
    MembershipChangedError,
    RingdError,
    TooManyOperationsError,
    from_wire,
)
from ringd.schedules.select import Thresholds
from ringd.vocabulary import OpSpec
from ringd.wire.decoder import Sink
from ringd.wire.frame import FrameError, Kind

PROBE_AFTER_S = 0.2
"""An operation without progress for this long tells its call to the peers it waits on."""
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
        self.piece = memoryview(bytearray(min(PIECE_BYTES, options.segment_bytes)))
        self.world = Group(0, rank, world_size)
        self.early = EarlyStore()
        self.dropped_frames = 0
        self.completed = 0
        self._groups = {self.world.stream: self.world}
        self._compiler = Compiler(
            rank, world_size, options.segment_bytes, options.eager_bytes, bring_torch
        )
        self._surroundings = surroundings
        self._waiting_for_link: dict[int, list[Operation]] = {}
        self._clock_ns = clock_ns
        self._live: dict[Operation, None] = {}
        self._ticking = False
        self._busy_poll = BusyPoll(loop, options.busy_poll_s)

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
        group = self.world
        try:
            compiled = self._compiler.compiled(packed_spec)
            if len(self._live) >= self.options.max_in_flight:
                raise TooManyOperationsError(
                    f"{len(self._live)} operations are in flight, the limit; wait for some first"
                )
        except (ValueError, TypeError, RingdError) as exc:
            error = exc if isinstance(exc, RingdError) else RingdError(str(exc))
            self.refuse(OpSpec("unknown", "", "", ()), error)
            on_done(error)
            return
        stopped = self._stopped(group, compiled)
        if stopped is not None:
            on_done(stopped)
            return
        seq = group.next_seq
        group.next_seq = seq + 1
        try:
            mem = region(compiled.region_bytes)
        except RingdError as exc:
            self._void(group, seq, compiled.spec, exc)
            on_done(exc)
            return
        op = Operation(self, group, compiled, seq, mem, on_done)
        self._time(op, timeout_s, recv_timeout_s)
        group.ops[seq] = op
        self._live[op] = None
        self._busy_poll.begin()
        op.start(self.early.take(group.number, group.epoch, seq))

    def _time(self, op: Operation, timeout_s: float, recv_timeout_s: float) -> None:
        op.timeout_s = timeout_s or self.options.timeout_s
        op.recv_timeout_s = recv_timeout_s or self.options.recv_timeout_s
        op.started = self.now()
        op.deadline = op.started + op.timeout_s
        op.started_ns = self._clock_ns()
        if not self._ticking:
            self._ticking = True
            self.loop.call_later(self.options.tick_s, self._tick)

    def _stopped(self, group: Group, compiled: Compiled) -> RingdError | None:
        """Why a call may not begin; a verdict or first cause takes its place in the order."""
        if group.broken is not None:
            return group.broken.copy()
        seq = group.next_seq
        verdict = group.verdicts.get(seq)
        if verdict is not None:
            group.next_seq = seq + 1
            self.early.take(group.number, group.epoch, seq)
            return verdict.copy()
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
        group.pending = None
        if group.verdicts.get(seq) is None:
            self._void(group, seq, spec, cause)

    def _void(self, group: Group, seq: int, spec: OpSpec, cause: RingdError) -> None:
        self.early.take(group.number, group.epoch, seq)
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
        self.dropped_frames += self.early.drop_before(epoch)

    def end_all(self, error: RingdError) -> None:
        """Every operation in flight here ends with ``error``."""
        for op in list(self._live):
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
        for op in list(self._live):
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
        self.loop.call_later(LINK_GRACE_S, self._no_verdict, link.peer, reason, epoch)

    def _no_verdict(self, peer: int, reason: str, epoch: int) -> None:
        group = self.world
        if group.epoch != epoch or group.broken is not None or peer in self.links:
            return
        error = failures.peer_lost(
            peer, case="its link broke", detail=reason, epoch=epoch, partial=True
        )
        self.peer_lost(peer, error)

    # Frames

    def on_data(
        self, link: Link, stream: int, header: Any, size: int, inline: memoryview | None
    ) -> Sink | None:
        """A segment came on ``link``."""
        group, op = self._find(stream, header)
        if op is not None:
            flow = op.flows.get(link.peer)
            if len(header) > 3 and header[3] != op.spec.packed:
                op.mismatch(link.peer, header[3])
                return bin_for(size, inline)
            if flow is None:
                raise failures.protocol(link.peer, f"data for {op.spec}, where it has none to send")
            if len(header) > 3:
                op.bound_deadline(self.now() + header[4] / 1e3)
            return op.take_data(flow, header, size, inline)
        if self._is_early(group, header):
            if size and inline is None:
                raise FrameError("a large segment came before it was asked for")
            held = self._early_flow(link, group, header, 3)
            self.early.keep(held, header[:3], bytes(inline) if inline is not None else b"")
        else:
            self._answer_late(link, group, header)
        return bin_for(size, inline)

    def on_credit(self, link: Link, stream: int, header: Any) -> None:
        """A peer has room for segments."""
        group, op = self._find(stream, header)
        if op is None:
            if self._is_early(group, header):
                held = self._early_flow(link, group, header, 3)
                held.credit = max(held.credit, header[2])
            else:
                self._answer_late(link, group, header)
            return
        if len(header) > 3 and header[3] != op.spec.packed:
            op.mismatch(link.peer, header[3])
            return
        flow = op.flows.get(link.peer)
        if flow is None:
            raise failures.protocol(link.peer, f"credit for {op.spec}, where it receives nothing")
        if len(header) > 3:
            op.bound_deadline(self.now() + header[4] / 1e3)
        op.take_credit(flow, header[2])

    def on_envelope(self, link: Link, stream: int, header: Any) -> None:
        """A peer entered an operation and says with what call."""
        group, op = self._find(stream, [*header[:2], 0, *header[2:]])
        if op is not None:
            if header[2] != op.spec.packed:
                op.mismatch(link.peer, header[2])
            else:
                op.bound_deadline(self.now() + header[3] / 1e3)
        elif self._is_early(group, header):
            self._early_flow(link, group, header, 2)
        else:
            self._answer_late(link, group, header)

    def on_abort(self, link: Link, stream: int, header: Any) -> None:
        """A peer says that an operation ended with an error."""
        if not isinstance(header, list) or len(header) != 3:
            raise FrameError("an abort is [epoch, seq, error]")
        group = self._groups.get(stream)
        if group is not None:
            self.abort(group.number, header[0], header[1], from_wire(header[2]))

    def abort(self, group_number: int, epoch: int, seq: int, error: RingdError) -> None:
        """An operation of the group ended elsewhere with ``error``: it ends here too."""
        group = self._groups.get(1 + group_number)
        if group is None or group.epoch != epoch:
            return
        op = group.ops.get(seq)
        if op is not None:
            op.end(error.copy())
            group.remember(seq, error)
        elif seq >= group.next_seq:
            group.remember(seq, error)
        elif seq not in group.verdicts and isinstance(error, CollectiveMismatchError):
            group.remember(seq, error)
            group.pending = error

    def _find(self, stream: int, header: Any) -> tuple[Group, Operation | None]:
        if not isinstance(header, list) or len(header) not in (3, 5):
            raise FrameError("the header of a frame of an operation has 3 or 5 fields")
        if type(header[0]) is not int or type(header[1]) is not int or type(header[2]) is not int:
            raise FrameError("epoch, seq and index are whole numbers")
        if len(header) == 5 and (type(header[3]) is not bytes or type(header[4]) is not int):
            raise FrameError("a call and its remaining time were expected")
        group = self._groups.get(stream)
        if group is None:
            raise FrameError(f"there is no group on stream {stream}")
        if header[0] != group.epoch:
            return group, None
        return group, group.ops.get(header[1])

    def _is_early(self, group: Group, header: list[Any]) -> bool:
        epoch, seq = header[0], header[1]
        if epoch == group.epoch:
            return bool(seq >= group.next_seq) and seq not in group.verdicts
        return bool(epoch > group.epoch)

    def _early_flow(self, link: Link, group: Group, header: list[Any], intro: int) -> Any:
        epoch, seq = header[0], header[1]
        if epoch == group.epoch and seq > group.next_seq + 4 * self.options.max_in_flight:
            raise FrameError(f"operation {seq} is too far ahead of {group.next_seq}")
        held = self.early.flow(group.number, epoch, seq, link.peer)
        if len(header) > intro:
            held.spec = header[intro]
            held.deadline = self.now() + header[intro + 1] / 1e3
        return held

    def _answer_late(self, link: Link, group: Group, header: list[Any]) -> None:
        """A frame for an operation that is over here: say how it ended, if it failed."""
        self.dropped_frames += 1
        epoch, seq = header[0], header[1]
        verdict = group.verdicts.get(seq)
        if epoch == group.epoch and verdict is not None:
            link.send_note(Kind.ABORT, group.stream, [epoch, seq, verdict.to_wire()])

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
        self._live.pop(op, None)
        if error is None:
            self.completed += 1
        self._surroundings.op_ended(op, error)

    def _tick(self) -> None:
        """Deadlines, silence, and probes of all operations in flight."""
        if not self._live:
            self._ticking = False
            return
        self.loop.call_later(self.options.tick_s, self._tick)
        now = self.now()
        for op in list(self._live):
            if not op.live:
                continue
            if now >= op.deadline:
                self.fail(op, failures.timed_out(op, elapsed_s=now - op.started, quiet=None))
            else:
                self._check_silence(op, now)

    def _check_silence(self, op: Operation, now: float) -> None:
        quiet = []
        for flow in op.flows.values():
            if not flow.owed():
                continue
            if flow.recv_payload_bytes + flow.recv_i != flow.seen_bytes:
                flow.seen_bytes = flow.recv_payload_bytes + flow.recv_i
                flow.quiet_s = 0.0
                continue
            flow.quiet_s += self.options.tick_s
            if op.recv_timeout_s and flow.quiet_s >= op.recv_timeout_s:
                quiet.append(flow.peer)
            elif flow.quiet_s >= PROBE_AFTER_S:
                op.announce(flow)
        if quiet:
            self.fail(op, failures.timed_out(op, elapsed_s=now - op.started, quiet=quiet))
