"""One collective in flight: the executor of any plan.

It moves cursors. Per peer there is a flow with what is still to send and to receive, in order;
per cell a version that counts the applications done. A segment is sent when its cell has the
version it needs, the peer has room, and the socket takes it; a segment that arrives is applied
in the order of applications, whichever order peers have. Nothing here waits or does I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ringd.engine import failures
from ringd.engine.flow import FlowState
from ringd.engine.landing import Bin, CopyLanding, FoldLanding, Parked
from ringd.errors import RingdError
from ringd.schedules.plan import Application, Plan, RecvItem
from ringd.vocabulary import OpSpec
from ringd.wire.decoder import Sink
from ringd.wire.frame import Kind

if TYPE_CHECKING:
    from ringd.engine.early import EarlyFlow
    from ringd.engine.engine import Engine
    from ringd.engine.group import Compiled, Group
    from ringd.engine.link import Link
    from ringd.kernels.base import Kernel

OnDone = Callable[[RingdError | None], None]
SIGN_EVERY_TICKS = 10
"""How often an operation that stands still shows that this rank lives."""
COPY_BYTES = 16 * 1024
"""A segment up to this size is copied when sent, so that nobody waits for its acknowledgement."""


class Operation:
    """State of one collective on one rank.

    The region is the caller's until ``on_done``; it is called exactly once, with None or the
    error. After it nothing here reads or writes the region.
    """

    __slots__ = (
        "acc",
        "array",
        "deadline",
        "engine",
        "ended_ns",
        "epoch",
        "flows",
        "group",
        "holds",
        "kernel",
        "live",
        "mem",
        "on_done",
        "next_sign",
        "parked",
        "plan",
        "progress_seen",
        "rank",
        "recv_timeout_s",
        "reduce_ns",
        "remaining_recvs",
        "remaining_sends",
        "seq",
        "source",
        "spec",
        "started",
        "stalled_s",
        "started_ns",
        "timeout_s",
        "version",
        "wide_mem",
    )

    def __init__(
        self,
        engine: Engine,
        group: Group,
        compiled: Compiled,
        seq: int,
        mem: memoryview,
        on_done: OnDone,
    ) -> None:
        plan = compiled.plan
        self.engine = engine
        self.group = group
        self.epoch = group.epoch
        self.rank = engine.rank
        self.spec: OpSpec = compiled.spec
        self.plan: Plan = plan
        kernel = compiled.kernel
        self.kernel = cast("Kernel", kernel)  # None for moves, which never look at it
        self.seq = seq
        self.mem = mem
        self.source = mem
        self.on_done = on_done
        self.live = True
        self.progress_seen = -1
        self.stalled_s = 0.0
        self.next_sign = 0
        self.version = [0] * plan.n_cells
        self.parked: dict[tuple[int, int], Parked] = {}
        self.remaining_recvs = plan.recv_items
        self.remaining_sends = plan.send_items
        self.holds = 0
        self.reduce_ns = 0
        self.started_ns = self.ended_ns = 0
        self.deadline = self.started = self.timeout_s = self.recv_timeout_s = 0.0
        self.array: Any = None
        self.acc: Any = None
        self.wide_mem = mem
        if kernel is not None and len(mem):
            self.array = self.acc = np.frombuffer(mem, kernel.storage)
            if plan.wide:
                self._widen()
        stream = group.stream
        self.flows = {flow.peer: FlowState(self, flow, stream) for flow in plan.flows}

    def _widen(self) -> None:
        """Ring and tree keep float32 partial sums of 16-bit data in memory of their own."""
        self.acc = np.empty(len(self.array), self.kernel.accumulator)
        self.kernel.widen(self.array, self.acc)
        self.wide_mem = memoryview(self.acc).cast("B")

    # Beginning

    def start(self, early: dict[int, EarlyFlow] | None) -> None:
        """Open all flows, then take what peers that were ahead of us have sent already."""
        if early is not None and not self._same_call(early):
            return
        if self.plan.schedule.snapshot and not all(f.eager for f in self.flows.values()):
            self.source = memoryview(bytes(self.mem))
        links = self.engine.links
        for peer, flow in self.flows.items():
            link = links.get(peer)
            if link is None:
                self.engine.await_link(self, peer)
            else:
                self.open_flow(flow, link)
                if not self.live:
                    return
        if self.remaining_sends and self.source is self.mem and self.plan.schedule.snapshot:
            self.source = memoryview(bytes(self.mem))
        if early is not None:
            self._take_early(early)
        if self.live:
            self._finish_if_done()

    def open_flow(self, flow: FlowState, link: Link) -> None:
        """The link is there: say what we will take, and begin to send."""
        flow.link = link
        if not flow.flow.recv_eager:
            self._grant(flow, link)
        if flow.eager and flow.n_sends:
            ahead = link.ahead_of(flow.stream)
            if not ahead.allows(self.epoch, self.seq, flow.flow.send_bytes):
                flow.eager = False  # until the peer, which hears of us now, gives credit
                flow.credit = 0
        if flow.can_send():
            link.enqueue(flow)
        elif not flow.eager and not flow.introduced:
            self.announce(flow)

    def stalled(self, tick_s: float) -> float:
        """For how long nothing has come or gone, in seconds; called once a tick."""
        progress = self.remaining_recvs + self.remaining_sends + self.holds
        progress += sum(flow.recv_payload_bytes for flow in self.flows.values())
        if progress != self.progress_seen:
            self.progress_seen = progress
            self.stalled_s = 0.0
        else:
            self.stalled_s += tick_s
        return self.stalled_s

    def show_life(self, *, again: bool) -> None:
        """Nothing moves: tell all peers that we entered, and ``again`` now and then."""
        self.next_sign -= 1
        for flow in self.flows.values():
            if not flow.introduced:
                self.announce(flow)
            elif again and self.next_sign <= 0 and flow.link is not None:
                header = [self.epoch, self.seq, *self._introduction(flow)]
                flow.sent_overhead_bytes += flow.link.send_note(Kind.ENVELOPE, flow.stream, header)
        if self.next_sign <= 0:
            self.next_sign = SIGN_EVERY_TICKS

    def announce(self, flow: FlowState) -> None:
        """Tell a peer that we entered, and with what call, when no payload can go yet."""
        if flow.link is not None and not flow.introduced:
            header = [self.epoch, self.seq, *self._introduction(flow)]
            flow.sent_overhead_bytes += flow.link.send_note(Kind.ENVELOPE, flow.stream, header)

    def _introduction(self, flow: FlowState) -> tuple[bytes, int]:
        flow.introduced = True
        remaining_s = self.deadline - self.engine.now()
        return self.spec.packed, max(1, int(remaining_s * 1e3))

    def _grant(self, flow: FlowState, link: Link) -> None:
        """Give credit for as many segments as we have a place for."""
        allowance = self._allowance(flow)
        if allowance <= flow.granted:
            return
        full = allowance == len(flow.flow.recvs)
        if flow.granted and not full and allowance - flow.granted < flow.flow.window // 2:
            return
        flow.granted = allowance
        header: list[Any] = [self.epoch, self.seq, allowance]
        if not flow.introduced:
            header += self._introduction(flow)
        flow.sent_overhead_bytes += link.send_note(Kind.CREDIT, flow.stream, header)

    def grant_asked(self, flow: FlowState) -> None:
        """The peer announced itself; if its data is eager it holds it back, so ask for it."""
        if flow.flow.recv_eager and flow.flow.recvs and not flow.granted and flow.link is not None:
            flow.granted = len(flow.flow.recvs)
            header: list[Any] = [self.epoch, self.seq, flow.granted]
            if not flow.introduced:
                header += self._introduction(flow)
            flow.sent_overhead_bytes += flow.link.send_note(Kind.CREDIT, flow.stream, header)

    def _allowance(self, flow: FlowState) -> int:
        recvs = flow.flow.recvs
        if not flow.flow.window:
            return len(recvs)
        at = min(flow.recv_i, len(recvs))
        while at > 0 and self.version[recvs[at - 1].cell] <= recvs[at - 1].application:
            at -= 1
        return min(len(recvs), at + flow.flow.window)

    # Sending

    def send_next(self, flow: FlowState) -> None:
        """Send the next segment of ``flow``; the caller made sure that it may go."""
        index = flow.send_i
        item = flow.sends[index]
        flow.send_i = index + 1
        self.remaining_sends -= 1
        source = self.wide_mem if item.wide else self.source
        size = item.size_bytes
        header: list[Any] = [self.epoch, self.seq, index]
        if not flow.introduced:
            header += self._introduction(flow)
        hold = size > COPY_BYTES and not flow.eager
        if hold:
            self.holds += 1
            flow.held = True
        link = flow.link
        assert link is not None
        payload = source[item.offset : item.offset + size]
        flow.sent_overhead_bytes += link.send_data(flow, header, payload, hold)
        flow.sent_payload_bytes += size
        if not self.remaining_sends:
            self._finish_if_done()

    def released(self) -> None:
        """A peer acknowledged a held segment."""
        self.holds -= 1
        if not self.holds and self.live:
            self._finish_if_done()

    def take_credit(self, flow: FlowState, items: int) -> None:
        """The peer has room for ``items`` segments in all."""
        if items > flow.credit and self.live:
            flow.credit = min(items, flow.n_sends)
            if flow.link is not None and flow.can_send():
                flow.link.enqueue(flow)

    # Receiving

    def take_data(
        self, flow: FlowState, header: list[Any], size: int, inline: memoryview | None
    ) -> Sink | None:
        """A segment came: apply it, or say where its bytes go."""
        index = flow.recv_i
        recvs = flow.flow.recvs
        if header[2] != index or index >= len(recvs) or recvs[index].size_bytes != size:
            raise failures.protocol(
                flow.peer, f"segment {header[2]} of {size} bytes where segment {index} was due"
            )
        item = recvs[index]
        flow.recv_i = index + 1
        if inline is not None or not size:
            flow.recv_payload_bytes += size
            self._take_inline(flow, item, inline if inline is not None else memoryview(b""))
            return None
        return self._landing(flow, item)

    def _landing(self, flow: FlowState, item: RecvItem) -> Sink:
        in_turn = self.version[item.cell] == item.application
        if not item.reduce and in_turn:
            target = self.mem[item.offset : item.offset + item.size_bytes]
            return CopyLanding(self, flow, item, target, None)
        app = self.plan.applications[item.cell][item.application]
        if in_turn and app.contributions == 1:
            return FoldLanding(self, flow, item, app)
        buffer = self.engine.scratch.take(item.size_bytes)
        return CopyLanding(self, flow, item, memoryview(buffer), buffer)

    def _take_inline(self, flow: FlowState, item: RecvItem, data: memoryview) -> None:
        in_turn = self.version[item.cell] == item.application
        if not item.reduce and in_turn:
            if item.size_bytes:
                self.mem[item.offset : item.offset + item.size_bytes] = data
            self.applied(item.cell, 1)
            return
        app = self.plan.applications[item.cell][item.application]
        if in_turn and app.contributions == 1:
            if item.length:
                self.fold_one(item, app, data, 0, item.length)
            self.applied(item.cell, 1)
        else:
            self.park(item, bytes(data))

    def copied(self, flow: FlowState, item: RecvItem) -> None:
        """A moved segment lies in its place."""
        self.applied(item.cell, 1)

    def fold_one(
        self, item: RecvItem, app: Application, data: memoryview, done: int, count: int
    ) -> None:
        """Fold ``count`` elements of a lone contribution, from element ``done`` of the item on."""
        begun = perf_counter_ns()
        kernel = self.kernel
        start = item.start + done
        mine = self.array[start : start + count]
        if self._folds_raw(app, item.wide):
            other = np.frombuffer(data, kernel.storage)
            kernel.fold((other, mine) if app.own else (mine, other), mine)
        else:
            acc = self.acc[start : start + count]
            kernel.reduce_into(acc, np.frombuffer(data, kernel.accumulator))
            if app.finalise and kernel.needs_finalise:
                kernel.finalise(acc, mine)
        self.reduce_ns += perf_counter_ns() - begun

    def _folds_raw(self, app: Application, wide: bool) -> bool:
        """Contributions as ranks gave them, folded to the end in rank order (not partial sums)."""
        return app.finalise and not wide and self.plan.schedule.fold == "rank"

    def park(self, item: RecvItem, buffer: bytearray | bytes) -> None:
        """Keep a contribution until its application is complete and in turn."""
        key = (item.cell, item.application)
        parked = self.parked.get(key)
        if parked is None:
            app = self.plan.applications[item.cell][item.application]
            parked = self.parked[key] = Parked(app.contributions, app.own)
        parked.buffers[item.position] = buffer
        parked.missing -= 1
        if not parked.missing and self.version[item.cell] == item.application:
            self._apply_parked(item.cell, item.application)

    def _apply_parked(self, cell: int, application: int) -> None:
        parked = self.parked.pop((cell, application))
        app = self.plan.applications[cell][application]
        start, count = self.plan.cell_spans[cell]
        if count:
            begun = perf_counter_ns()
            if app.own < 0:
                itemsize = self.spec.itemsize
                self.mem[start * itemsize : (start + count) * itemsize] = parked.buffers[0] or b""
            else:
                self._fold_parked(parked, app, start, count)
            self.reduce_ns += perf_counter_ns() - begun
        give = self.engine.scratch.give
        for buffer in parked.buffers:
            if type(buffer) is bytearray:
                give(buffer)
        self.applied(cell, app.contributions)

    def _fold_parked(self, parked: Parked, app: Application, start: int, count: int) -> None:
        kernel = self.kernel
        mine = self.array[start : start + count]
        if self._folds_raw(app, self.plan.wide):
            kernel.fold(parked.arrays(kernel.storage, app.own, mine), mine)
            return
        acc = self.acc[start : start + count]
        for place, buffer in enumerate(parked.buffers):
            if place != app.own:
                assert buffer is not None
                kernel.reduce_into(acc, np.frombuffer(buffer, kernel.accumulator))
        if app.finalise and kernel.needs_finalise:
            kernel.finalise(acc, mine)

    def applied(self, cell: int, items: int) -> None:
        """A cell went one application further: whoever waited for that may go on."""
        self.remaining_recvs -= items
        version = self.version[cell] = self.version[cell] + 1
        if self.parked:
            parked = self.parked.get((cell, version))
            if parked is not None and not parked.missing:
                self._apply_parked(cell, version)
                return
        if self.remaining_sends:
            for flow in self.flows.values():
                if flow.link is not None and not flow.queued and flow.can_send():
                    flow.link.enqueue(flow)
        if self.remaining_recvs:
            for flow in self.flows.values():
                if flow.flow.window and not flow.flow.recv_eager and flow.link is not None:
                    self._grant(flow, flow.link)
        elif self.live:
            self._finish_if_done()

    # Early arrivals, ending

    def _same_call(self, early: dict[int, EarlyFlow]) -> bool:
        ours = self.spec.packed
        for peer, held in early.items():
            if held.spec is not None and held.spec != ours:
                self.mismatch(peer, held.spec)
                return False
        return True

    def _take_early(self, early: dict[int, EarlyFlow]) -> None:
        for peer, held in early.items():
            self.bound_deadline(held.deadline)
            flow = self.flows.get(peer)
            if flow is None:
                continue
            flow.recv_overhead_bytes += held.overhead_bytes
            if held.credit:
                self.take_credit(flow, held.credit)
            if held.asks and self.live:
                self.grant_asked(flow)
            try:
                for header, payload in held.segments:
                    if self.live:
                        self.take_data(flow, header, len(payload), memoryview(payload))
            except Exception as exc:  # the peer's fault, as if it had come just now
                if flow.link is not None:
                    flow.link.connection.fail(exc)

    def bound_deadline(self, deadline: float) -> None:
        """A peer's deadline for this operation is ours too: the first to expire ends it."""
        if deadline and deadline < self.deadline:
            self.deadline = deadline

    def mismatch(self, peer: int, theirs: bytes) -> None:
        """A peer called something else at our place in the order."""
        error = failures.mismatch(
            seq=self.seq,
            epoch=self.epoch,
            rank=self.rank,
            ours=self.spec,
            peer=peer,
            theirs=theirs,
        )
        self.engine.fail(self, error)

    def _finish_if_done(self) -> None:
        if not (self.remaining_recvs or self.remaining_sends or self.holds):
            self.end(None)

    def end(self, error: RingdError | None) -> None:
        """The one way out; afterwards the region is the caller's again."""
        if not self.live:
            return
        self.live = False
        if error is not None:
            for flow in self.flows.values():
                flow.credit = 0  # whatever turn it still has on a link, it sends no more
                if flow.link is not None:
                    flow.link.release(self)
        self.engine.ended(self, error)
        self.mem = self.source = self.wide_mem = memoryview(b"")
        self.array = self.acc = None
        self.parked.clear()
        self.on_done(error)

    def progress(self) -> dict[str, Any]:
        """How far it is: bytes received, and the peers that still owe us some."""
        return {
            "waiting_on": sorted(p for p, f in self.flows.items() if f.owed())
            or sorted(p for p, f in self.flows.items() if f.send_i < f.n_sends),
            "bytes_done": sum(f.recv_payload_bytes for f in self.flows.values()),
            "bytes_total": self.plan.recv_bytes,
        }


def bin_for(size_bytes: int, inline: memoryview | None) -> Sink | None:
    """Where an unwanted payload goes."""
    return Bin(size_bytes) if size_bytes and inline is None else None
