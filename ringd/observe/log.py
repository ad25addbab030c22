"""Logging of ringd's processes: one line per event on stderr, as text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TextIO

_MASK = "***"
_MIN_SECRET_CHARS = 8
"""Shorter texts are not masked: they would blot out ordinary words."""


def setup(
    part: str,
    *,
    rank: int | None = None,
    level: str = "info",
    as_json: bool = False,
    stream: TextIO | None = None,
    secrets: Sequence[str] = (),
) -> None:
    """Send the log of this process to stderr, each line marked with who wrote it.

    Lines look like ``2026-03-04T05:06:07.089Z ringd.daemon[2]: joined``; from warnings on, the
    level stands before the text. Times are UTC. Calling it again replaces the former set-up.

    Args:
        part: "daemon", "rendezvous", "run": what the process is.
        rank: its rank, if it has one.
        level: "debug", "info", "warning" or "error".
        as_json: one JSON object per line instead.
        stream: where to, instead of stderr.
        secrets: texts that never appear in the log, whoever puts them there.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    formatter = JsonFormatter if as_json else TextFormatter
    handler.setFormatter(formatter(part, rank, secrets))
    root = logging.getLogger()
    for old in root.handlers[:]:
        if isinstance(old.formatter, _Formatter):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    if level != "debug":
        logging.getLogger("asyncio").setLevel(logging.WARNING)


class _Formatter(logging.Formatter):
    """What both forms share: UTC times, and secrets masked."""

    def __init__(self, part: str, rank: int | None, secrets: Sequence[str]) -> None:
        super().__init__()
        self.part = part
        self.rank = rank
        self.secrets = [s for s in secrets if len(s) >= _MIN_SECRET_CHARS]

    def time_of(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).replace(tzinfo=None)
        return time.isoformat(timespec="milliseconds") + "Z"

    def masked(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, _MASK)
        return text

    def message_of(self, record: logging.LogRecord) -> str:
        return self.masked(record.getMessage())

    def traceback_of(self, record: logging.LogRecord) -> str:
        return self.masked(self.formatException(record.exc_info)) if record.exc_info else ""


class TextFormatter(_Formatter):
    """``TIME ringd.PART[RANK]: LEVEL: text``; further lines are indented.

    So a text that came from a peer cannot pass for a line of ours.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line for a record."""
        who = f"ringd.{self.part}" + (f"[{self.rank}]" if self.rank is not None else "")
        plain = record.levelno in (logging.DEBUG, logging.INFO)
        level = "" if plain else f"{record.levelname.lower()}: "
        line = f"{self.time_of(record)} {who}: {level}{self.message_of(record)}"
        if traceback := self.traceback_of(record):
            line += "\n" + traceback
        return "\n    ".join(line.splitlines())


class JsonFormatter(_Formatter):
    """A JSON object per line: time, level, part, rank, logger, message, and traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        """The line for a record."""
        line: dict[str, object] = {
            "time": self.time_of(record),
            "level": record.levelname.lower(),
            "part": self.part,
            "rank": self.rank,
            "logger": record.name,
            "message": self.message_of(record),
        }
        if traceback := self.traceback_of(record):
            line["traceback"] = traceback
        return json.dumps(line, ensure_ascii=False)
