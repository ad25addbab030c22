"""What passes between us and one peer in one operation: cursors over a plan's flow, and credit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringd.schedules.plan import Flow
from ringd.vocabulary import NEW_GROUP
from ringd.wire.frame import Kind

if TYPE_CHECKING:
    from ringd.engine.link import Link
    from ringd.engine.operation import Operation

_DATA = int(Kind.DATA)


class FlowState:
    """Cursors of one peer's flow; ``peer`` is a rank of the world."""

    __slots__ = (
        "credit",
        "eager",
        "flow",
        "granted",
        "held",
        "introduced",
        "kind",
        "link",
        "n_sends",
        "op",
        "peer",
        "queued",
        "quiet_s",
        "recv_i",
        "recv_overhead_bytes",
        "recv_payload_bytes",
        "seen",
        "send_i",
        "sends",
        "sent_overhead_bytes",
        "sent_payload_bytes",
        "stream",
        "withheld_bytes",
    )

    def __init__(self, op: Operation, flow: Flow, peer: int, stream: int) -> None:
        self.op = op
        self.flow = flow
        self.peer = peer
        self.stream = stream
        self.kind = _DATA
        self.link: Link | None = None
        self.sends = flow.sends
        self.n_sends = len(flow.sends)
        self.send_i = 0
        self.recv_i = 0
        self.credit = self.n_sends if flow.send_eager else 0
        self.granted = 0
        self.eager = flow.send_eager
        self.introduced = False
        self.held = False
        self.queued = False
        self.quiet_s = 0.0
        self.withheld_bytes = 0
        self.seen = 0
        self.sent_payload_bytes = self.sent_overhead_bytes = 0
        self.recv_payload_bytes = self.recv_overhead_bytes = 0

    def can_send(self) -> bool:
        """The next segment is there, and the peer has room for it."""
        at = self.send_i
        if at >= self.credit or at >= self.n_sends:
            return False
        item = self.sends[at]
        return self.op.version[item.cell] >= item.needs

    def view(self) -> list[Any]:
        """How it stands, for a verdict: see ``FlowView``; in order its fields, after the peer.

        What is owed or withheld counts each frame as one byte more, as frames may be empty.
        """
        flow = self.flow
        owed = flow.recv_bytes - self.recv_payload_bytes + len(flow.recvs) - self.recv_i
        if self.op.failing is None:
            self.note_withheld()
        return [self.peer, owed, self.recv_payload_bytes, self.withheld_bytes, float(self.quiet_s)]

    def note_withheld(self) -> None:
        """What we can't give the peer, whatever the link; once we fail, what comes is too late."""
        at = self.send_i
        waits = at < self.n_sends and self.op.version[self.sends[at].cell] < self.sends[at].needs
        rest = self.flow.send_bytes - self.sent_payload_bytes + self.n_sends - at
        self.withheld_bytes = rest if waits else 0

    def owed(self) -> bool:
        """The peer still has to send us something."""
        return self.recv_i < len(self.flow.recvs)

    def owes_ack(self) -> bool:
        """The peer has not acknowledged what we sent from memory that we hold for it."""
        return self.held and self.link is not None and self.link.owes_ack(self.op)

    # Beginning

    def open(self, link: Link) -> None:
        """The link is there: say what we will take, and begin to send."""
        op = self.op
        self.link = link
        if op.spec.collective != NEW_GROUP:
            link.users.add(self.stream)
        if not self.flow.recv_eager:
            self.grant()
        if self.eager and self.n_sends:
            ahead = link.ahead_of(self.stream)
            if not ahead.allows(op.epoch, op.seq, self.flow.send_bytes):
                self.eager = False  # until the peer, which hears of us now, gives credit
                self.credit = 0
        if self.can_send():
            link.enqueue(self)
        elif not self.eager and not self.introduced:
            self.announce()

    def introduction(self) -> list[Any]:
        """What a first frame says besides: the call, the time that is left, and our two numbers."""
        self.introduced = True
        op = self.op
        found: list[Any] = [op.spec.packed, op.remaining_ms()]
        if op.pairs:
            found.append(op.pairs[self.peer])
        return found

    def announce(self, *, again: bool = False) -> None:
        """Tell the peer that we entered, and with what call, when no payload can go yet."""
        if self.link is not None and (again or not self.introduced):
            header = [self.op.epoch, self.op.seq, *self.introduction()]
            self.sent_overhead_bytes += self.link.send_note(Kind.ENVELOPE, self.stream, header)

    # Credit

    def grant(self) -> None:
        """Give credit for as many segments as we have a place for."""
        if self.granted >= len(self.flow.recvs) or (
            self.flow.window and self.granted >= self.recv_i + self.flow.window
        ):
            return  # whatever became free was granted before
        allowance = self._allowance()
        if allowance <= self.granted:
            return
        full = allowance == len(self.flow.recvs)
        if self.granted and not full and allowance - self.granted < self.flow.window // 2:
            return
        self._credit(allowance)

    def grant_asked(self) -> None:
        """The peer announced itself; if its data is eager it holds it back, so ask for it."""
        if self.flow.recv_eager and self.flow.recvs and not self.granted and self.link is not None:
            self._credit(len(self.flow.recvs))

    def _credit(self, items: int) -> None:
        assert self.link is not None
        self.granted = items
        header: list[Any] = [self.op.epoch, self.op.seq, items]
        if not self.introduced:
            header += self.introduction()
        self.sent_overhead_bytes += self.link.send_note(Kind.CREDIT, self.stream, header)

    def _allowance(self) -> int:
        recvs = self.flow.recvs
        if not self.flow.window:
            return len(recvs)
        version = self.op.version
        at = min(self.recv_i, len(recvs))
        while at > 0 and version[recvs[at - 1].cell] <= recvs[at - 1].application:
            at -= 1
        return min(len(recvs), at + self.flow.window)
