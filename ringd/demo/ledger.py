"""What the daemons of a job accounted for, read back."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ringd.errors import RingdError

Line = dict[str, Any]


class Ledger:
    """Reads an accounting file from where it was read last.

    A daemon writes an operation's line before its trainer hears that it ended. So when all ranks
    have answered, all lines are there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_bytes = 0

    def skip(self) -> None:
        """Pass over what is there."""
        self._read_bytes = self.path.stat().st_size if self.path.exists() else 0

    def take(self) -> list[list[Line]]:
        """What came since: for each operation, in the order of calls, its lines by rank.

        Raises:
            RingdError: the line of a rank is missing.
        """
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            data = file.read()
        self._read_bytes += len(data)
        return by_operation(json.loads(line) for line in data.splitlines())


def by_operation(lines: Iterable[Line]) -> list[list[Line]]:
    """Group the lines of one epoch's collectives on the world: a list each, its lines by rank.

    Raises:
        RingdError: the line of a rank is missing.
    """
    found: dict[int, dict[int, Line]] = {}
    for line in lines:
        if line["kind"] == "collective" and not line["group"]:
            found.setdefault(line["seq"], {})[line["rank"]] = line
    operations = []
    for seq, by_rank in sorted(found.items()):
        n = next(iter(by_rank.values()))["group_size"]
        if len(by_rank) != n:
            raise RingdError(f"the accounting of operation {seq} has {len(by_rank)} of {n} ranks")
        operations.append([by_rank[rank] for rank in sorted(by_rank)])
    return operations


def sent(line: Line, what: str) -> int:
    """Bytes that the rank of this line sent, "payload" or "overhead"."""
    return sum(flow[what] for flow in line["sent"].values())


def received(line: Line, what: str) -> int:
    """Bytes that the rank of this line received, "payload" or "overhead"."""
    return sum(flow[what] for flow in line["received"].values())
