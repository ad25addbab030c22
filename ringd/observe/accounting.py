"""Byte accounting: one JSON line per operation and rank.

Fields: kind ("collective" or "p2p"), rank, world_size, group, group_size, epoch, op, dtype, count,
error (null or a code), sent and received (peer to {payload, overhead} bytes), start_ns and end_ns
(clock "CLOCK_MONOTONIC", comparable between processes of one host). Of a collective also seq (with
epoch and group it says which call), algorithm, reduce_op, reduce_ns (time in reduction kernels) and
wait_ns (the rest: waiting for peers, sockets and copies). Of a message, which has no seq, also peer
(null: from any, and none came) and tag; its bytes are payload alone.
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringd.errors import ConfigError
from ringd.vocabulary import ANY_SOURCE, SEND

if TYPE_CHECKING:
    from ringd.engine.message import Post
    from ringd.engine.operation import Operation
    from ringd.errors import RingdError

CLOCK = "CLOCK_MONOTONIC"
COLLECTIVE, P2P = "collective", "p2p"


def line(op: Operation, error: RingdError | None) -> dict[str, Any]:
    """What is recorded of one operation."""
    flows = sorted(op.flows.items())
    return {
        "kind": COLLECTIVE,
        "rank": op.rank,
        "world_size": op.engine.world_size,
        "group": op.spec.group,
        "group_size": op.group.size,
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


def line_of_post(post: Post, error: RingdError | None, ended_ns: int) -> dict[str, Any]:
    """What is recorded of one send or receive."""
    peer = post.at[0] if post.peer == ANY_SOURCE else post.peer
    moved = post.size_bytes if error is None else post.bytes_done
    payload = {} if peer == ANY_SOURCE else {str(peer): {"payload": moved}}
    sends = post.spec.collective == SEND
    return {
        "kind": P2P,
        "rank": post.box.rank,
        "world_size": post.box.world_size,
        "group": post.spec.group,
        "group_size": post.box.group.size,
        "epoch": post.box.epoch,
        "op": post.spec.collective,
        "peer": None if peer == ANY_SOURCE else peer,
        "tag": post.tag,
        "dtype": post.spec.dtype,
        "count": post.spec.count,
        "error": None if error is None else error.code,
        "sent": payload if sends else {},
        "received": {} if sends else payload,
        "start_ns": int(post.started * 1e9),
        "end_ns": ended_ns,
        "clock": CLOCK,
    }


class AccountingFile:
    """Appends lines to a file; each is whole, and visible when the operation has ended.

    Operations don't wait for a disk that is full: the first line that can't be written is the end
    of the accounting, with a warning.

    Raises:
        ConfigError: the file can't be opened.
    """

    def __init__(self, path: Path, log: logging.Logger) -> None:
        self._path = path
        self._log = log
        self._broken = False
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as exc:
            raise ConfigError(
                f"accounting = {str(path)!r} can't be written: {exc.strerror}; name another file",
                key="accounting",
            ) from None

    def record(self, op: Operation, error: RingdError | None) -> None:
        """Write one collective."""
        self._write(line(op, error))

    def record_post(self, post: Post, error: RingdError | None) -> None:
        """Write one send or receive."""
        self._write(line_of_post(post, error, time.monotonic_ns()))

    def _write(self, facts: dict[str, Any]) -> None:
        if self._broken:
            return
        left = memoryview((json.dumps(facts, separators=(",", ":")) + "\n").encode())
        try:
            while left:
                left = left[self._file.write(left) or 0 :]
        except OSError as exc:
            self._broken = True
            self._log.warning("the accounting in %s ends here: %s", self._path, exc.strerror)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
