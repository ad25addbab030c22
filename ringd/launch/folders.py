"""The user's runtime folder: a job's own folder in it, and what is kept of the last failure."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ringd.config.fields import MAX_SOCKET_PATH_BYTES
from ringd.errors import ConfigError

_ELSEWHERE = "set XDG_RUNTIME_DIR or TMPDIR to a folder"
_SWAP_TRIES = 100


def make_runtime_folder(folder: Path) -> None:
    """Make the user's own folder, of mode 0700, unless it is there.

    Raises:
        ConfigError: it can't be made, or what has its name is no folder or somebody else's.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "no folder"
            raise _unusable(folder, f"is {what}", "of your own")
        if found.st_uid != os.getuid():
            raise _unusable(folder, f"belongs to user {found.st_uid}", "of your own")
        if stat.S_IMODE(found.st_mode) & 0o077:
            folder.chmod(0o700)
    except OSError as exc:
        raise _unusable(folder, f"can't be made: {exc.strerror}") from None


def make_job_folder(folder: Path, n: int) -> None:
    """Make a new folder, of mode 0700, for the sockets of ``n`` daemons.

    Raises:
        FileExistsError: it is there.
        ConfigError: it can't be made, or its name is too long for a Unix socket.
    """
    longest = len(os.fsencode(folder / f"{n - 1}.sock"))
    if longest > MAX_SOCKET_PATH_BYTES:
        raise _unusable(
            folder,
            f"makes names of sockets of {longest} bytes, and {MAX_SOCKET_PATH_BYTES} are allowed",
            "with a shorter name, or take a shorter job id",
        )
    make_runtime_folder(folder.parent)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise
    except OSError as exc:
        raise _unusable(folder, f"can't be made: {exc.strerror}") from None


def keep(files: Sequence[Path], kept: Path) -> None:
    """Move files into the folder ``kept``, which has only these then, whoever else does the same.

    All must be in one file system.

    Raises:
        OSError: it did not work; what was in ``kept`` may be gone.
    """
    with tempfile.TemporaryDirectory(prefix=f".{kept.name}-", dir=kept.parent) as draft:
        fresh = Path(draft, "new")
        fresh.mkdir(mode=0o700)
        for file in files:
            file.rename(fresh / file.name)
        for attempt in range(_SWAP_TRIES):
            try:
                fresh.rename(kept)
                return
            except OSError:  # something is there: a full folder, a file
                if attempt == _SWAP_TRIES - 1:
                    raise
            with contextlib.suppress(FileNotFoundError):  # another job was quicker
                kept.rename(Path(draft, f"old{attempt}"))


def _unusable(folder: Path, what: str, which: str = "that can be written") -> ConfigError:
    return ConfigError(f"the runtime folder {folder} {what}; {_ELSEWHERE} {which}")
