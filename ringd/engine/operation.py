"""One collective in flight: the executor of any plan.

It moves cursors. Per peer there is a flow with what is still to send and to receive, in order;
per cell a version that counts the applications done. A segment is sent when its cell has the
version it needs, the peer has room, and the socket takes it; a segment that arrives is applied
in the order of applications, whichever order peers have. Nothing here waits or does I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ringd.engine import failures
from ringd.engine.flow import FlowState
from ringd.engine.folding import Folding
from ringd.engine.landing import CopyLanding, FoldLanding, Parked, bin_for
from ringd.engine.link import LAST_FRAMES
from ringd.engine.times import NO_TIMES, OTHERS_S
from ringd.errors import RingdError
from ringd.schedules.plan import REGION, TRANSIT, WIDE, Plan, RecvItem
from ringd.vocabulary import OpSpec
from ringd.wire.decoder import Sink
from ringd.wire.frame import Kind

if TYPE_CHECKING:
    from ringd.engine.compiler import Compiled
    from ringd.engine.early import EarlyFlow
    from ringd.engine.engine import Engine
    from ringd.engine.group import Group
    from ringd.engine.link import Link

OnDone = Callable[[RingdError | None, int | None], None]
"""How a request ended: None or the error, and for a receive the sender's rank in the group."""
SIGN_EVERY_TICKS = 10
"""How often an operation that stands still shows that this rank lives."""
COPY_BYTES = 16 * 1024
"""A segment up to this size is copied when sent, so that nobody waits for its acknowledgement."""
PARTING_BYTES = 1024 * 1024
"""Between hosts the last segments are copied, up to so much for a peer, instead of waiting for
their acks: an ack may stand in its sender's queue behind what that sends to others."""


