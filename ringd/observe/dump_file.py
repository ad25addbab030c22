"""Dumps of the flight recorder as files: their names, and when a daemon writes one by itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ringd.config.folders import make_folders
from ringd.observe.flight import Snapshot

PATTERN = "flight-rank*.json"
FAILURE = "failure"
"""The reason of a dump that a daemon makes by itself."""
KEPT_FILES = 8
"""Files of one rank in a folder, one per epoch; older ones make room."""
DELAY_S = 0.25
"""Between a failure and its dump: what fails by the same cause is in it, and errors go first."""
EVERY_S = 10.0
"""Failures do not make a daemon write more often than this, but for once at the end of an epoch."""


def encoded(document: Mapping[str, Any]) -> bytes:
    """A dump as the bytes of a file."""
    return json.dumps(document, separators=(",", ":")).encode()


def write(document: Mapping[str, Any], folder: Path) -> Path:
    """Write a dump in the place of an earlier one of the same rank and epoch; see it whole or not.

    Raises:
        OSError, ConfigError: the folder can't be made or written to.
    """
    rank, epoch = document["rank"], document["epoch"]
    make_folders(folder)
    path = folder / f"flight-rank{rank}-epoch{epoch}.json"
    draft = folder / f".{path.name}.{os.getpid()}"
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(encoded(document))
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    _make_room(folder, rank)
    return path


def _make_room(folder: Path, rank: int) -> None:
    """An earlier job may have left files of later epochs: age decides, not the epoch."""
    own = folder.glob(f"flight-rank{rank}-epoch*.json")
    for old in sorted(own, key=_written_at)[:-KEPT_FILES]:
        old.unlink(missing_ok=True)


def _written_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # somebody else removed it
        return 0


def check(folder: Path) -> None:
    """See that dumps can be written to a folder; it is made.

    Raises:
        OSError, ConfigError: they can't.
    """
    make_folders(folder)
    draft = folder / f".flight.{os.getpid()}"
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT, 0o600))
    draft.unlink()


class Dumper:
    """Writes a rank's dumps: soon after a failure, and when it is told to.

    Words and files are made by a thread of their own that ends with the dump, so operations go on.

    Args:
        take: gives a snapshot; its argument is the reason.
        folder: where the files go.
        setting: what says so, for the text where they can't be written.
        publish: called with the folder after a dump because of a failure; may raise OSError.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        take: Callable[[str], Snapshot],
        folder: Path,
        log: logging.Logger,
        setting: str = "dump_dir",
        publish: Callable[[Path], None] | None = None,
    ) -> None:
        self._loop = loop
        self._take = take
        self._folder = folder
        self._log = log
        self._setting = setting
        self._publish = publish
        self._next_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._failed_at = 0.0
        """What the timer is for."""
        self._interrupted = False
        self._what = ""
        self._thread: threading.Thread | None = None

    def on_failure(self, what: str) -> None:
        """Something failed: a dump follows, at most one in EVERY_S. Cheap, and may come often.

        Args:
            what: failed; the log has the first since the last dump.
        """
        self._what = self._what or what
        if self._timer is None and not self._interrupted:
            self._failed_at = self._loop.time()
            due = max(self._failed_at + DELAY_S, self._next_at)
            self._timer = self._loop.call_at(due, self.dump, FAILURE)

    def on_interrupt(self) -> None:
        """The epoch ends by the interrupt of a program: what follows from that is no failure, and
        what came up to DELAY_S before may be news of it that came first. What failed earlier, and
        is due, is written now."""
        if self._timer is not None and self._failed_at < self._loop.time() - DELAY_S:
            self.dump(FAILURE)
        self._settle()
        self._interrupted = True

    def dump(self, reason: str) -> None:
        """Write one now."""
        self._settle()
        if self._thread is not None:
            self._thread.join()  # an earlier one is still on its way; it takes milliseconds
        self._next_at = self._loop.time() + EVERY_S
        if reason == FAILURE and self._what:
            self._log.info("%s", self._what)
        self._what = ""
        snapshot = self._take(reason)
        thread = threading.Thread(target=self._write, args=(snapshot,), name="ringd-dump")
        try:
            thread.start()
        except RuntimeError:  # there is no room for one
            self._write(snapshot)
        else:
            self._thread = thread

    def epoch_ends(self) -> None:
        """The next epoch is about to begin: what is due of this one is written under its name."""
        if self._timer is not None:
            self.dump(FAILURE)
        self._interrupted = False

    def close(self) -> None:
        """The daemon ends: what is due is written at once."""
        self.epoch_ends()
        if self._thread is not None:
            self._thread.join()

    def _settle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _write(self, snapshot: Snapshot) -> None:
        try:
            path = write(snapshot.document(), self._folder)
            if self._publish is not None and snapshot.head["reason"] == FAILURE:
                self._publish(self._folder)
        except OSError as exc:
            self._log.warning(
                "the flight recorder's dump can't be written (%s): %s", self._setting, exc
            )
        else:
            self._log.info("flight recorder (%s): %s", snapshot.head["reason"], path)
