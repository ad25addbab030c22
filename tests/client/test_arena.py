"""The arena: blocks, size classes, the cap, giving back, and tensors that outlive it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import itertools
import os
import random
import threading
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringd.errors import ArenaFullError, ResourceError
from ringd.transport.shared_memory import PAGE_BYTES, new_memfd
from ringd_client import _arena
from ringd_client._arena import MIN_SEGMENT_BYTES, RETAIN_BYTES, Arena, default_limit_bytes
from ringd_client._segments import size_class
from tests.client.conftest import eventually, mapped_segments

MIB = 1 << 20


class Segments:
    """What the daemon would know."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}

    def announce(self, number: int, size_bytes: int, fd: int) -> None:
        assert os.fstat(fd).st_size >= size_bytes
        assert os.fstat(fd).st_blocks * 512 == size_bytes
        self.sizes[number] = size_bytes

    def retract(self, number: int) -> None:
        del self.sizes[number]


def new_arena(limit_bytes: int = 1 << 30) -> tuple[Arena, Segments]:
    segments = Segments()
    return Arena(limit_bytes, segments.announce, segments.retract), segments


@given(st.integers(1, 1 << 40))
def test_size_classes_waste_at_most_a_quarter_or_the_minimum(size_bytes: int) -> None:
    rounded = size_class(size_bytes)
    assert rounded >= size_bytes
    assert rounded % 64 == 0
    assert size_class(rounded) == rounded
    assert rounded <= max(256, size_bytes * 1.25 + PAGE_BYTES)
    if size_bytes > PAGE_BYTES:
        assert rounded % PAGE_BYTES == 0


def test_there_are_few_size_classes() -> None:
    assert len({size_class(n) for n in range(1, 1 << 20, 64)}) < 50


def test_a_segment_is_sealed_and_has_all_its_pages() -> None:
    fd = new_memfd(4 * PAGE_BYTES)
    try:
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 8 * PAGE_BYTES)
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        assert os.fstat(fd).st_blocks * 512 == 4 * PAGE_BYTES
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


def test_blocks_in_use_never_overlap_and_are_aligned() -> None:
    arena, _ = new_arena()
    chance = random.Random(7)
    live: list[Any] = []
    for _ in range(3000):
        if live and chance.random() < 0.5:
            arena.free(live.pop(chance.randrange(len(live))))
        else:
            block = arena.take(size_class(chance.choice([1, 300, 5000, 70_000, 900_000])))
            unit = PAGE_BYTES if block.size_bytes >= PAGE_BYTES else 64
            assert (block.segment.address + block.offset) % unit == 0
            live.append(block)
        if len(live) > 60:
            arena.free(live.pop(0))
    spans = sorted((b.segment.number, b.offset, b.offset + b.size_bytes) for b in live)
    for a, b in itertools.pairwise(spans):
        assert a[0] != b[0] or a[2] <= b[1]
    assert arena.used_bytes == sum(b.size_bytes for b in live)
    arena.close()


def test_a_freed_block_is_the_next_one_of_its_size() -> None:
    arena, _ = new_arena()
    block = arena.take(1024)
    arena.free(block)
    assert arena.take(1024) is block
    arena.close()


def test_free_neighbours_become_one_large_block_again() -> None:
    arena, segments = new_arena(limit_bytes=MIB)
    small = [arena.take(64 << 10) for _ in range(16)]
    for block in small:
        arena.free(block)
    assert arena.take(MIB).size_bytes == MIB
    assert segments.sizes == {1: MIB}
    arena.close()


