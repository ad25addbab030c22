"""One ticking timer for all operations in flight: deadlines, silent peers, and probes.

A timer for each operation would cost every small one two calls; the tick costs nothing while no
operation is in flight, and ends one at most a tick late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringd.engine import failures

if TYPE_CHECKING:
    from ringd.engine.engine import Engine
    from ringd.engine.flow import FlowState
    from ringd.engine.operation import Operation

PROBE_AFTER_S = 0.2
"""An operation without progress for this long tells its call to the peers it waits on."""


class Deadlines:
    """Ends the operations of an engine that have waited too long."""

    def __init__(self, engine: Engine, tick_s: float) -> None:
        self._engine = engine
        self._tick_s = tick_s
        self._ticking = False

    def watch(self) -> None:
        """There is an operation in flight."""
        if not self._ticking:
            self._ticking = True
            self._engine.loop.call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        live = list(self._engine.live)
        if not live:
            self._ticking = False
            return
        self._engine.loop.call_later(self._tick_s, self._tick)
        now = self._engine.now()
        for op in live:
            if not op.live:
                continue
            if now >= op.deadline:
                self._end(op, now, None)
            else:
                self._check_silence(op, now)

    def _check_silence(self, op: Operation, now: float) -> None:
        quiet = [flow.peer for flow in op.flows.values() if self._is_too_quiet(op, flow)]
        if quiet:
            self._end(op, now, quiet)

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
        if op.recv_timeout_s and flow.quiet_s >= op.recv_timeout_s:
            return True
        if flow.quiet_s >= PROBE_AFTER_S:
            op.announce(flow)
        return False

    def _end(self, op: Operation, now: float, quiet: list[int] | None) -> None:
        error = failures.timed_out(op, elapsed_s=now - op.started, quiet=quiet)
        self._engine.fail(op, error)
