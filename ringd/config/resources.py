"""What a process may run out of, in words: file descriptors, memory."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from pathlib import Path

from ringd.errors import ResourceError

OF_MACHINE = Path("/proc/sys/fs/file-max")
DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
MEMORY = frozenset({errno.ENOMEM, errno.ENOSPC})


def exhausted(error: BaseException, whose: str, rank: int | None = None) -> ResourceError | None:
    """The error that says so, where ``error`` is one of a process that has run out; else None.

    A library that could not be loaded for that is one, too.

    Args:
        whose: the process, as the subject of a sentence.
        rank: of it, if that is known.
    """
    if isinstance(error, MemoryError):
        return _no_memory(whose, str(error), rank)
    number = _number(error)
    if number == errno.EMFILE:
        limit: int | None = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        text = f"{whose} is out of file descriptors (limit {limit}): raise `ulimit -n`"
    elif number == errno.ENFILE:
        limit = _of_machine()
        text = f"{whose}: the machine is out of file descriptors (limit {limit}): raise fs.file-max"
    elif number in MEMORY:
        return _no_memory(whose, os.strerror(number), rank)
    else:
        return None
    return ResourceError(text, resource="file descriptors", limit=limit, rank=rank)


def _number(error: BaseException) -> int | None:
    """What the system said; in words where the dynamic loader did, in a library's ImportError, or
    torch, in a RuntimeError."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    if isinstance(error, OSError | ImportError | RuntimeError):
        said = str(error)
        return next((n for n in (*DESCRIPTORS, *MEMORY) if os.strerror(n) in said), None)
    return None


def _no_memory(whose: str, detail: str, rank: int | None) -> ResourceError:
    said = f" ({detail})" if detail else ""
    return ResourceError(
        f"{whose} is out of memory{said}: pass less at a time, or give it more",
        resource="memory",
        limit=None,
        rank=rank,
    )


def _of_machine() -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(OF_MACHINE.read_text())
    return None
