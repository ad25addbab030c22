"""What is kept of failed jobs among the user's runtime files, and which of them is the last.

``last-failure`` is a folder of dumps (of ``ringd run``), or a link to one of the folders in
``failures``: each has the dumps of one job whose daemons have no launcher that could move them.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

LAST_FAILURE = "last-failure"
FAILURES = "failures"
KEPT_JOBS = 8
"""Folders in ``failures``; older ones make room."""

_SWAP_TRIES = 100


def swap_in(fresh: Path, kept: Path, draft: Path) -> None:
    """Rename ``fresh`` to ``kept``; what is there goes into ``draft``, whoever else does the same.

    Raises:
        OSError: it did not work; what was in ``kept`` may be gone.
    """
    for attempt in range(_SWAP_TRIES):
        try:
            fresh.rename(kept)
            return
        except OSError:  # something is there: a full folder, a file
            if attempt == _SWAP_TRIES - 1:
                raise
        with contextlib.suppress(FileNotFoundError):  # another job was quicker
            kept.rename(draft / f"old{attempt}")


def publish(folder: Path) -> None:
    """Make ``last-failure`` show a job's folder in ``failures``, of which the newest stay.

    Raises:
        OSError: it did not work.
    """
    runtime, shown = folder.parent.parent, Path(FAILURES, folder.name)
    kept = runtime / LAST_FAILURE
    if not (kept.is_symlink() and kept.readlink() == shown):
        with tempfile.TemporaryDirectory(prefix=f".{LAST_FAILURE}-", dir=runtime) as draft:
            fresh = Path(draft, "new")
            fresh.symlink_to(shown)
            swap_in(fresh, kept, Path(draft))
    others = [each for each in folder.parent.iterdir() if each != folder]
    for old in sorted(others, key=_changed_at, reverse=True)[KEPT_JOBS - 1 :]:
        shutil.rmtree(old, ignore_errors=True)


def _changed_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # another job removed it
        return 0
