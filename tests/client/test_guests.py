"""Guests of the arena: memory of somebody else's that the daemon works in."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator

import pytest
import torch

from ringd_client import _adoption
from ringd_client._arena import MAX_GUESTS, Arena
from ringd_client._segments import PAGE_BYTES, Guest
from tests.client.conftest import eventually, mapped_segments

PAGES = 4
SIZE = PAGES * PAGE_BYTES


class Told:
    """What the daemon would know: sizes of segments by number."""

    def __init__(self, limit_bytes: int = 1 << 20) -> None:
        self.sizes: dict[int, int] = {}
        self.arena = Arena(limit_bytes, self._announce, self._retract)

    def _announce(self, number: int, size_bytes: int, fd: int) -> None:
        self.sizes[number] = size_bytes

    def _retract(self, number: int) -> None:
        del self.sizes[number]

    def host(self, address: int, stands: Callable[[], bool] = lambda: True) -> Guest | None:
        return self.arena.host(address, SIZE, -1, stands)


@pytest.fixture
def told() -> Iterator[Told]:
    made = Told()
    yield made
    made.arena.close()


def test_a_guest_is_found_by_what_lies_in_it(told: Told) -> None:
    base = 1000 * PAGE_BYTES
    first, second = told.host(base), told.host(base + 2 * SIZE)
    find = told.arena.find
    assert told.sizes == {1: SIZE, 2: SIZE}
    assert find(base, SIZE) == (first, 0)
    assert find(base + 24, SIZE - 24) == (first, 24)
    assert find(base + 3 * SIZE - 8, 8) == (second, SIZE - 8)
    assert find(base + 24, SIZE) is None
    assert find(base + SIZE, 8) is None
    assert find(base - 8, 8) is None
    assert find(base + 3 * SIZE, 8) is None


def test_one_that_does_not_stand_is_not_found(told: Told) -> None:
    standing = [True]
    told.host(SIZE, lambda: standing[0])
    assert told.arena.find(SIZE, 8) is not None
    standing[0] = False
    assert told.arena.find(SIZE, 8) is None


def test_at_an_address_that_is_used_anew_the_later_one_counts(told: Told) -> None:
    told.host(SIZE, lambda: False)
    later = told.host(SIZE)
    assert told.arena.find(SIZE, 8) == (later, 0)


def test_one_that_departed_is_retracted_by_the_next_call_that_takes_a_block(told: Told) -> None:
    guest = told.host(SIZE)
    assert guest is not None
    told.arena.depart(guest)
    assert guest.number in told.sizes  # a finalizer may not send
    told.arena.free(told.arena.take(256))
    assert guest.number not in told.sizes
    assert told.arena.guest_bytes == 0
    told.arena.depart(guest)  # as after the arena has forgotten it
    told.arena.free(told.arena.take(256))


def test_guests_have_half_of_the_cap_and_blocks_the_rest() -> None:
    told = Told(limit_bytes=4 * SIZE)
    guests = [told.host(n * SIZE) for n in range(1, 4)]
    assert [guest is None for guest in guests] == [False, False, True]
    assert told.arena.guest_bytes == 2 * SIZE
    told.arena.take(2 * SIZE)
    assert sum(told.sizes.values()) == 4 * SIZE
    told.arena.close()


def test_there_is_a_most_of_them() -> None:
    told = Told(limit_bytes=4 * MAX_GUESTS * SIZE)
    for n in range(1, MAX_GUESTS + 1):
        assert told.host(n * SIZE) is not None
    assert told.host((MAX_GUESTS + 1) * SIZE) is None
    told.arena.close()


def test_after_closing_there_are_none(told: Told) -> None:
    guest = told.host(SIZE)
    assert guest is not None
    told.arena.close()
    assert told.arena.find(SIZE, 8) is None
    assert told.host(2 * SIZE) is None
    told.arena.depart(guest)


def test_what_is_adopted_is_a_sealed_memfd_that_both_see() -> None:
    files: list[mmap.mmap] = []

    def announce(number: int, size_bytes: int, fd: int) -> None:
        files.append(mmap.mmap(fd, size_bytes))  # as the daemon does
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)

    arena = Arena(1 << 30, announce, lambda number: None)
    tensor = torch.arange(1 << 17, dtype=torch.float32)  # 512 KiB
    view = tensor[3:5]
    for _ in range(_adoption.SIGHTINGS):
        assert files == []
        _adoption.consider(tensor, arena)
    assert len(files) == 1
    assert view.tolist() == [3.0, 4.0]
    files[0][12:16] = b"\0\0\0\0"
    assert view.tolist() == [0.0, 4.0]
    tensor[4] = 0.0
    assert files[0][16:20] == b"\0\0\0\0"
    files.pop().close()
    arena.close()
    del tensor, view
    eventually(lambda: not mapped_segments())


def test_the_same_address_is_not_the_same_storage() -> None:
    """What is made anew for each step is copied, wherever malloc puts it."""
    announced: list[int] = []
    arena = Arena(1 << 30, lambda number, size, fd: announced.append(number), lambda number: None)
    for _ in range(3 * _adoption.SIGHTINGS):
        _adoption.consider(torch.zeros(1 << 18), arena)
    assert announced == []
    arena.close()
