"""One ticking timer for all operations in flight: deadlines, silent peers, and signs of life.

A timer for each operation would cost every small one two calls; the tick costs nothing while no
operation is in flight, and ends one at most a tick late.

Who is to blame for a deadline? Most ranks wait for somebody who waits himself. So from 200 ms
without progress on, a rank tells all peers of the operation that it has entered it, and shows from
then on that it lives. At the deadline a rank that sees a peer which has not entered, or has gone
silent, can name that one, should there be no verdict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringd.engine import failures
from ringd.vocabulary import Collective

if TYPE_CHECKING:
    from ringd.engine.engine import Engine
    from ringd.engine.flow import FlowState
    from ringd.engine.operation import Operation

PROBE_AFTER_S = 0.2
"""An operation without progress for this long tells its call to the peers it has to do with."""
SILENT_S = 0.7
"""A peer that owes something and gave no sign of life for so long does not merely wait."""
ANSWER_S = 0.1
"""How long a rank that has come to a barrier may take to say so to one that asks."""


class Deadlines:
    """Ends the operations of an engine that have waited too long."""

    def __init__(self, engine: Engine, tick_s: float) -> None:
        self._engine = engine
        self._tick_s = tick_s
        self._ticking = False
        self._heard: dict[int, tuple[int, float]] = {}  # peer to bytes received, quiet seconds

    def watch(self) -> None:
        """There is an operation in flight."""
        if not self._ticking:
            self._ticking = True
            self._engine.loop.call_later(self._tick_s, self._tick)

    def quiet_s(self, peer: int) -> float:
        """For how long nothing has come from a peer, to the tick; 0.0: not known."""
        return self._heard.get(peer, (0, 0.0))[1]

    def _tick(self) -> None:
        live = list(self._engine.live)
        mail = self._engine.mail
        if not live and not mail.live:
            self._ticking = False
            self._heard.clear()
            return
        self._engine.loop.call_later(self._tick_s, self._tick)
        now = self._engine.now()
        self._listen()
        shown: set[int] = set()
        for op in live:
            if not op.live or op.failing:
                continue
            if now >= op.due:
                self._expired(op, now)
            else:
                self._check_silence(op, now, shown)
        if mail.live:
            mail.tick(now, self._tick_s)

    def _listen(self) -> None:
        """Note which peers gave a sign of life since the last tick."""
        for peer, link in self._engine.links.items():
            seen, quiet_s = self._heard.get(peer, (-1, 0.0))
            quiet_s = quiet_s + self._tick_s if seen == link.received_bytes else 0.0
            self._heard[peer] = (link.received_bytes, quiet_s)

    def _expired(self, op: Operation, now: float) -> None:
        to_blame = [flow.peer for flow in op.flows.values() if self._is_to_blame(op, flow)]
        late = None
        if op.spec.collective == Collective.BARRIER.value:
            late = to_blame = sorted({*to_blame, *self._late_for(op, now)})
        error = failures.timed_out(op, elapsed_s=now - op.started, culprits=to_blame, late=late)
        self._engine.endings.fail(op, error)

    def _late_for(self, op: Operation, now: float) -> list[int]:
        """Ranks that have not come to a barrier, of those that were told of us and would answer."""
        links, stream = self._engine.links, op.group.stream
        return [
            rank
            for rank, told in op.announced.items()
            if now - told >= ANSWER_S
            and rank in links
            and not links[rank].ahead_of(stream).has_entered(op.epoch, op.seq)
        ]

    def _is_to_blame(self, op: Operation, flow: FlowState) -> bool:
        """Whether a peer holds the operation up, instead of waiting for somebody itself."""
        if not flow.owed() and flow.send_i == flow.n_sends and not flow.owes_ack():
            return False
        if flow.link is None or not flow.link.ahead_of(flow.stream).has_entered(op.epoch, op.seq):
            return True
        return self.quiet_s(flow.peer) >= SILENT_S

    def _check_silence(self, op: Operation, now: float, shown: set[int]) -> None:
        quiet = [flow.peer for flow in op.flows.values() if self._is_too_quiet(op, flow)]
        if quiet:
            to_blame = [flow.peer for flow in op.flows.values() if self._is_to_blame(op, flow)]
            error = failures.timed_out(
                op, elapsed_s=now - op.started, culprits=to_blame, quiet=quiet
            )
            self._engine.endings.fail(op, error)
        elif op.stalled(self._tick_s) >= PROBE_AFTER_S:
            op.show_life(shown)
            if op.spec.collective == Collective.BARRIER.value:
                op.announce_to_all()

    def _is_too_quiet(self, op: Operation, flow: FlowState) -> bool:
        """Whether a peer that owes bytes was silent for longer than this operation takes."""
        if not flow.owed():
            return False
        seen = flow.recv_payload_bytes + flow.recv_i
        if seen != flow.seen:
            flow.seen = seen
            flow.quiet_s = 0.0
            return False
        flow.quiet_s += self._tick_s
        limit_s = op.times.recv_timeout_s
        return bool(limit_s) and flow.quiet_s >= limit_s
