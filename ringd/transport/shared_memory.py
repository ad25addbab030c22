"""Memory that a trainer and its daemon share: a sealed memfd, in large pages where there are any.

With pages of 4 KiB a tensor of 16 MiB is 4,096 entries in each process's page table, looked up
again after every switch of processes. The system is asked for pages of 2 MiB once, when memory is
made; where it has none to spare, small ones do. See ADR 23.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
from typing import Final

PAGE_BYTES: Final = mmap.PAGESIZE
LARGE_PAGE_BYTES: Final = 2 << 20
"""Of x86-64, and of arm64 with pages of 4 KiB; elsewhere the system refuses, and small ones do."""
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14
_MADV_COLLAPSE: Final = 25  # Linux 6.1
_GAPS: Final = 8
"""Between other mappings, that are tried for an aligned one."""


def new_memfd(size_bytes: int) -> int:
    """A sealed memfd with all its pages, so that nobody can meet a SIGBUS; the caller closes it.

    One that large pages fit in is longer by one of them, which has no memory: room to align in.

    Args:
        size_bytes: whole pages.

    Raises:
        OSError: the system has no memory or no descriptor left.
    """
    fd = os.memfd_create("ringd", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        is_large = size_bytes >= LARGE_PAGE_BYTES
        os.ftruncate(fd, size_bytes + (LARGE_PAGE_BYTES if is_large else 0))
        if is_large:
            _take_large_pages(fd, size_bytes)
        os.posix_fallocate(fd, 0, size_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def map_shared(fd: int, size_bytes: int, *, populate: bool) -> mmap.mmap:
    """Map the first ``size_bytes`` of a memfd, so that its large pages are large to us too.

    Args:
        populate: make the page table now; otherwise each page comes with its first use.

    Returns:
        A mapping of ``size_bytes`` or more; what is beyond them is not to be touched.

    Raises:
        OSError: there is no room for it.
    """
    mapped = _aligned(fd, size_bytes)
    if populate:
        try:
            mapped.madvise(_MADV_POPULATE_WRITE, 0, size_bytes)
        except OSError as exc:
            if exc.errno != errno.EINVAL:  # else the system is older, and they come with their use
                raise
    return mapped


def _take_large_pages(fd: int, size_bytes: int) -> None:
    """Have as much as possible in large pages; what has none yet stays without.

    The system makes a large page around a small one that is there, and fills the rest with zeros:
    a fifth of the time that as many small ones take.
    """
    whole_bytes = size_bytes - size_bytes % LARGE_PAGE_BYTES
    for start in range(0, whole_bytes, LARGE_PAGE_BYTES):
        os.posix_fallocate(fd, start, PAGE_BYTES)
    mapped = _aligned(fd, size_bytes)
    try:
        with contextlib.suppress(OSError):
            mapped.madvise(_MADV_COLLAPSE, 0, whole_bytes)
    finally:
        mapped.close()


def _aligned(fd: int, size_bytes: int) -> mmap.mmap:
    """Map it at a multiple of a large page, if the file has room behind it to choose.

    The system puts a mapping at the end of the first gap that it fits in, so that its end is what
    is known before it is made: a longer one begins lower by as much. A gap that the longer one does
    not fit in is closed by one of the first length while the next gap is tried.
    """
    room_bytes = os.fstat(fd).st_size - size_bytes
    with contextlib.ExitStack() as in_gaps:
        for _ in range(_GAPS):
            mapped = mmap.mmap(fd, size_bytes)
            excess_bytes = _address(mapped) % LARGE_PAGE_BYTES
            if not excess_bytes or size_bytes < LARGE_PAGE_BYTES or room_bytes < excess_bytes:
                return mapped
            mapped.close()
            mapped = mmap.mmap(fd, size_bytes + excess_bytes)
            if not _address(mapped) % LARGE_PAGE_BYTES:
                return mapped
            mapped.close()
            in_gaps.enter_context(mmap.mmap(fd, size_bytes))
    return mmap.mmap(fd, size_bytes)


def _address(mapped: mmap.mmap) -> int:
    anchor = ctypes.c_char.from_buffer(mapped)
    address = ctypes.addressof(anchor)
    del anchor  # or it could not be closed
    return address
