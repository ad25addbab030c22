"""Byte accounting: one JSON line per operation and rank.

Fields: rank, world_size, group, epoch, seq, op, algorithm, reduce_op, dtype, count, error (null or
a code), sent and received (peer to {payload, overhead} bytes), start_ns and end_ns (clock
"CLOCK_MONOTONIC", comparable between processes of one host), reduce_ns (time in reduction
kernels), wait_ns (the rest: waiting for peers, sockets and copies).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringd.errors import ConfigError

if TYPE_CHECKING:
    from ringd.engine.operation import Operation
    from ringd.errors import RingdError

CLOCK = "CLOCK_MONOTONIC"


def line(op: Operation, error: RingdError | None) -> dict[str, Any]:
    """What is recorded of one operation."""
    flows = sorted(op.flows.items())
    return {
        "rank": op.rank,
        "world_size": op.engine.world_size,
        "group": op.spec.group,
        "epoch": op.epoch,
        "seq": op.seq,
        "op": op.spec.collective,
        "algorithm": op.plan.schedule.algorithm,
        "reduce_op": op.spec.reduce_op,
        "dtype": op.spec.dtype,
        "count": op.spec.count,
        "error": None if error is None else error.code,
        "sent": {
            str(peer): {"payload": f.sent_payload_bytes, "overhead": f.sent_overhead_bytes}
            for peer, f in flows
        },
        "received": {
            str(peer): {"payload": f.recv_payload_bytes, "overhead": f.recv_overhead_bytes}
            for peer, f in flows
        },
        "start_ns": op.started_ns,
        "end_ns": op.ended_ns,
        "clock": CLOCK,
        "reduce_ns": op.reduce_ns,
        "wait_ns": max(0, op.ended_ns - op.started_ns - op.reduce_ns),
    }


class AccountingFile:
    """Appends lines to a file; each is whole, and visible when the operation has ended.

    Raises:
        ConfigError: the file can't be opened.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("a", buffering=1, encoding="utf-8")
        except OSError as exc:
            raise ConfigError(
                f"accounting = {str(path)!r} can't be written: {exc.strerror}", key="accounting"
            ) from None

    def record(self, op: Operation, error: RingdError | None) -> None:
        """Write one operation."""
        self._file.write(json.dumps(line(op, error), separators=(",", ":")) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
