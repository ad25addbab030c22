"""Storages of torch that are reduced again and again, moved into shared memory in place.

What torch allocates itself (the buckets of DDP) would be copied into the arena and out of it at
each call. Here such a storage is moved once, under all views that there are of it: torch puts it
into a shared mapping of its own, as for ``tensor.share_memory_()``, and we put a sealed memfd in
the place of the file behind it, so that no truncation can kill the daemon. From then on it
travels where it lies, and the daemon's mapping goes when torch frees it. docs/adr/0018.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import weakref
from typing import Final

import torch

from ringd.errors import ReentrantCallError
from ringd.transport.shared_memory import PAGE_BYTES, new_memfd
from ringd_client._arena import Arena
from ringd_client._locks import OwnedLock, is_mine
from ringd_client._operation import UnsentError
from ringd_client._segments import Guest
from ringd_client._tensors import copy_bytes

MIN_BYTES: Final = 256 << 10
"""Smaller ones cost more to keep than to copy."""
SIGHTINGS: Final = 3
"""A storage is adopted when it is seen for this time: what comes and goes never is."""
MAX_SEEN: Final = 1024
SHARED_FOLDER: Final = "/dev/shm"
"""Where torch makes its file; it is empty again when we have put ours in its place."""
SPARE_BYTES: Final = 1 << 20

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)

_log = logging.getLogger("ringd.client")
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip
_MAP_FIXED: Final = 0x10
_FAILED: Final = ctypes.c_void_p(-1).value


class Adopted:
    """A storage that was moved.

    Attributes:
        address, size_bytes: where it lies, in whole pages.
        fd: of the memfd; torch's, which closes it with the storage.
        storage: weak.
    """

    __slots__ = ("address", "fd", "size_bytes", "storage")

    def __init__(
        self, address: int, size_bytes: int, fd: int, storage: weakref.ref[torch.UntypedStorage]
    ) -> None:
        self.address = address
        self.size_bytes = size_bytes
        self.fd = fd
        self.storage = storage

    def stands(self) -> bool:
        """Whether it lives, and where it was put."""
        storage = self.storage()
        return storage is not None and storage.data_ptr() == self.address


class _Seen:
    """A storage that may be adopted yet."""

    __slots__ = ("storage", "times")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = weakref.ref(storage)
        self.times = 1


_lock = OwnedLock()
_adopted: dict[int, Adopted] = {}
_seen: dict[int, _Seen] = {}


def consider(tensor: torch.Tensor, arena: Arena) -> None:
    """Before a tensor is reduced: adopt its storage, if it was seen before and may be moved.

    It may be if the tensor is all of it, and it is of MIN_BYTES at least, in ordinary CPU memory
    that torch has allocated, and not seen through numpy. Nothing is raised: what can't be adopted
    is copied as ever.

    Cost: a microsecond; once about 2 ms per MiB.
    """
    if type(tensor) not in _PLAIN:
        return
    address = tensor.data_ptr()
    if arena.guest_bytes and arena.guest_at(address) is not None:
        return
    storage = tensor.untyped_storage()
    if (
        not address
        or storage.data_ptr() != address
        or storage.nbytes() != tensor.nbytes
        or storage.device.type != "cpu"
    ):
        return
    if is_mine(_lock):
        return  # a signal handler
    with _lock:
        try:
            _consider(storage, address, arena)
        except (OSError, RuntimeError, UnsentError, ReentrantCallError) as exc:
            _log.debug("a storage of %d bytes is not adopted: %s", storage.nbytes(), exc)


def _consider(storage: torch.UntypedStorage, address: int, arena: Arena) -> None:
    record = _adopted.get(address)
    if record is not None and record.stands():
        _host(record, storage, arena)  # adopted for another communicator
        return
    seen = _seen.get(address)
    if seen is None or seen.storage() is not storage:
        if len(_seen) >= MAX_SEEN:
            _seen.clear()
        _seen[address] = _Seen(storage)
        return
    seen.times += 1
    if seen.times != SIGHTINGS:
        return  # later than that: it could not be
    if storage.resizable() and not storage.is_shared() and arena.has_room_for(storage.nbytes()):
        _host(_adopt(storage), storage, arena)
        del _seen[address]


def _host(record: Adopted, storage: torch.UntypedStorage, arena: Arena) -> None:
    guest = arena.host(record.address, record.size_bytes, record.fd, record.stands)
    if guest is not None:
        weakref.finalize(storage, _depart, weakref.ref(arena), guest).atexit = False


def _depart(arena: weakref.ref[Arena], guest: Guest) -> None:
    """A storage is gone. It may outlive the arena, and does not keep it."""
    found = arena()
    if found is not None:
        found.depart(guest)


def _adopt(storage: torch.UntypedStorage) -> Adopted:
    """Move a storage into a memfd; its views, and its contents, stay.

    Raises:
        OSError, RuntimeError: there is no room. It is where it was, or in shared memory of torch's.
    """
    size_bytes = -(-storage.nbytes() // PAGE_BYTES) * PAGE_BYTES
    shared = os.statvfs(SHARED_FOLDER)
    if shared.f_bavail * shared.f_frsize < size_bytes + SPARE_BYTES:
        raise OSError(f"{SHARED_FOLDER} is full")
    ours = new_memfd(size_bytes)
    try:
        theirs, _ = storage._share_fd_cpu_()
        _never_resize(storage)
        address = storage.data_ptr()
        _fill(ours, address, size_bytes)
        _map(address, size_bytes, mmap.MAP_SHARED | mmap.MAP_POPULATE, ours)
        os.dup2(ours, theirs, inheritable=False)
    finally:
        os.close(ours)
    record = Adopted(address, size_bytes, theirs, weakref.ref(storage))
    _adopted[address] = record
    weakref.finalize(storage, _forget, record).atexit = False
    return record


def _never_resize(storage: torch.UntypedStorage) -> None:
    """Have torch refuse to resize it: it has no allocator any more, and would crash.

    It is what torch does to a storage that numpy sees.
    """
    torch.empty(0, dtype=torch.uint8).set_(storage, 0, (0,)).numpy()  # type: ignore[call-overload]


def _fill(fd: int, address: int, size_bytes: int) -> None:
    with mmap.mmap(fd, size_bytes) as target:
        anchor = ctypes.c_char.from_buffer(target)
        copy_bytes(ctypes.addressof(anchor), address, size_bytes)
        del anchor  # or it could not be closed


def _map(address: int, size_bytes: int, flags: int, fd: int) -> None:
    """Put a file's pages where others are mapped; whoever looks sees either.

    Raises:
        OSError: they are still what they were.
    """
    rights = mmap.PROT_READ | mmap.PROT_WRITE
    if _libc.mmap(address, size_bytes, rights, flags | _MAP_FIXED, fd, 0) == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _forget(record: Adopted) -> None:
    if _adopted.get(record.address) is record:
        del _adopted[record.address]


def _in_child() -> None:
    """What a child writes is its own; torch and we would let it write into its parent's memory."""
    global _lock
    _lock = OwnedLock()
    for record in list(_adopted.values()):
        if record.stands():
            _map(record.address, record.size_bytes, mmap.MAP_PRIVATE, record.fd)
    _adopted.clear()
    _seen.clear()


os.register_at_fork(after_in_child=_in_child)
