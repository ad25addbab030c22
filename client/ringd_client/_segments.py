"""One memfd segment of the arena: sealed memory that client and daemon both map.

The client keeps no descriptor of its own beyond what the mapping needs; the daemon is
handed one when the segment is announced. A segment never changes its size, and all its
pages exist from the start, so that neither side can meet a SIGBUS.
"""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Callable
from typing import Any, Final

from ringd.transport.shared_memory import PAGE_BYTES, map_shared

SMALL_ALIGNMENT_BYTES: Final = 64
"""A cache line; blocks of a page or more begin on a page."""


def size_class(size_bytes: int) -> int:
    """The bytes that a block for ``size_bytes`` takes: four steps to each power of two.

    At most a quarter is wasted, and sizes that are near each other share their free blocks.
    """
    if size_bytes <= 4 * SMALL_ALIGNMENT_BYTES:
        return 4 * SMALL_ALIGNMENT_BYTES
    step = 1 << ((size_bytes - 1).bit_length() - 3)
    unit = max(step, PAGE_BYTES if size_bytes > PAGE_BYTES else SMALL_ALIGNMENT_BYTES)
    return -(-size_bytes // unit) * unit


class Segment:
    """Mapped shared memory, and the record of which parts are free.

    The memory is unmapped when the last thing that exports it is gone: this object, or a
    tensor of ``comm.empty``.

    Attributes:
        number: its name in messages to the daemon, from 1.
        size_bytes: whole pages.
        memory: the mapping, for libraries that take a buffer; it may be longer.
        view: the same as bytes.
        address: where it begins.
        live: blocks in use.
        idle_since: the clock when ``live`` was last zero.
        forsaken: the daemon does not have it, and blocks that come back are not used again.
    """

    __slots__ = (
        "_anchor",
        "_free",
        "address",
        "forsaken",
        "idle_since",
        "live",
        "memory",
        "number",
        "size_bytes",
        "view",
    )

    def __init__(self, number: int, fd: int, size_bytes: int) -> None:
        self.number = number
        self.size_bytes = size_bytes
        self.memory: Any = map_shared(fd, size_bytes, populate=True)
        self.view = memoryview(self.memory)[:size_bytes]
        self._anchor = ctypes.c_char.from_buffer(self.memory)
        self.address = ctypes.addressof(self._anchor)
        self.live = 0
        self.idle_since = 0.0
        self.forsaken = False
        self._free: list[tuple[int, int]] = [(0, size_bytes)]

    def best_fit(self, size_bytes: int) -> int | None:
        """Bytes of the smallest free extent that holds a block of ``size_bytes``, or None."""
        fits = [size for start, size in self._free if size >= _padded(start, size_bytes)]
        return min(fits, default=None)

    def carve(self, size_bytes: int) -> int:
        """Take a block out of the smallest free extent that holds it; its offset.

        Raises:
            ValueError: no extent does; see :meth:`best_fit`.
        """
        fits = ((size, start) for start, size in self._free if size >= _padded(start, size_bytes))
        size, start = min(fits)
        offset = start + _padded(start, size_bytes) - size_bytes
        at = bisect.bisect_left(self._free, (start, size))
        rest = [(start, offset - start), (offset + size_bytes, start + size - offset - size_bytes)]
        self._free[at : at + 1] = [extent for extent in rest if extent[1]]
        return offset

    def give_back(self, offset: int, size_bytes: int) -> None:
        """Put a block back among the free extents, merged with its neighbours."""
        free = self._free
        at = bisect.bisect_left(free, (offset, 0))
        end = offset + size_bytes
        if at < len(free) and free[at][0] == end:
            end += free.pop(at)[1]
        if at and sum(free[at - 1]) == offset:
            at -= 1
            offset = free.pop(at)[0]
        free.insert(at, (offset, end - offset))


class Guest(Segment):
    """A segment whose memory is somebody else's: no block is cut from it.

    Args:
        stands: whether the memory is still mapped there and still theirs; asked before each use,
            as others may have the address once it is not.
    """

    __slots__ = ("stands",)

    def __init__(
        self, number: int, address: int, size_bytes: int, stands: Callable[[], bool]
    ) -> None:
        self.number = number
        self.address = address
        self.size_bytes = size_bytes
        self.memory = (ctypes.c_char * size_bytes).from_address(address)
        self.view = memoryview(self.memory)
        self.live = 0
        self.idle_since = 0.0
        self.forsaken = False
        self._free = []
        self.stands = stands


def _padded(start: int, size_bytes: int) -> int:
    """Bytes that a block takes in an extent at ``start``, alignment included."""
    unit = PAGE_BYTES if size_bytes >= PAGE_BYTES else SMALL_ALIGNMENT_BYTES
    return size_bytes + -start % unit
