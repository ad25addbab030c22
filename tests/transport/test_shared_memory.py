"""Memory that two processes share: all pages are there; large ones are no condition."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringd.transport import shared_memory
from ringd.transport.shared_memory import (
    LARGE_PAGE_BYTES,
    PAGE_BYTES,
    map_shared,
    new_memfd,
)

MIB = 1 << 20
SIZES = [PAGE_BYTES, MIB, 2 * MIB - PAGE_BYTES, 2 * MIB, 2 * MIB + PAGE_BYTES, 5 * MIB, 16 * MIB]


def address(mapped: mmap.mmap) -> int:
    anchor = ctypes.c_char.from_buffer(mapped)
    at = ctypes.addressof(anchor)
    del anchor
    return at


def large_bytes(at: int) -> int:
    """How much of the mapping that begins there is in large pages, as the system says."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.startswith(f"{at:x}-"):
            for detail in lines:
                if detail.startswith("ShmemPmdMapped:"):
                    return int(detail.split()[1]) * 1024
    raise AssertionError("there is no such mapping")


@pytest.fixture(scope="module")
def gives_large_pages() -> bool:
    """Whether this system makes them at all, found without our code."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    fd = os.memfd_create("probe")
    try:
        os.ftruncate(fd, LARGE_PAGE_BYTES)
        with mmap.mmap(-1, 2 * LARGE_PAGE_BYTES) as room:
            at = -(-address(room) // LARGE_PAGE_BYTES) * LARGE_PAGE_BYTES
            flags = mmap.MAP_SHARED | 0x10  # MAP_FIXED
            rights = mmap.PROT_READ | mmap.PROT_WRITE
            assert libc.mmap(at, LARGE_PAGE_BYTES, rights, flags, fd, 0) == at
            os.pwrite(fd, b"x", 0)
            return (
                int(libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(LARGE_PAGE_BYTES), 25)) == 0
            )
    finally:
        os.close(fd)


@pytest.fixture
def made(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    fd = new_memfd(request.param)
    yield fd, request.param
    os.close(fd)


@pytest.mark.parametrize("made", SIZES, indirect=True)
def test_all_pages_are_there_and_nothing_beyond_takes_memory(made: tuple[int, int]) -> None:
    fd, size = made
    assert os.fstat(fd).st_blocks * 512 == size
    with map_shared(fd, size, populate=True) as mapped:
        assert len(mapped) >= size
        assert bytes(mapped[:size]) == bytes(size)
        assert os.fstat(fd).st_blocks * 512 == size


@pytest.mark.parametrize("made", SIZES, indirect=True)
@pytest.mark.parametrize("populate", [True, False])
def test_two_mappings_show_the_same_bytes(made: tuple[int, int], populate: bool) -> None:
    fd, size = made
    with (
        map_shared(fd, size, populate=True) as ours,
        map_shared(fd, size, populate=populate) as theirs,
    ):
        for at in (0, size // 2, size - 1):
            ours[at] = 1 + at % 251
        assert [theirs[at] for at in (0, size // 2, size - 1)] == [
            1 + at % 251 for at in (0, size // 2, size - 1)
        ]


@pytest.mark.parametrize("size", [2 * MIB, 5 * MIB, 16 * MIB])
def test_whole_large_pages_are_large_to_both_sides(size: int, gives_large_pages: bool) -> None:
    if not gives_large_pages:
        pytest.skip("this system gives no large pages of shared memory")
    whole = size - size % LARGE_PAGE_BYTES
    fd = new_memfd(size)
    try:
        with (
            map_shared(fd, size, populate=True) as ours,
            map_shared(fd, size, populate=True) as theirs,
        ):
            for mapped in (ours, theirs):
                assert address(mapped) % LARGE_PAGE_BYTES == 0
                assert large_bytes(address(mapped)) == whole
    finally:
        os.close(fd)


def test_gaps_that_only_an_unaligned_mapping_fits_in_are_passed_over() -> None:
    """As a process has them that made and freed much; the system takes the highest that fits."""
    size = LARGE_PAGE_BYTES
    libc = ctypes.CDLL(None, use_errno=True)
    fd = new_memfd(size)
    try:
        with contextlib.ExitStack() as walls:
            wall = walls.enter_context(mmap.mmap(-1, 16 * size))
            while address(plug := walls.enter_context(mmap.mmap(fd, size))) > address(wall):
                pass
            plug.close()
            first = -(-address(wall) // size) * size
            for gap in (first + 2 * size, first + 6 * size, first + 10 * size):
                at = ctypes.c_void_p(gap + 2 * PAGE_BYTES)
                length = ctypes.c_size_t(size + PAGE_BYTES)
                assert libc.munmap(at, length) == 0
                assert libc.mprotect(at, length, 0) == -1  # it is nobody's now
            with map_shared(fd, size, populate=True) as mapped:
                assert address(mapped) % size == 0
    finally:
        os.close(fd)


class Refusing(mmap.mmap):
    """On a system that is older, or has none to spare."""

    def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")


class Crowded(mmap.mmap):
    """Never where it was expected: something else was mapped meanwhile."""

    def __new__(cls, fd: int, length: int) -> Crowded:
        if length % LARGE_PAGE_BYTES:
            return super().__new__(cls, fd, length - length % PAGE_BYTES)
        return super().__new__(cls, fd, length)


@pytest.mark.parametrize("kind", [Refusing, Crowded])
@pytest.mark.parametrize("size", [MIB, 5 * MIB])
def test_without_large_pages_it_is_the_same_memory(
    monkeypatch: pytest.MonkeyPatch, kind: type[mmap.mmap], size: int
) -> None:
    monkeypatch.setattr(shared_memory.mmap, "mmap", kind)
    fd = new_memfd(size)
    try:
        assert os.fstat(fd).st_blocks * 512 == size
        with map_shared(fd, size, populate=True) as mapped:
            mapped[size - 1] = 7
            assert os.pread(fd, 1, size - 1) == b"\x07"
    finally:
        os.close(fd)


def test_a_memfd_of_another_client_that_ends_with_its_bytes_is_mapped_as_it_is() -> None:
    size = 5 * MIB
    fd = os.memfd_create("foreign")
    try:
        os.ftruncate(fd, size)
        with map_shared(fd, size, populate=True) as mapped:
            assert len(mapped) == size
            mapped[size - 1] = 7
    finally:
        os.close(fd)
