"""Unix sockets that daemons left behind: telling them from living ones, and removing them.

A daemon that was killed leaves its socket as a file that refuses every connection. So does, for a
moment, one that has bound its socket and does not listen yet: whoever binds or removes a socket
holds the lock of its folder meanwhile, so a refusal under the lock means that nobody is there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def folder_lock(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a folder of sockets (flock on the folder itself: no file is made).

    Raises:
        BlockingIOError: another process has it, and we do not wait.
        OSError: the folder is not there, or its file system has no locks.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(fd)


def refuses(path: Path) -> bool:
    """Whether nobody listens at this socket; any other trouble is not taken for that."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:  # too many wait for it (EAGAIN), it is gone, it is not ours to ask
            return False
    return False


def remove_dead(path: Path) -> bool:
    """Remove a socket of ours at which nobody listens; whether it was one, removed or not."""
    try:
        found = path.lstat()
    except OSError:
        return True
    if not stat.S_ISSOCK(found.st_mode) or not refuses(path):
        return False
    if found.st_uid != os.getuid():
        return True
    try:
        with folder_lock(path.parent, wait=False):
            if not refuses(path):  # a daemon has begun to listen since
                return False
            path.unlink(missing_ok=True)
    except BlockingIOError:  # somebody binds or removes there: it may be this one
        return False
    except OSError:
        pass
    return True
