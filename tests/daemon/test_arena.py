"""What a client hands over as shared memory is checked before it is trusted."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator

import pytest

from ringd.daemon.arena import MappedArena
from ringd.errors import InvalidArgumentError, ResourceError

SIZE = 64 * 1024
F_ADD_SEALS, SEAL_SHRINK = 1033, 2


@pytest.fixture
def segment() -> Iterator[Callable[..., int]]:
    """A memfd like the client's; the arena takes it over."""

    def make(size_bytes: int = SIZE, *, sealed: bool = True) -> int:
        fd = os.memfd_create("ringd-test", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size_bytes)
        if sealed:
            fcntl.fcntl(fd, F_ADD_SEALS, SEAL_SHRINK)
        return fd

    before = len(os.listdir("/proc/self/fd"))
    yield make
    assert len(os.listdir("/proc/self/fd")) == before, "the arena closes what it took over"


def test_what_is_written_to_a_region_is_in_the_segment(segment: Callable[..., int]) -> None:
    fd = segment()
    ours = os.dup(fd)
    arena = MappedArena()
    arena.add(1, SIZE, fd)
    arena.region(1, 4096, 5)[:] = b"hello"
    assert os.pread(ours, 5, 4096) == b"hello"
    os.close(ours)
    assert arena.mapped_bytes == SIZE
    arena.close()
    assert arena.mapped_bytes == 0


def test_a_segment_that_could_shrink_is_refused(segment: Callable[..., int]) -> None:
    with pytest.raises(InvalidArgumentError, match="not sealed against shrinking"):
        MappedArena().add(1, SIZE, segment(sealed=False))


def test_a_segment_smaller_than_it_is_said_to_be_is_refused(segment: Callable[..., int]) -> None:
    for claimed in (SIZE + 1, 0, -1, 2**62):
        with pytest.raises(InvalidArgumentError, match=f"has {SIZE} bytes, not {claimed}"):
            MappedArena().add(1, claimed, segment())


def test_what_is_no_memfd_is_refused(segment: Callable[..., int]) -> None:
    with pytest.raises(InvalidArgumentError):
        MappedArena().add(1, SIZE, os.open("/dev/null", os.O_RDWR))


def test_a_number_is_taken_once(segment: Callable[..., int]) -> None:
    arena = MappedArena()
    arena.add(1, SIZE, segment())
    for number in (1, 0, -5):
        with pytest.raises(InvalidArgumentError, match="can't be taken"):
            arena.add(number, SIZE, segment())
    arena.drop(1)
    arena.add(1, SIZE, segment())
    arena.close()


@pytest.mark.parametrize(
    ("number", "offset", "size"),
    [(2, 0, 8), (1, -8, 8), (1, 4, 8), (1, SIZE, 8), (1, 0, SIZE + 1), (1, SIZE - 8, 16)],
)
def test_a_region_outside_its_segment_is_refused(
    segment: Callable[..., int], number: int, offset: int, size: int
) -> None:
    arena = MappedArena()
    arena.add(1, SIZE, segment())
    with pytest.raises(InvalidArgumentError, match="is not there"):
        arena.region(number, offset, size)
    arena.close()


def test_an_empty_region_needs_no_segment() -> None:
    assert len(MappedArena().region(9, 0, 0)) == 0


def test_a_slice_that_is_still_held_outlives_its_segment(segment: Callable[..., int]) -> None:
    arena = MappedArena()
    arena.add(1, SIZE, segment())
    held = arena.region(1, 0, 8)
    held[:] = b"12345678"
    arena.close()
    assert arena.mapped_bytes == 0
    assert bytes(held) == b"12345678"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC])
def test_a_segment_that_there_is_no_room_for_costs_its_calls_alone(
    segment: Callable[..., int], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    arena = MappedArena(3)
    arena.add(1, SIZE, segment())
    with monkeypatch.context() as patched:
        patched.setattr(mmap, "mmap", refuse)
        lack = arena.add(2, SIZE, segment())
    assert lack is not None
    for _ in range(2):
        with pytest.raises(ResourceError, match="rank 3's daemon") as caught:
            arena.region(2, 0, 8)
        assert (caught.value.fields["rank"], caught.value.fields["segment"]) == (3, 2)
    assert len(arena.region(1, 0, 8)) == 8
    arena.drop(2)
    assert arena.add(2, SIZE, segment()) is None
    assert len(arena.region(2, 0, 8)) == 8
    arena.close()


def test_what_else_the_system_refuses_is_the_clients_fault(
    segment: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(InvalidArgumentError, match="can't be mapped: .*Permission denied"):
        MappedArena(3).add(1, SIZE, segment())
