"""Where payloads come down: sinks for large segments, and scratch memory for contributions.

A contribution that is alone in its application is folded piece by piece while it arrives, through
a scratch buffer that stays in the processor's cache; contributions that must wait for others
are parked whole. All sinks can be abandoned in mid-payload: the rest then falls into a bin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ringd.engine.flow import FlowState
    from ringd.engine.operation import Operation
    from ringd.schedules.plan import Application, RecvItem

PIECE_BYTES = 256 * 1024
"""Piece in which a lone contribution is folded: well inside a core's L2 cache."""
POOL_BYTES = 32 * 1024 * 1024
"""Scratch that an idle daemon keeps for the next operation."""
_BIN = memoryview(bytearray(256 * 1024))


class ScratchPool:
    """Reusable buffers for parked contributions; the one given back last is the cache-warm one."""

    def __init__(self, keep_bytes: int = POOL_BYTES) -> None:
        self._free: dict[int, list[bytearray]] = {}
        self._keep_bytes = keep_bytes
        self.kept_bytes = 0

    def take(self, size_bytes: int) -> bytearray:
        """A buffer of exactly ``size_bytes``."""
        free = self._free.get(size_bytes)
        if free:
            self.kept_bytes -= size_bytes
            return free.pop()
        return bytearray(size_bytes)

    def give(self, buffer: bytearray) -> None:
        """Hand a buffer back; it is kept or dropped."""
        size = len(buffer)
        if self.kept_bytes + size > self._keep_bytes:
            self._free.clear()
            self.kept_bytes = 0
        self.kept_bytes += size
        self._free.setdefault(size, []).append(buffer)


class Bin:
    """Takes and forgets the payload of an operation that is over."""

    op = None

    def __init__(self, remaining_bytes: int) -> None:
        self._remaining = remaining_bytes

    def room(self, remaining_bytes: int) -> memoryview:
        return _BIN[: min(remaining_bytes, len(_BIN))]

    def filled(self, count: int) -> None:
        self._remaining -= count

    def complete(self) -> None:
        """Nothing follows from it."""

    def abandon(self) -> None:
        """It is a bin already."""


def bin_for(size_bytes: int, inline: memoryview | None) -> Bin | None:
    """Where an unwanted payload goes; None: it is here already, or there is none."""
    return Bin(size_bytes) if size_bytes and inline is None else None


class _Landing:
    """Base: a payload of ``op`` that may be abandoned."""

    __slots__ = ("_abandoned", "flow", "item", "op")

    def __init__(self, op: Operation, flow: FlowState, item: RecvItem) -> None:
        self.op: Operation | None = op
        self.flow = flow
        self.item = item
        self._abandoned = False

    def abandon(self) -> None:
        """The operation is over: its memory is out of bounds from now on."""
        self._abandoned = True
        self.op = None


class CopyLanding(_Landing):
    """Straight into memory: the region for moves, a scratch buffer for parked contributions."""

    __slots__ = ("_at", "_parked", "_target")

    def __init__(
        self,
        op: Operation,
        flow: FlowState,
        item: RecvItem,
        target: memoryview,
        parked: bytearray | None,
    ) -> None:
        super().__init__(op, flow, item)
        self._target = target
        self._parked = parked
        self._at = 0

    def room(self, remaining_bytes: int) -> memoryview:
        if self._abandoned:
            return _BIN[: min(remaining_bytes, len(_BIN))]
        return self._target[self._at :]

    def filled(self, count: int) -> None:
        self._at += count
        self.flow.recv_payload_bytes += count

    def complete(self) -> None:
        op = self.op
        if op is None:
            return
        if self._parked is None:
            op.copied(self.flow, self.item)
        else:
            op.park(self.item, self._parked)


class FoldLanding(_Landing):
    """A lone contribution, folded into the region piece by piece."""

    __slots__ = ("_app", "_count", "_done", "_element_bytes", "_piece", "_size")

    def __init__(self, op: Operation, flow: FlowState, item: RecvItem, app: Application) -> None:
        super().__init__(op, flow, item)
        self._app = app
        self._element_bytes = item.size_bytes // item.length
        self._piece = op.engine.piece(flow.peer)
        self._count = 0  # bytes in the piece
        self._done = 0  # elements folded
        self._size = 0

    def room(self, remaining_bytes: int) -> memoryview:
        if self._abandoned:
            return _BIN[: min(remaining_bytes, len(_BIN))]
        self._size = min(len(self._piece), self._count + remaining_bytes)
        return self._piece[self._count : self._size]

    def filled(self, count: int) -> None:
        if self._abandoned:
            return
        self.flow.recv_payload_bytes += count
        self._count += count
        if self._count == self._size:
            self._fold()

    def _fold(self) -> None:
        op = self.op
        assert op is not None
        count = self._count // self._element_bytes
        assert op.folding is not None
        op.folding.one(self.item, self._app, self._piece[: self._count], self._done, count)
        self._done += count
        self._count = 0

    def complete(self) -> None:
        op = self.op
        if op is None:
            return
        op.applied(self.item.cell, 1)


class Parked:
    """Contributions to one application of one cell, until all are here."""

    __slots__ = ("buffers", "missing")

    def __init__(self, contributions: int, own: int) -> None:
        self.buffers: list[bytearray | bytes | None] = [None] * (contributions + (own >= 0))
        self.missing = contributions

    def arrays(self, dtype: np.dtype[np.generic], own: int, mine: np.ndarray) -> list[np.ndarray]:
        """All contributions in the order of the fold, our own in its place."""
        return [
            mine if place == own else np.frombuffer(buffer, dtype)  # type: ignore[arg-type]
            for place, buffer in enumerate(self.buffers)
        ]
