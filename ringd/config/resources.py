"""What a process may run out of, in words: file descriptors, memory."""

from __future__ import annotations

import contextlib
import errno
import resource
from pathlib import Path

from ringd.errors import ResourceError

OF_MACHINE = Path("/proc/sys/fs/file-max")
DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
MEMORY = frozenset({errno.ENOMEM, errno.ENOSPC})


def exhausted(error: BaseException, whose: str, rank: int | None = None) -> ResourceError | None:
    """The error that says so, where ``error`` is one of a process that has run out; else None.

    Args:
        whose: the process, as the subject of a sentence.
        rank: of it, if that is known.
    """
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EMFILE:
        limit: int | None = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        text = f"{whose} is out of file descriptors (limit {limit}): raise `ulimit -n`"
    elif number == errno.ENFILE:
        limit = _of_machine()
        text = f"{whose}: the machine is out of file descriptors (limit {limit}): raise fs.file-max"
    elif number in MEMORY:
        assert isinstance(error, OSError)
        return ResourceError(
            f"{whose} is out of memory ({error.strerror})", resource="memory", limit=None, rank=rank
        )
    else:
        return None
    return ResourceError(text, resource="file descriptors", limit=limit, rank=rank)


def _of_machine() -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(OF_MACHINE.read_text())
    return None
