"""The headers of point-to-point frames: checked before anything is done with them, or kept.

A rank may send before its peer knows of the epoch or the group. What it sends is kept, within
bounds, until that peer does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ringd.vocabulary import DTYPES, MAX_TAG, SEND, OpSpec, unpack_spec
from ringd.wire.frame import FrameError, Kind

MESSAGE, OFFER, TAKE = int(Kind.MESSAGE), int(Kind.OFFER), int(Kind.TAKE)
PART, REVOKE, TAKEN, LEFT = int(Kind.PART), int(Kind.REVOKE), int(Kind.TAKEN), int(Kind.LEFT)

_FIELDS: dict[int, tuple[type, ...]] = {
    MESSAGE: (int, int, int, bytes, int),
    OFFER: (int, int, int, bytes, int),
    TAKE: (int, int),
    PART: (int, int, int),
    REVOKE: (int, int, bool, dict),
    TAKEN: (int, int, int),
    LEFT: (int,),
}
MAX_KEPT_FRAMES = 16 * 1024
"""Of one peer, for groups and epochs that this rank does not know yet."""
KEPT_ALLOWANCES = 4
"""How many groups' allowances of payload one peer's kept frames may hold."""


def check_header(kind: int, header: Any, size_bytes: int) -> None:
    """Refuse a header whose form is wrong; all its numbers are whole and not negative.

    Raises:
        FrameError: says what was expected.
    """
    fields = _FIELDS[kind]
    if not isinstance(header, list) or tuple(map(type, header)) != fields:
        names = ", ".join(f.__name__ for f in fields)
        raise FrameError(f"the header of {Kind(kind).name} is [{names}]")
    if any(type(value) is int and value < 0 for value in header):
        raise FrameError(f"a number in the header of {Kind(kind).name} is negative")
    if size_bytes and kind not in (MESSAGE, PART):
        raise FrameError(f"a frame of kind {kind} may not carry a payload")


def check_message(kind: int, header: Any, size_bytes: int, eager_bytes: int) -> OpSpec:
    """The sender's call in the header of a MESSAGE or OFFER, which has passed `check_header`.

    Raises:
        FrameError: it is not a send, or its size or tag can't be.
    """
    tag = header[2]
    try:
        spec = unpack_spec(header[3])
    except (ValueError, TypeError) as exc:
        raise FrameError(f"the call of a message can't be read: {exc}") from None
    if spec.collective != SEND or spec.dtype not in DTYPES:
        raise FrameError(f"a message was sent by {spec}")
    if tag > MAX_TAG:
        raise FrameError(f"tag {tag} is over the limit {MAX_TAG}")
    if kind == MESSAGE and (size_bytes != spec.count * spec.itemsize or size_bytes > eager_bytes):
        raise FrameError(
            f"a payload of {size_bytes} bytes for {spec}, where at most {eager_bytes} come so"
        )
    return spec


@dataclass(frozen=True, slots=True)
class KeptFrame:
    """A frame for a group or epoch that is not known yet."""

    peer: int
    kind: int
    header: list[Any]
    payload: bytes


class KeptFrames:
    """Frames by (stream, epoch), in the order in which they came.

    Args:
        limit_bytes: payload that one peer's kept frames may hold.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._frames: dict[tuple[int, int], list[KeptFrame]] = {}
        self._held: dict[int, tuple[int, int]] = {}  # peer to frames and bytes

    def keep(self, stream: int, epoch: int, frame: KeptFrame) -> None:
        """Hold a frame.

        Raises:
            FrameError: it can't come before its group is known, or its sender is at the bound.
        """
        by_sender = frame.kind == REVOKE and frame.header[2]
        if frame.kind not in (MESSAGE, OFFER, LEFT) and not by_sender:
            raise FrameError(f"{Kind(frame.kind).name} for stream {stream}, where nothing was sent")
        frames, size = self._held.get(frame.peer, (0, 0))
        frames, size = frames + 1, size + len(frame.payload)
        if frames > MAX_KEPT_FRAMES or size > self._limit_bytes:
            raise FrameError(f"{frames} frames of {size} bytes for groups that do not exist yet")
        self._held[frame.peer] = (frames, size)
        self._frames.setdefault((stream, epoch), []).append(frame)

    def take(self, stream: int, epoch: int) -> list[KeptFrame]:
        """Hand out what came for a group that is known now."""
        found = self._frames.pop((stream, epoch), [])
        for frame in found:
            frames, size = self._held[frame.peer]
            self._held[frame.peer] = (frames - 1, size - len(frame.payload))
        return found

    def drop_before(self, epoch: int) -> int:
        """Forget what belongs to epochs before ``epoch``; returns how many frames it was."""
        stale = [key for key in self._frames if key[1] < epoch]
        return sum(len(self.take(*key)) for key in stale)

    @property
    def held_bytes(self) -> int:
        """Payload that is held, of all peers."""
        return sum(size for _, size in self._held.values())
