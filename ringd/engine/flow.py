"""What passes between us and one peer in one operation: cursors and counters over a plan's flow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringd.schedules.plan import Flow

if TYPE_CHECKING:
    from ringd.engine.link import Link
    from ringd.engine.operation import Operation


class FlowState:
    """Cursors of one peer's flow."""

    __slots__ = (
        "credit",
        "eager",
        "flow",
        "granted",
        "held",
        "introduced",
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
    )

    def __init__(self, op: Operation, flow: Flow, stream: int) -> None:
        self.op = op
        self.flow = flow
        self.peer = flow.peer
        self.stream = stream
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

    def owed(self) -> bool:
        """The peer still has to send us something."""
        return self.recv_i < len(self.flow.recvs)
