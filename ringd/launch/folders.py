"""A job's own folder in the user's runtime folder, and what is kept there of the last failure."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ringd.config.folders import make_runtime_folder, unusable
from ringd.config.values import MAX_SOCKET_PATH_BYTES
from ringd.observe.kept import swap_in


def make_job_folder(folder: Path, n: int) -> None:
    """Make a new folder, of mode 0700, for the sockets of ``n`` daemons.

    Raises:
        FileExistsError: it is there.
        ConfigError: it can't be made, or its name is too long for a Unix socket.
    """
    longest = len(os.fsencode(folder / f"{n - 1}.sock"))
    if longest > MAX_SOCKET_PATH_BYTES:
        raise unusable(
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
        raise unusable(folder, f"can't be made: {exc.strerror}") from None


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
        swap_in(fresh, kept, Path(draft))
