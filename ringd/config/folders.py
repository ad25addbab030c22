"""Folders that nobody else can look into: the user's runtime folder, and others of ringd's."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from ringd.config import environment
from ringd.errors import ConfigError

_ELSEWHERE = "set XDG_RUNTIME_DIR or TMPDIR to a folder"


def make_folders(folder: Path) -> None:
    """Make a folder, and those above it that are missing, all of mode 0700.

    What is there stays as it is, but for the user's runtime folder: see
    :func:`make_runtime_folder`.

    Raises:
        ConfigError: the runtime folder can't be used.
        OSError: another one can't be made.
    """
    runtime = environment.runtime_dir(environment.snapshot())
    if runtime in (folder, *folder.parents):
        make_runtime_folder(runtime)
    missing = [above for above in folder.parents if not above.exists()]
    for each in (*reversed(missing), folder):
        each.mkdir(mode=0o700, exist_ok=True)


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
            raise unusable(folder, f"is {what}", "of your own")
        if found.st_uid != os.getuid():
            raise unusable(folder, f"belongs to user {found.st_uid}", "of your own")
        if stat.S_IMODE(found.st_mode) & 0o077:
            folder.chmod(0o700)
    except OSError as exc:
        raise unusable(folder, f"can't be made: {exc.strerror}") from None


def unusable(folder: Path, what: str, which: str = "that can be written") -> ConfigError:
    """The error that says why a runtime folder is no good, and what to do."""
    return ConfigError(f"the runtime folder {folder} {what}; {_ELSEWHERE} {which}")
