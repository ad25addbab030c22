"""What peers sent for operations that this rank has not entered yet: bounded, and in order."""

from __future__ import annotations

from typing import Any

from ringd.wire.frame import FrameError

MAX_EARLY_BYTES = 80 * 1024 * 1024
MAX_EARLY_FRAMES_OF_PEER = 16384


class EarlyFlow:
    """One peer's frames for one operation: its call, its credit, its eager segments.

    ``asks``: it announced the operation without payload, so it may wait for credit.
    """

    __slots__ = (
        "asks", "credit", "deadline", "frames", "overhead_bytes", "pair", "segments", "spec",
    )  # fmt: skip

    def __init__(self) -> None:
        self.asks = False
        self.frames = 0
        self.overhead_bytes = 0
        self.spec: bytes | None = None
        self.pair: list[int] | None = None
        self.deadline = 0.0
        self.credit = 0
        self.segments: list[tuple[list[Any], bytes]] = []


class EarlyStore:
    """All early flows of one rank, by (group, epoch, seq) and peer.

    Raises:
        FrameError: a peer exceeds the bounds; its connection ends.
    """

    def __init__(self) -> None:
        self._flows: dict[tuple[int, int, int], dict[int, EarlyFlow]] = {}
        self.held_bytes = 0
        self._frames_of: dict[int, int] = {}

    def flow(self, group: int, epoch: int, seq: int, peer: int, overhead_bytes: int) -> EarlyFlow:
        """The place for ``peer``'s frames for one operation; a frame of it is there."""
        held = self._frames_of[peer] = self._frames_of.get(peer, 0) + 1
        if held > MAX_EARLY_FRAMES_OF_PEER:
            raise FrameError(
                f"more than {MAX_EARLY_FRAMES_OF_PEER} frames for operations not entered yet"
            )
        by_peer = self._flows.setdefault((group, epoch, seq), {})
        found = by_peer.get(peer)
        if found is None:
            found = by_peer[peer] = EarlyFlow()
        found.frames += 1
        found.overhead_bytes += overhead_bytes
        return found

    def keep(self, flow: EarlyFlow, header: list[Any], payload: bytes) -> None:
        """Hold an eager segment."""
        if self.held_bytes + len(payload) > MAX_EARLY_BYTES:
            raise FrameError(f"more than {MAX_EARLY_BYTES} bytes for operations not entered yet")
        self.held_bytes += len(payload)
        flow.segments.append((header, payload))

    def take(self, group: int, epoch: int, seq: int) -> dict[int, EarlyFlow] | None:
        """Hand out what came for an operation that is entered now."""
        if not self._flows:
            return None
        found = self._flows.pop((group, epoch, seq), None)
        if found is not None:
            self._forget(found)
        return found

    def _forget(self, by_peer: dict[int, EarlyFlow]) -> None:
        for peer, flow in by_peer.items():
            self.held_bytes -= sum(len(payload) for _, payload in flow.segments)
            self._frames_of[peer] -= flow.frames

    def drop_group(self, group: int) -> list[tuple[int, int]]:
        """A group is freed here; the (seq, peer) of what was held for it."""
        dropped = []
        for key in [key for key in self._flows if key[0] == group]:
            by_peer = self._flows.pop(key)
            self._forget(by_peer)
            dropped += [(key[2], peer) for peer in by_peer]
        return dropped

    def drop_before(self, epoch: int) -> int:
        """Forget what belongs to epochs before ``epoch``; returns how many operations it was."""
        stale = [key for key in self._flows if key[1] < epoch]
        for key in stale:
            self._forget(self._flows.pop(key))
        return len(stale)
