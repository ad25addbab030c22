"""The exception that ended a trainer's work, as it travels to the other ranks: bounded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

MAX_TYPE: Final = 200
MAX_TEXT: Final = 1000
MAX_FILE: Final = 300
MAX_LINE: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception; texts that are too long are cut.

    Attributes:
        type: the name of its class.
        message: its text; it may be empty.
        file: where the program's own code raised it, or called what raised it, which may be ours,
            the standard library's or a package's; "" when that is unknown.
        line: in ``file``, or 0.
    """

    type: str
    message: str = ""
    file: str = ""
    line: int = 0

    @classmethod
    def cut(cls, type: str, message: str, file: str, line: int) -> Raised:
        """From whatever texts; of a long path the end counts."""
        return cls(
            _sendable(type[:MAX_TYPE]),
            _sendable(message[:MAX_TEXT]),
            _sendable(file[-MAX_FILE:]),
            min(max(line, 0), MAX_LINE),
        )

    @property
    def is_interrupt(self) -> bool:
        """Somebody has ended the program (Ctrl-C); nothing has failed."""
        return self.type == KeyboardInterrupt.__name__

    @classmethod
    def read(cls, data: object) -> Raised | None:
        """What :meth:`words` said; None stays None.

        Raises:
            ValueError: it is something else.
        """
        if data is None:
            return None
        if not isinstance(data, dict):
            raise ValueError("an exception is a map, or nil")
        match data:
            case {"type": str(kind), "message": str(message), "file": str(file), "line": int(line)}:
                if line is not True and line is not False:
                    return cls.cut(kind, message, file, line)
        raise ValueError("an exception has the texts type, message and file, and a line")

    def words(self) -> dict[str, Any]:
        """As plain data, for a message."""
        return {
            "type": self.type,
            "message": self.message,
            "file": self.file,
            "line": self.line,
        }

    def fields(self) -> dict[str, Any]:
        """As fields of an error that is raised on another rank because of it."""
        return {
            "exception_type": self.type,
            "exception_message": self.message,
            "file": self.file,
            "line": self.line,
        }

    def __str__(self) -> str:
        """ "Type: message (file.py:line)", without the folder."""
        what = f"{self.type}: {self.message}" if self.message else self.type
        where = f" ({PurePath(self.file).name}:{self.line})" if self.file else ""
        return what[: MAX_TEXT - len(where)] + where


def _sendable(text: str) -> str:
    """Without what UTF-8 has not: a path may hold any bytes."""
    return text.encode(errors="replace").decode()