def test_at_the_cap_the_error_says_the_cap_and_what_holds_the_memory() -> None:
    arena, _ = new_arena(limit_bytes=2 * MIB)
    kept = arena.lend(MIB)
    block = arena.take(512 << 10)
    with pytest.raises(ArenaFullError, match="2,097,152") as caught:
        arena.take(MIB)
    assert caught.value.fields == {
        "limit_bytes": 2 * MIB,
        "wanted_bytes": MIB,
        "lent_bytes": MIB,
        "in_flight_bytes": 512 << 10,
    }
    assert isinstance(caught.value, MemoryError)
    arena.free(block)
    arena.free(arena.take(MIB))
    del kept
    arena.free(arena.take(2 * MIB))
    arena.close()


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, r"is out of memory \(No space left on device\)"),
        (errno.ENOMEM, r"is out of memory \(Cannot allocate memory\)"),
        (errno.EPERM, r"refuses 1,048,576 bytes of shared memory: .*Operation not permitted"),
    ],
)
def test_a_process_that_the_system_gives_no_memory_says_so_and_not_that_the_arena_is_full(
    monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    def refuse(fd: int, offset: int, size: int) -> None:
        raise OSError(number, os.strerror(number))

    arena, _ = new_arena()
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(ResourceError, match=said) as caught:
            arena.take(MIB)
    assert caught.value.fields["resource"] == "memory"
    arena.free(arena.take(MIB))
    arena.close()


def test_what_a_call_needs_is_taken_when_the_system_has_less_than_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def scarce(size_bytes: int) -> int:
        if size_bytes > 3 * MIB:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return new_memfd(size_bytes)

    monkeypatch.setattr(_arena, "new_memfd", scarce)
    arena, segments = new_arena()
    for _ in range(5):
        arena.take(MIB)
    assert segments.sizes == {1: 2 * MIB, 2: 2 * MIB, 3: MIB}
    with pytest.raises(ResourceError, match="out of memory"):
        arena.take(4 * MIB)
    arena.free(arena.take(MIB))
    arena.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_process_without_descriptors_says_so_and_not_that_the_arena_is_full(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(name: str, flags: int) -> int:
        raise OSError(number, os.strerror(number))

    arena, _ = new_arena()
    with monkeypatch.context() as patched:
        patched.setattr(os, "memfd_create", refuse)
        with pytest.raises(ResourceError, match="out of file descriptors"):
            arena.take(MIB)
    arena.free(arena.take(MIB))
    arena.close()


def test_a_segment_that_the_daemon_has_no_room_for_is_not_used_again() -> None:
    unmapped: deque[int] = deque()
    segments = Segments()
    arena = Arena(1 << 30, segments.announce, segments.retract, unmapped=unmapped)
    first = arena.take(1024)
    cached = arena.take(2048)
    arena.free(cached)
    lent = arena.lend(1024)
    unmapped.append(first.segment.number)
    other = arena.take(2048)
    assert other.segment is not first.segment
    assert segments.sizes == {other.segment.number: MIN_SEGMENT_BYTES}
    arena.free(first)
    assert arena.take(1024).segment is other.segment
    assert arena.find(ctypes.addressof(lent), 1024) is None
    del lent
    gc.collect()
    assert arena.take(1024).segment is other.segment
    assert arena.size_bytes == MIN_SEGMENT_BYTES
    arena.close()


def test_unused_segments_go_back_but_a_small_arena_stays() -> None:
    arena, segments = new_arena()
    large = arena.take(size_class(3 * RETAIN_BYTES // 2))
    small = arena.take(size_class(MIB))
    arena.free(large)
    arena.trim(idle_before=0.0)
    assert len(segments.sizes) == 2  # it was used a moment ago
    arena.trim(idle_before=float("inf"))
    assert sum(segments.sizes.values()) == arena.size_bytes <= RETAIN_BYTES
    arena.free(small)
    arena.trim(idle_before=float("inf"))
    assert len(segments.sizes) == 1
    arena.close()


def test_a_large_arena_is_trimmed_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringd_client._arena.IDLE_S", 0.05)
    arena, segments = new_arena()
    arena.free(arena.take(size_class(RETAIN_BYTES + MIB)))
    eventually(lambda: not segments.sizes)
    assert mapped_segments() == 0
    eventually(lambda: "ringd-arena" not in [t.name for t in threading.enumerate()])
    arena.close()


def test_changing_sizes_do_not_make_it_grow() -> None:
    arena, _ = new_arena()
    chance = random.Random(3)
    for _ in range(200):
        arena.free(arena.take(size_class(chance.randrange(1, 8 * MIB))))
    settled = arena.size_bytes
    for _ in range(10_000):
        arena.free(arena.take(size_class(chance.randrange(1, 8 * MIB))))
    assert arena.size_bytes <= max(settled, RETAIN_BYTES)
    arena.close()


def test_lent_memory_outlives_the_arena() -> None:
    arena, _ = new_arena()
    first, second = arena.lend(1000), arena.lend(1000)
    first[:] = b"x" * 1000
    arena.close()
    del second
    assert bytes(first) == b"x" * 1000
    del first
    assert mapped_segments() == 0


def test_a_finalizer_in_a_thread_that_holds_the_lock_does_not_wait_for_it() -> None:
    arena, _ = new_arena()
    owner = arena.lend(1000)
    with arena._lock:
        del owner
    assert arena.lent_bytes == 1024
    arena.free(arena.take(256))
    assert arena.lent_bytes == 0
    arena.close()


def test_many_threads_take_and_free_at_once() -> None:
    arena, _ = new_arena()

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(300):
            block = arena.take(size_class(chance.randrange(1, 200_000)))
            data = bytes([seed]) * 64
            start = block.offset
            block.segment.view[start : start + 64] = data
            assert block.segment.view[start : start + 64] == data
            arena.free(block)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert arena.used_bytes == 0
    arena.close()


def test_the_default_cap_is_four_gib_or_a_quarter_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert default_limit_bytes() <= 4 << 30
    monkeypatch.setattr(_arena, "CGROUP_LIMITS", (tmp_path / "absent", limit := tmp_path / "max"))
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1 << 18}.__getitem__)
    assert default_limit_bytes() == 256 * MIB
    for container, cap in (("max\n", 256 * MIB), ("536870912\n", 128 * MIB), ("9" * 15, 256 * MIB)):
        limit.write_text(container)
        assert default_limit_bytes() == cap
