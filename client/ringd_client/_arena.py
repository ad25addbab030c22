"""The arena: where tensor bytes meet the daemon, as a few memfd segments cut into blocks.

Taking and giving back a block of a size that was used before costs about a microsecond:
free blocks are kept by size class, the last one first, since it is warm in the cache.
Above 64 MiB, segments that nobody used for ten seconds go back to the system.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import operator
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ringd.errors import ArenaFullError, ResourceError
from ringd.transport.shared_memory import LARGE_PAGE_BYTES, PAGE_BYTES, new_memfd
from ringd.wire import advice
from ringd_client._environment import out_of
from ringd_client._lingering import Lingering
from ringd_client._locks import OwnedLock, is_mine, let_go, reentrant
from ringd_client._segments import Guest, Segment, size_class

if TYPE_CHECKING:
    from ringd_client._cells import Cell

MIN_SEGMENT_BYTES: Final = LARGE_PAGE_BYTES
MAX_STEP_BYTES: Final = 64 << 20
"""A segment is larger than this only when one block is."""
RETAIN_BYTES: Final = 64 << 20
"""An arena up to this size is never trimmed."""
IDLE_S: Final = 10.0
MAX_GUESTS: Final = 512
GUESTS_SHARE: Final = 2
"""What part of the cap guests may take: one in so many."""
MAX_DEFAULT_LIMIT_BYTES: Final = 4 << 30
CGROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Where a container reads how much memory it may use, with control groups of version 2 and 1."""


