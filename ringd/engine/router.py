"""Frames to operations: finds the one a frame belongs to, or keeps it, or says that it is over.

A frame's operation is live here, or not entered yet (the frame is kept, within bounds), or over
(the frame is dropped; if the operation failed, the sender is told how).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringd.engine import failures
from ringd.engine.early import EarlyFlow, EarlyStore
from ringd.engine.landing import bin_for
from ringd.vocabulary import MAX_SPEC_BYTES
from ringd.wire.decoder import Sink
from ringd.wire.frame import FrameError, Kind

if TYPE_CHECKING:
    from ringd.engine.engine import Engine
    from ringd.engine.flow import FlowState
    from ringd.engine.group import Group
    from ringd.engine.link import Link
    from ringd.engine.operation import Operation

AHEAD_FACTOR = 4
"""How many times the bound of operations in flight a peer may be ahead of us."""


class Router:
    """The frames of all groups of one rank."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.early = EarlyStore()
        self.dropped_frames = 0

    def on_data(
        self, link: Link, stream: int, header: Any, size: int, inline: memoryview | None
    ) -> Sink | None:
        """A segment came on ``link``."""
        group, op = self._find(link, stream, header)
        if op is not None:
            flow = self._flow_of(link, op, header)
            if flow is None:
                return bin_for(size, inline)
            return op.take_data(flow, header, size, inline)
        if self._is_early(group, stream, header):
            if size and inline is None:
                raise FrameError("a large segment came before it was asked for")
            held = self._hold(link, group, stream, header)
            self.early.keep(held, header[:3], bytes(inline) if inline is not None else b"")
        else:
            self._answer_late(link, group, stream, header)
        return bin_for(size, inline)

    def on_credit(self, link: Link, stream: int, header: Any) -> None:
        """A peer has room for segments."""
        group, op = self._find(link, stream, header)
        if op is not None:
            flow = self._flow_of(link, op, header)
            if flow is not None:
                op.take_credit(flow, header[2])
        elif self._is_early(group, stream, header):
            held = self._hold(link, group, stream, header)
            held.credit = max(held.credit, header[2])
        else:
            self._answer_late(link, group, stream, header)

    def on_envelope(self, link: Link, stream: int, header: Any) -> None:
        """A peer entered an operation, says with what call, and may wait for credit."""
        if not isinstance(header, list) or len(header) not in (4, 5):
            raise FrameError("an envelope is [epoch, seq, spec, remaining_ms] and perhaps a pair")
        header = [*header[:2], 0, *header[2:]]
        group, op = self._find(link, stream, header)
        if op is not None:
            if link.peer not in op.flows:  # its schedule has no business with us
                if self._same_call(link, op, header):
                    op.answer(link)
                return
            flow = self._flow_of(link, op, header)
            if flow is not None:
                flow.grant_asked()
        elif self._is_early(group, stream, header):
            self._hold(link, group, stream, header).asks = True
        else:
            self._answer_late(link, group, stream, header)

    def on_abort(self, link: Link, stream: int, header: Any) -> None:
        """A peer says that an operation ended with an error."""
        well_formed = isinstance(header, list) and len(header) == 3
        if not well_formed or type(header[0]) is not int or type(header[1]) is not int:
            raise FrameError("an abort is [epoch, seq, error]")
        group = self._engine.groups.get(stream)
        if group is not None:
            if not failures.is_end_of_epoch(header[2]):
                error = failures.from_peer(header[2])
            elif self._engine.endings.in_reach():
                return  # who is lost, and when an epoch is over, is for the rendezvous to say
            else:
                error = failures.end_from_peer(link.peer, header[2])
            self._engine.endings.told(group, link.peer, header[0], header[1], error)

    def _find(self, link: Link, stream: int, header: Any) -> tuple[Group | None, Operation | None]:
        """The group of a frame, if it is there, and its operation if it is live here.

        Raises:
            FrameError: the header is malformed.
        """
        if not isinstance(header, list) or len(header) not in (3, 5, 6):
            raise FrameError("the header of a frame of an operation has 3, 5 or 6 fields")
        if type(header[0]) is not int or type(header[1]) is not int or type(header[2]) is not int:
            raise FrameError("epoch, seq and index are whole numbers")
        if len(header) > 3:
            _check_introduction(header)
        group = self._engine.groups.get(stream)
        if group is None or link.peer not in group.ranks:
            return None, None
        link.ahead_of(stream).peer_entered(header[0], header[1])
        if header[0] != group.epoch:
            return group, None
        return group, group.ops.get(header[1])

    def _same_call(self, link: Link, op: Operation, header: list[Any]) -> bool:
        """Compare the call in a first frame with ours; a difference ends the operation."""
        if len(header) > 3:
            if header[3] != op.spec.packed:
                op.mismatch(link.peer, header[3])
                return False
            op.bound_deadline(self._engine.now() + header[4] / 1e3, link.peer)
            if len(header) > 5:
                return op.same_pair(link.peer, header[5])
        return True

    def _flow_of(self, link: Link, op: Operation, header: list[Any]) -> FlowState | None:
        """The flow that a frame belongs to; None if its sender called something else, now or
        in an earlier frame.

        Raises:
            ProtocolError: the call is the same, and its schedule has no such frame.
        """
        if not self._same_call(link, op, header):
            return None
        flow = op.flows.get(link.peer)
        if flow is None:
            if op.failing is not None:  # it follows a frame of another call
                return None
            raise failures.protocol(link.peer, f"a frame for {op.spec}, where it has no part")
        flow.recv_overhead_bytes += link.connection.head_bytes
        return flow

    def _is_early(self, group: Group | None, stream: int, header: list[Any]) -> bool:
        epoch, seq = header[0], header[1]
        if group is None:
            return self._engine.groups.is_future(stream, epoch)
        if epoch == group.epoch:
            ahead = bool(seq >= group.next_seq) and seq not in group.verdicts
            return ahead and group.broken is None
        return bool(epoch > group.epoch)

    def _hold(self, link: Link, group: Group | None, stream: int, header: list[Any]) -> EarlyFlow:
        """Keep a frame of an operation that is not entered yet."""
        epoch, seq = header[0], header[1]
        next_seq = group.next_seq if group is not None and epoch == group.epoch else 0
        if seq > next_seq + AHEAD_FACTOR * self._engine.options.max_in_flight:
            raise FrameError(f"operation {seq} is too far ahead of {next_seq}")
        overhead = link.connection.head_bytes
        held = self.early.flow(stream - 1, epoch, seq, link.peer, overhead)
        if len(header) > 3:
            held.spec = header[3]
            held.deadline = self._engine.now() + header[4] / 1e3
            held.pair = header[5] if len(header) > 5 else None
        return held

    def _answer_late(self, link: Link, group: Group | None, stream: int, header: list[Any]) -> None:
        """A frame for an operation that is over here: say how it ended, if it failed."""
        self.dropped_frames += 1
        epoch, seq = header[0], header[1]
        if epoch != self._engine.world.epoch:
            return
        if group is None:
            verdict = self._engine.groups.farewell(stream - 1, seq)
        else:
            verdict = group.verdicts.get(seq)
            if verdict is None and len(header) > 3 and seq < group.next_seq:
                self._engine.endings.void_late(group, seq, link.peer, header[3])
            verdict = verdict or group.broken
        if verdict is not None:
            link.send_note(Kind.ABORT, stream, [epoch, seq, verdict.to_wire()])


def _check_introduction(header: list[Any]) -> None:
    spec, remaining_ms = header[3], header[4]
    if type(spec) is not bytes or type(remaining_ms) is not int:
        raise FrameError("a call and its remaining time were expected")
    if len(spec) > MAX_SPEC_BYTES:
        raise FrameError(f"a call of {len(spec)} bytes is over the limit {MAX_SPEC_BYTES}")
    if len(header) > 5:
        pair = header[5]
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(n) is int for n in pair):
            raise FrameError("how much is sent and wanted are two whole numbers")
