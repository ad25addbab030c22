"""The trainer's shared memory, as the daemon sees it: mapped segments, checked regions."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading

from ringd.config.resources import exhausted
from ringd.errors import InvalidArgumentError, ResourceError
from ringd.transport.shared_memory import map_shared

MAX_SEGMENTS = 4096
POPULATE_BYTES = 64 * 1024 * 1024
_F_GET_SEALS = 1034
_SEAL_SHRINK = 2


class MappedArena:
    """Segments that one client handed over, by number. Memory is the client's; we map it."""

    def __init__(self, rank: int | None = None) -> None:
        self._segments: dict[int, tuple[mmap.mmap, memoryview]] = {}
        self._lacking: dict[int, ResourceError] = {}
        self._rank = rank

    def add(self, number: int, size_bytes: int, fd: int) -> ResourceError | None:
        """Map a segment; takes over ``fd``.

        Returns:
            Why we have no room for it; then its regions can't be had, for the same reason.

        Raises:
            InvalidArgumentError: not a memfd that is sealed against shrinking, or too small (a
                segment that shrank under us would kill the daemon by SIGBUS).
        """
        try:
            seals = fcntl.fcntl(fd, _F_GET_SEALS)
            size = os.fstat(fd).st_size
            if not seals & _SEAL_SHRINK:
                raise InvalidArgumentError(f"segment {number} is not sealed against shrinking")
            if not 0 < size_bytes <= size:
                raise InvalidArgumentError(f"segment {number} has {size} bytes, not {size_bytes}")
            if len(self._segments) >= MAX_SEGMENTS or number in self._segments or number < 1:
                raise InvalidArgumentError(f"segment number {number} can't be taken")
            # Larger ones are mapped page by page as they are used: all at once is seconds for a
            # few GiB, in which this daemon would look dead.
            mapped = map_shared(fd, size_bytes, populate=size_bytes <= POPULATE_BYTES)
        except OSError as exc:
            if exhausted(exc, ""):
                return self.lack(number, exc)
            raise InvalidArgumentError(f"segment {number} can't be mapped: {exc}") from None
        finally:
            os.close(fd)
        self._segments[number] = (mapped, memoryview(mapped)[:size_bytes])
        return None

    def lack(self, number: int, cause: OSError) -> ResourceError:
        """We have run out of what a segment needs; its regions can't be had until it is dropped.

        Raises:
            InvalidArgumentError: it is mapped, or there are too many.
        """
        if number in self._segments or len(self._lacking) >= MAX_SEGMENTS:
            raise InvalidArgumentError(f"segment number {number} can't be taken")
        whose = "the daemon" if self._rank is None else f"rank {self._rank}'s daemon"
        error = exhausted(cause, whose, self._rank)
        assert error is not None
        error.fields["segment"] = number
        self._lacking[number] = error
        return error

    def drop(self, number: int) -> None:
        """Unmap a segment that the client took back."""
        found = self._segments.pop(number, None)
        self._lacking.pop(number, None)
        if found is not None:
            mapped, view = found
            if len(view) <= POPULATE_BYTES:
                _unmap(mapped, view)
            else:
                threading.Thread(target=_unmap, args=found, daemon=True).start()

    def region(self, number: int, offset: int, size_bytes: int) -> memoryview:
        """``size_bytes`` at ``offset`` of a segment.

        Raises:
            InvalidArgumentError: there is no such memory.
            ResourceError: we had no room for the segment.
        """
        if not size_bytes:
            return memoryview(b"")
        if number in self._lacking:
            raise self._lacking[number].copy()
        found = self._segments.get(number)
        if found is None or offset < 0 or offset % 8 or offset + size_bytes > len(found[1]):
            raise InvalidArgumentError(
                f"the region of {size_bytes} bytes at {offset} of segment {number} is not there"
            )
        return found[1][offset : offset + size_bytes]

    @property
    def mapped_bytes(self) -> int:
        """How much is mapped."""
        return sum(len(view) for _, view in self._segments.values())

    def close(self) -> None:
        """Unmap all."""
        self._lacking.clear()
        for number in list(self._segments):
            self.drop(number)


def _unmap(mapped: mmap.mmap, view: memoryview) -> None:
    # Somebody may still hold a slice (a link's backlog); the last one unmaps it.
    with contextlib.suppress(BufferError):
        view.release()
        mapped.close()