def default_limit_bytes() -> int:
    """4 GiB, or a quarter of the memory when that is less: of the machine's, or of what this
    container may use, since beyond that no error would come, but a kill."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # it is not there; it says "max"
            memory = min(memory, int(path.read_text()))
    return min(MAX_DEFAULT_LIMIT_BYTES, memory // 4)


_address = operator.attrgetter("address")


class Block:
    """A part of a segment, in use by one operation or by the tensors of one ``comm.empty``."""

    __slots__ = ("offset", "segment", "size_bytes")

    def __init__(self, segment: Segment, offset: int, size_bytes: int) -> None:
        self.segment = segment
        self.offset = offset
        self.size_bytes = size_bytes


class Arena:
    """Blocks of shared memory, up to a cap.

    Any thread may use it. Its lock is never waited for in a finalizer or a signal handler, which
    may run in a thread that holds it: blocks that come back so are put aside and taken in by the
    next call, and blocks are not to be had. What a handler raises may cost a block its use, but
    no block is ever had twice.

    Args:
        limit_bytes: the cap over all segments.
        announce: hands a new segment (number, bytes, descriptor) to the daemon before any
            block of it is used. It may not keep the descriptor.
        retract: tells the daemon that a segment is gone; raises nothing.
        lock: the one to use; default: a new one.
        catch_up: see :class:`Lingering`.
        unmapped: numbers of segments that the daemon had no room for, as it comes to be known.
        seat: our rank as errors call it; None: not known.

    Attributes:
        size_bytes: of all segments.
        used_bytes: of the blocks in use, ``lent_bytes`` among them, ``kept`` ones not.
        lent_bytes: of the blocks that tensors of ``comm.empty`` hold.
        guest_bytes: of memory that others have mapped and the daemon too; see :meth:`host`.
        lingering: tensors that the daemon may use though their calls have ended here.
        kept: cells that no call uses now; who takes one out has it. They are given up when there is
            no room else.
        unmapped: see above.
    """

    def __init__(
        self,
        limit_bytes: int,
        announce: Callable[[int, int, int], None],
        retract: Callable[[int], None],
        lock: OwnedLock | None = None,
        catch_up: Callable[[], object] = lambda: None,
        unmapped: deque[int] | None = None,
        seat: int | None = None,
    ) -> None:
        self.limit_bytes = limit_bytes
        self._spare_bytes = min(limit_bytes, RETAIN_BYTES)
        self.size_bytes = 0
        self._taken_bytes = 0
        self.lent_bytes = 0
        self.guest_bytes = 0
        self.lingering = Lingering(catch_up)
        self.kept: dict[object, Cell] = {}
        self._announce = announce
        self._retract = retract
        self._lock = lock or OwnedLock()
        self._segments: list[Segment] = []
        self._cached: dict[int, list[Block]] = {}
        self._returned: deque[Block] = deque()
        self._freed_meanwhile: deque[Block] = deque()
        self._guests: list[Guest] = []
        self._departed: deque[Guest] = deque()
        self.unmapped: deque[int] = deque() if unmapped is None else unmapped
        self._seat = seat
        self._next_number = 1
        self._closed = threading.Event()
        self._reaper: threading.Thread | None = None

    # ------------------------------------------------------------ blocks

    @property
    def used_bytes(self) -> int:
        """See the class."""
        kept = self.kept.copy().values()
        return self._taken_bytes - sum(cell.block.size_bytes for cell in kept)

    @property
    def has_returned(self) -> bool:
        """Something is to be taken in that has come back, by the next :meth:`take`."""
        return bool(self._returned or self._departed)

    def take(self, size_bytes: int) -> Block:
        """A block of at least ``size_bytes``, which is a size class; its contents are anything.

        Raises:
            ArenaFullError: there is no room below the cap.
            ResourceError: this process has no file descriptor, or the system no memory, left.
            ReentrantCallError: this thread was interrupted in here.
        """
        if is_mine(self._lock):
            raise reentrant()
        with self._lock:
            if self._returned or self._freed_meanwhile:
                self._take_in_returned()
            if self._departed or self.unmapped:
                self._see_off()
            cached = self._cached.get(size_bytes)
            block = cached.pop() if cached else self._carve_or_grow(size_bytes)
            block.segment.live += 1
            self._taken_bytes += size_bytes
            return block

    def free(self, block: Block) -> None:
        """Give a block back. The daemon must have released it."""
        if is_mine(self._lock):
            self._freed_meanwhile.append(block)
            return
        with self._lock:
            self._free_locked(block)

    def lend(self, size_bytes: int) -> ctypes.Array[ctypes.c_char]:
        """A buffer of ``size_bytes`` in a block of its own, for a tensor that may outlive us.

        The block comes back when the buffer and all that was made from it are gone.

        Raises:
            ArenaFullError, ResourceError: as for :meth:`take`.
        """
        block = self.take(size_class(size_bytes))
        owner = (ctypes.c_char * size_bytes).from_buffer(block.segment.memory, block.offset)
        with self._lock:
            self.lent_bytes += block.size_bytes
        weakref.finalize(owner, self._return_lent, block).atexit = False
        return owner

    def find(self, address: int, size_bytes: int) -> tuple[Segment, int] | None:
        """The segment that holds these bytes, and their offset in it; None: not ours."""
        for segment in self._segments:
            offset = address - segment.address
            if offset >= 0 and offset + size_bytes <= segment.size_bytes:
                return segment, offset
        guest = self.guest_at(address) if self._guests else None
        if guest is not None and address + size_bytes <= guest.address + guest.size_bytes:
            return guest, address - guest.address
        return None

    def _free_locked(self, block: Block) -> None:
        size_bytes = block.size_bytes
        segment = block.segment
        self._taken_bytes -= size_bytes
        segment.live -= 1
        if not segment.live:
            segment.idle_since = time.monotonic()
        if not self._segments or segment.forsaken:
            return  # closed: the memory goes with its last tensor
        cached = self._cached.get(size_bytes)
        if cached is None:
            self._cached[size_bytes] = [block]
        else:
            cached.append(block)

    def _return_lent(self, block: Block) -> None:
        self._returned.append(block)
        if is_mine(self._lock):
            return
        try:
            if self._lock.acquire(blocking=False):
                self._take_in_returned()
        finally:
            try:
                let_go(self._lock)
            except BaseException:  # a signal handler's, who came just then
                let_go(self._lock)
                raise

    def _take_in_returned(self) -> None:
        while self._freed_meanwhile:
            self._free_locked(self._freed_meanwhile.popleft())
        while self._returned:
            block = self._returned.popleft()
            self.lent_bytes -= block.size_bytes
            self._free_locked(block)

    # ------------------------------------------------------------ guests

    def host(
        self, address: int, size_bytes: int, fd: int, stands: Callable[[], bool]
    ) -> Guest | None:
        """Let the daemon work in memory that somebody else has mapped.

        Args:
            address: where they have; whole pages, as is ``size_bytes``.
            fd: a memfd like those of :func:`new_memfd`; it stays the caller's.
            stands: see :class:`Guest`.

        Returns:
            For :meth:`depart` when the memory is gone; None: there is no room for it.

        Raises:
            UnsentError: the daemon can't be told.
            ReentrantCallError: as for :meth:`take`.
        """
        if is_mine(self._lock):
            raise reentrant()
        with self._lock:
            self._see_off()
            if not self.has_room_for(size_bytes) or self._closed.is_set():
                return None
            guest = Guest(self._new_number(), address, size_bytes, stands)
            self._announce(guest.number, size_bytes, fd)
            guests = sorted([*self._guests, guest], key=_address)
            self.guest_bytes += size_bytes
            self._guests = guests
            if self._reaper is None:
                self._start_reaper()
            return guest

    def has_room_for(self, size_bytes: int) -> bool:
        """Whether one more guest could be hosted."""
        room = self.limit_bytes // GUESTS_SHARE - self.guest_bytes
        room = min(room, self.limit_bytes - self.size_bytes - self.guest_bytes)
        return size_bytes <= room and len(self._guests) < MAX_GUESTS

    def guest_at(self, address: int) -> Guest | None:
        """The guest that has this address, if its memory stands."""
        guests = self._guests
        at = bisect.bisect_right(guests, address, key=_address) - 1
        if at < 0 or address >= guests[at].address + guests[at].size_bytes:
            return None
        return guests[at] if guests[at].stands() else None

    def depart(self, guest: Guest) -> None:
        """The memory of a guest is gone, or will be. For finalizers too: it waits for no lock.

        The daemon is told by the next call that needs a block, within IDLE_S at the latest.
        """
        self._departed.append(guest)

    def _see_off(self) -> None:
        while self._departed:
            guest = self._departed.popleft()
            if guest in self._guests:
                self._guests = [other for other in self._guests if other is not guest]
                self.guest_bytes -= guest.size_bytes
                self._retract(guest.number)
        while self.unmapped:
            self._forsake(self.unmapped.popleft())

    def _forsake(self, number: int) -> None:
        """The daemon has no room for a segment: others are made in its place, as there may be
        room by then. What tensors of ``comm.empty`` have of it stays theirs."""
        for segment in self._segments:
            if segment.number == number:
                self._forget_cached(segment)
                self._segments = [other for other in self._segments if other is not segment]
                self.size_bytes -= segment.size_bytes
                segment.forsaken = True
                self._free_kept()
                self._retract(number)
        for guest in self._guests:
            if guest.number == number:
                self._departed.append(guest)

    def give_up_kept(self) -> None:
        """Make free blocks of all cells that no call uses."""
        with self._lock:
            self._free_kept()

    def _free_kept(self) -> None:
        with contextlib.suppress(KeyError):  # a call may take the last one
            while self.kept:
                self._free_locked(self.kept.popitem()[1].block)

    # ------------------------------------------------------------ growing

    def _carve_or_grow(self, size_bytes: int) -> Block:
        block = self._carve(size_bytes)
        if block is None and self.size_bytes + size_bytes > self._spare_bytes:
            self._free_kept()
            self._flush()
            block = self._carve(size_bytes)
        if block is None:
            self._grow(size_bytes)
            block = self._carve(size_bytes)
        assert block is not None
        return block

    def _carve(self, size_bytes: int) -> Block | None:
        best: tuple[int, Segment] | None = None
        for segment in self._segments:
            extent = segment.best_fit(size_bytes)
            if extent is not None and (best is None or extent < best[0]):
                best = extent, segment
        return Block(best[1], best[1].carve(size_bytes), size_bytes) if best else None

    def _flush(self) -> None:
        """Merge all cached blocks back into free extents."""
        while self._cached:
            _, blocks = self._cached.popitem()
            while blocks:
                block = blocks.pop()
                block.segment.give_back(block.offset, block.size_bytes)

    def _grow(self, size_bytes: int) -> None:
        needed = -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
        limit_bytes = self.limit_bytes - self.guest_bytes
        if self.size_bytes + needed > limit_bytes:
            self._drop_idle(until=float("inf"), retain_bytes=0)
        room = (limit_bytes - self.size_bytes) // PAGE_BYTES * PAGE_BYTES
        if needed > room:
            raise self._full(size_bytes)
        step = min(max(self.size_bytes, MIN_SEGMENT_BYTES), MAX_STEP_BYTES, room)
        try:
            self._add_segment(max(needed, step))
        except (OSError, MemoryError) as exc:
            if needed < step:  # ahead of need is no need
                with contextlib.suppress(OSError, MemoryError):
                    return self._add_segment(needed)
            raise self._refused(exc, needed) from exc
        if self.size_bytes > RETAIN_BYTES and self._reaper is None:
            self._start_reaper()

    def _add_segment(self, segment_bytes: int) -> None:
        fd = new_memfd(segment_bytes)
        try:
            segment = Segment(self._new_number(), fd, segment_bytes)
            self._announce(segment.number, segment_bytes, fd)
        finally:
            os.close(fd)
        self.size_bytes += segment_bytes
        self._segments.append(segment)

    def _new_number(self) -> int:
        """Of a segment; none is used twice, though its announcement may have been interrupted."""
        number = self._next_number
        self._next_number = number + 1
        return number

    def _refused(self, error: Exception, wanted_bytes: int) -> ResourceError:
        return out_of(error, self._seat) or ResourceError(
            f"the system refuses {wanted_bytes:,} bytes of shared memory: {error}",
            resource="memory",
            limit=None,
            rank=self._seat,
        )

    def _full(self, wanted_bytes: int) -> ArenaFullError:
        in_operations = self.used_bytes - self.lent_bytes
        return ArenaFullError(
            f"the shared-memory arena has no room for {wanted_bytes:,} more bytes: "
            f"its cap is {self.limit_bytes:,} bytes; "
            f"{self.lent_bytes:,} are in tensors of comm.empty, {self.guest_bytes:,} in adopted "
            f"storages, {in_operations:,} in operations in flight. Wait for handles, drop "
            f"tensors, or {advice.MORE_MEMORY}.",
            limit_bytes=self.limit_bytes,
            wanted_bytes=wanted_bytes,
            lent_bytes=self.lent_bytes,
            in_flight_bytes=in_operations,
        )

    # ------------------------------------------------------------ giving back

    def trim(self, idle_before: float) -> None:
        """Give segments back that are unused since ``idle_before``, down to RETAIN_BYTES."""
        with self._lock:
            self._take_in_returned()
            self._see_off()
            self._drop_idle(until=idle_before, retain_bytes=RETAIN_BYTES)

    def _drop_idle(self, *, until: float, retain_bytes: int) -> None:
        if self.size_bytes > retain_bytes:
            self._free_kept()
        idle = [s for s in self._segments if not s.live and s.idle_since < until]
        for segment in sorted(idle, key=lambda s: s.size_bytes, reverse=True):
            if self.size_bytes <= retain_bytes:
                return
            self._forget_cached(segment)
            self._segments.remove(segment)
            self.size_bytes -= segment.size_bytes
            self._retract(segment.number)

    def _forget_cached(self, segment: Segment) -> None:
        for size_bytes, blocks in list(self._cached.items()):
            kept = [b for b in blocks if b.segment is not segment]
            if kept:
                self._cached[size_bytes] = kept
            else:
                del self._cached[size_bytes]

    def _start_reaper(self) -> None:
        reaper = threading.Thread(target=self._reap, name="ringd-arena", daemon=True)
        with contextlib.suppress(RuntimeError):  # no room for one: whoever needs memory trims
            reaper.start()
            self._reaper = reaper

    def _reap(self) -> None:
        """Trim from time to time, as long as there is something to trim."""
        while not self._closed.wait(IDLE_S):
            self.trim(time.monotonic() - IDLE_S)
            with self._lock:
                if self.size_bytes <= RETAIN_BYTES and not self._guests:
                    self._reaper = None
                    return

    def close(self) -> None:
        """Let go of all segments. Memory of tensors that live on stays theirs.

        Where this thread was interrupted in here, they go with this object.
        """
        self._closed.set()
        self.kept.clear()
        if is_mine(self._lock):
            return
        reaper = self._reaper
        if reaper is not None and reaper is not threading.current_thread():
            reaper.join()
        with self._lock:
            for segment in self._segments:
                segment.forsaken = True  # no cell comes back from now on
            self.kept.clear()
            self._segments.clear()
            self._cached.clear()
            self._guests = []
            self._departed.clear()
            self.size_bytes = self.guest_bytes = 0

    def after_fork_in_child(self) -> None:
        """Locks of the parent's other threads are nobody's here."""
        self._lock = OwnedLock()
        self._reaper = None
        self._segments = []
        self._cached = {}
        self.kept.clear()
        self._guests = []