class Operation:
    """State of one collective on one rank.

    The region is the caller's until ``on_done``; it is called exactly once, with None or the
    error. After it nothing here reads or writes the region.

    ``deadline`` is the first of all that we know, in loop time; ``due`` is when it ends here, and
    ``bounded_by`` the peer whose deadline that is (-1: our own).
    """

    __slots__ = (
        "announced",
        "bounded_by",
        "deadline",
        "due",
        "engine",
        "ended_ns",
        "epoch",
        "failing",
        "flows",
        "folding",
        "group",
        "holds",
        "live",
        "mem",
        "on_done",
        "next_sign",
        "pairs",
        "parked",
        "plan",
        "progress_seen",
        "rank",
        "readers",
        "remaining_recvs",
        "remaining_sends",
        "seq",
        "spaces",
        "spec",
        "started",
        "stalled_s",
        "started_ns",
        "times",
        "version",
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
        self.seq = seq
        self.mem = mem
        self.on_done = on_done
        self.live = True
        self.failing: RingdError | None = None
        self.progress_seen = -1
        self.stalled_s = 0.0
        self.next_sign = 0
        self.announced: dict[int, float] = {}
        self.version = [0] * plan.n_cells
        self.readers = [counts[0] for counts in plan.readers] if plan.readers else None
        self.parked: dict[tuple[int, int], Parked] = {}
        self.remaining_recvs = plan.recv_items
        self.remaining_sends = plan.send_items
        self.holds = 0
        self.started_ns = self.ended_ns = 0
        self.times = NO_TIMES
        self.deadline = self.due = self.started = 0.0
        self.bounded_by = -1
        self.spaces = [mem, mem, mem]
        self.folding: Folding | None = None
        if compiled.kernel is not None and len(mem):
            self.folding = Folding(compiled.kernel, plan, mem)
            self.spaces[WIDE] = self.folding.wide_mem
        if plan.transit_bytes:
            self.spaces[TRANSIT] = memoryview(bytearray(plan.transit_bytes))
        stream, ranks = group.stream, compiled.ranks
        self.flows = {ranks[f.peer]: FlowState(self, f, ranks[f.peer], stream) for f in plan.flows}
        self.pairs = dict(zip(ranks, compiled.pairs, strict=False))

    @property
    def reduce_ns(self) -> int:
        """Time spent in reduction kernels, while the operation lasts."""
        return 0 if self.folding is None else self.folding.reduce_ns

    # Beginning

    def start(self, early: dict[int, EarlyFlow] | None) -> None:
        """Open all flows, then take what peers that were ahead of us have sent already."""
        if early is not None and not self._same_call(early):
            return
        links = self.engine.links
        for peer, flow in self.flows.items():
            link = links.get(peer)
            if link is None:
                self.engine.await_link(self, peer)
            else:
                flow.open(link)
                if not self.live:
                    return
        if early is not None:
            self._take_early(early)
        if self.live:
            self._finish_if_done()

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

    def show_life(self, shown: set[int]) -> None:
        """Nothing moves: tell all peers that we entered, and now and then again those whom no older
        operation does; they are ``shown`` then."""
        self.next_sign -= 1
        for flow in self.flows.values():
            flow.announce(again=self.next_sign <= 0 and flow.peer not in shown)
        shown.update(self.flows)
        if self.next_sign <= 0:
            self.next_sign = SIGN_EVERY_TICKS

    def announce_to_all(self) -> None:
        """A barrier that stands still: whoever has come tells everybody, and late ranks show."""
        for rank in self.group.ranks:
            if rank == self.rank or rank in self.flows:
                continue
            link = self.engine.links.get(rank)
            if link is None:
                self.engine.want_link(rank)
            else:
                self.answer(link)

    def answer(self, link: Link) -> None:
        """Tell a member with which we have no business that we have entered, once."""
        if link.peer not in self.announced:
            self.announced[link.peer] = self.engine.now()
            link.users.add(self.group.stream)
            header = [self.epoch, self.seq, self.spec.packed, self.remaining_ms()]
            link.send_note(Kind.ENVELOPE, self.group.stream, header)

    def remaining_ms(self) -> int:
        """Until our deadline, for our peers."""
        return max(1, int((self.deadline - self.engine.now()) * 1e3))

    # Sending

    def send_next(self, flow: FlowState) -> None:
        """Send the next segment of ``flow``; the caller made sure that it may go."""
        index = flow.send_i
        item = flow.sends[index]
        flow.send_i = index + 1
        self.remaining_sends -= 1
        size = item.size_bytes
        header: list[Any] = [self.epoch, self.seq, index]
        if not flow.introduced:
            header += flow.introduction()
        readers = self.readers
        hold = size > COPY_BYTES and not flow.eager and readers is None
        if hold:
            self.holds += 1
            flow.held = True
        link = flow.link
        assert link is not None
        payload = self.spaces[item.space][item.offset : item.offset + size]
        flow.sent_overhead_bytes += link.send_data(flow, header, payload, hold)
        flow.sent_payload_bytes += size
        if readers is not None:
            self._left(item.reads)
        if not self.remaining_sends:
            self._finish_if_done()

    def _left(self, cell: int) -> None:
        """A copy of a guarded cell has left: the last one frees it for the next application."""
        readers = self.readers
        assert readers is not None
        readers[cell] -= 1
        if not readers[cell] and self.parked and self.live:
            self._apply_next(cell)

    def released(self) -> None:
        """A peer acknowledged a held segment."""
        self.holds -= 1
        if self.holds <= LAST_FRAMES and self.live:
            self._finish_if_done()

    def take_credit(self, flow: FlowState, items: int) -> None:
        """The peer has room for ``items`` segments in all."""
        if items > flow.credit and self.live and self.failing is None:
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
            if self.failing is not None:  # it follows a frame of another call, which was dropped
                return bin_for(size, inline)
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

    def _in_turn(self, item: RecvItem) -> bool:
        """Whether the cell may be changed by this item's application now."""
        free = self.readers is None or not self.readers[item.cell]
        return free and self.version[item.cell] == item.application

    def _landing(self, flow: FlowState, item: RecvItem) -> Sink:
        in_turn = self._in_turn(item)
        if not item.reduce and in_turn:
            target = self.spaces[item.space][item.offset : item.offset + item.size_bytes]
            return CopyLanding(self, flow, item, target, None)
        app = self.plan.applications[item.cell][item.application]
        if in_turn and app.contributions == 1:
            return FoldLanding(self, flow, item, app)
        buffer = self.engine.scratch.take(item.size_bytes)
        return CopyLanding(self, flow, item, memoryview(buffer), buffer)

    def _take_inline(self, flow: FlowState, item: RecvItem, data: memoryview) -> None:
        in_turn = self._in_turn(item)
        if not item.reduce and in_turn:
            if item.size_bytes:
                self.spaces[item.space][item.offset : item.offset + item.size_bytes] = data
            self.applied(item.cell, 1)
            return
        app = self.plan.applications[item.cell][item.application]
        if in_turn and app.contributions == 1:
            if item.length:
                assert self.folding is not None
                self.folding.one(item, app, data, 0, item.length)
            self.applied(item.cell, 1)
        else:
            self.park(item, bytes(data))

    def copied(self, flow: FlowState, item: RecvItem) -> None:
        """A moved segment lies in its place."""
        self.applied(item.cell, 1)

    def park(self, item: RecvItem, buffer: bytearray | bytes) -> None:
        """Keep a contribution until its application is complete and in turn."""
        key = (item.cell, item.application)
        parked = self.parked.get(key)
        if parked is None:
            app = self.plan.applications[item.cell][item.application]
            parked = self.parked[key] = Parked(app.contributions, app.own)
        parked.buffers[item.position] = buffer
        parked.missing -= 1
        if not parked.missing:
            self._apply_next(item.cell)

    def _apply_next(self, cell: int) -> None:
        """Do a cell's next application if all of it is parked, and the cell is free."""
        if self.readers is not None and self.readers[cell]:
            return
        application = self.version[cell]
        parked = self.parked.get((cell, application))
        if parked is None or parked.missing:
            return
        del self.parked[cell, application]
        app = self.plan.applications[cell][application]
        start, count = self.plan.cell_spans[cell]
        if count and app.own < 0:
            itemsize = self.spec.itemsize
            space = self.spaces[TRANSIT if self.plan.cell_in_transit[cell] else REGION]
            space[start * itemsize : (start + count) * itemsize] = parked.buffers[0] or b""
        elif count:
            assert self.folding is not None
            self.folding.together(parked, app, start, count, wide=self.plan.wide)
        give = self.engine.scratch.give
        for buffer in parked.buffers:
            if type(buffer) is bytearray:
                give(buffer)
        self.applied(cell, app.contributions)

    def applied(self, cell: int, items: int) -> None:
        """A cell went one application further: whoever waited for that may go on."""
        self.remaining_recvs -= items
        version = self.version[cell] = self.version[cell] + 1
        if self.readers is not None:
            self.readers[cell] = self.plan.readers[cell][version]
        if self.parked:
            self._apply_next(cell)
            if self.version[cell] != version:
                return  # which has done the rest
        if self.remaining_sends:
            for flow in self.flows.values():
                if flow.link is not None and not flow.queued and flow.can_send():
                    flow.link.enqueue(flow)
        if self.remaining_recvs:
            for flow in self.flows.values():
                if flow.flow.window and not flow.flow.recv_eager and flow.link is not None:
                    flow.grant()
        elif self.live:
            self._finish_if_done()

    # Early arrivals, ending

    def _same_call(self, early: dict[int, EarlyFlow]) -> bool:
        ours = self.spec.packed
        for peer, held in early.items():
            if held.spec is None or peer not in self.group.ranks:
                continue
            if held.spec != ours:
                self.mismatch(peer, held.spec)
                return False
            if not self.same_pair(peer, held.pair):
                return False
        return True

    def same_pair(self, peer: int, theirs: object) -> bool:
        """Compare what a peer sends us, and wants of us, with our own numbers (all_to_all)."""
        ours = self.pairs.get(peer)
        if ours is None or theirs is None or list(ours[::-1]) == theirs:
            return True
        error = failures.splits_differ(self, peer, ours, theirs)
        self.engine.endings.fail(self, error)
        return False

    def _take_early(self, early: dict[int, EarlyFlow]) -> None:
        for peer, held in early.items():
            if peer not in self.group.ranks:  # it meant another group of that number (Groups.void)
                continue
            self.bound_deadline(held.deadline, peer)
            flow = self.flows.get(peer)
            if flow is None:
                if held.asks and peer in self.engine.links and self.live:
                    self.answer(self.engine.links[peer])
                continue
            flow.recv_overhead_bytes += held.overhead_bytes
            if held.credit:
                self.take_credit(flow, held.credit)
            if held.asks and self.live:
                flow.grant_asked()
            try:
                for header, payload in held.segments:
                    if self.live:
                        self.take_data(flow, header, len(payload), memoryview(payload))
            except Exception as exc:  # the peer's fault, as if it had come just now
                if flow.link is not None:
                    flow.link.connection.fail(exc)

    def bound_deadline(self, deadline: float, peer: int) -> None:
        """A peer's deadline for this operation is ours too: the first to expire ends it.

        About as late as the one that we have is none: it may be the same, told back to us.
        """
        if deadline and deadline + OTHERS_S < self.deadline:
            self.deadline, self.due, self.bounded_by = deadline, deadline + OTHERS_S, peer

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
        self.engine.endings.fail(self, error)

    def _finish_if_done(self) -> None:
        if self.remaining_recvs or self.remaining_sends or self.failing:
            return
        if 0 < self.holds <= LAST_FRAMES:
            self._part_with_holds()
        if not self.holds:
            self.end(None)

    def _part_with_holds(self) -> None:
        """Nothing but acks is due: between hosts we are done as soon as there are copies."""
        for flow in self.flows.values():
            link = flow.link
            if flow.held and link is not None and link.far:
                self.holds -= link.part_with(self, PARTING_BYTES)

    def fail_soon(self, error: RingdError) -> None:
        """It failed here; until the verdict comes nothing more is sent, and it can't succeed.

        ``error``: with which it ends if no verdict comes.
        """
        for flow in self.flows.values():
            if self.failing is None:
                flow.note_withheld()
            flow.credit = 0
        self.failing = error

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
        self.flows = {}  # each points back here: without a circle memory is free, and warm, at once
        self.mem = memoryview(b"")
        self.spaces = [self.mem] * 3
        self.folding = None
        self.parked.clear()
        self.on_done(error, None)

    def view(self) -> dict[str, Any]:
        """What we know of it, for a verdict: whom we wait for, and how each link stands."""
        return {
            "state": "waiting",
            "entered_s": self.engine.now() - self.started,
            **self.progress(),
            "flows": [flow.view() for flow in self.flows.values()],
        }

    def progress(self) -> dict[str, Any]:
        """How far it is: bytes received, and the peers that still owe us some (or an ack)."""
        flows = self.flows.items()
        return {
            "waiting_on": sorted(p for p, f in flows if f.owed())
            or sorted(p for p, f in flows if f.send_i < f.n_sends)
            or sorted(p for p, f in flows if f.owes_ack()),
            "bytes_done": sum(f.recv_payload_bytes for f in self.flows.values()),
            "bytes_total": self.plan.recv_bytes,
        }
