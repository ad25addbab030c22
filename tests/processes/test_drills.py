"""Every fault, at every rank, at every point of an operation, with real processes.

The whole matrix is slow; of each kind one drill runs always, at another rank and point.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.drills import KINDS, POINTS, Drill, Point
from tests.processes.harness import Daemons, processes_of

SIZES = (3, 4, 5)
ALWAYS = {
    ("kill_trainer", 4, 2, "amid"),
    ("kill_daemon", 3, 0, "amid"),
    ("stop_trainer", 4, 3, "amid"),
    ("pause_trainer", 3, 1, "before"),
    ("stop_daemon", 4, 0, "before"),
    ("pause_daemon", 3, 2, "amid"),
    ("silence_daemon", 4, 1, "between"),
    ("close_link", 3, 2, "amid"),
    ("reset_link", 4, 1, "amid"),
}
"""kind, N, victim, point."""


def matrix() -> Iterator[object]:
    for n in SIZES:
        for kind in KINDS:
            for victim in range(n):
                for point in POINTS:
                    cell = (kind, n, victim, point)
                    marks = () if cell in ALWAYS else pytest.mark.slow
                    yield pytest.param(*cell, marks=marks, id="-".join(map(str, cell)))


class Grounds:
    """N daemons with connected trainers, which stand from drill to drill as long as they pass."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._idle: dict[int, Daemons] = {}

    @contextlib.contextmanager
    def take(self, n: int) -> Iterator[Daemons]:
        """A group for one drill."""
        group = self._idle.pop(n, None) or self._fresh(n)
        (group.folder / "stop").unlink(missing_ok=True)
        try:
            yield group
        except BaseException as exc:
            exc.add_note(_logs_of(group))
            with contextlib.suppress(AssertionError):
                _end(group)
            raise
        self._idle[n] = group

    def _fresh(self, n: int) -> Daemons:
        group = Daemons(n, Path(tempfile.mkdtemp(prefix="ringd-test-")), self._owner)
        group.start_daemons()
        group.connect()
        return group

    def close(self) -> None:
        """End all."""
        for group in self._idle.values():
            _end(group)
        assert not processes_of(self._owner)


def _end(group: Daemons) -> None:
    try:
        group.close()
    finally:
        shutil.rmtree(group.folder, ignore_errors=True)


def _logs_of(group: Daemons) -> str:
    names = ["rendezvous", *(f"daemon{rank}" for rank in range(group.n))]
    return "\n".join(f"--- {name}\n{group.log(name)[-1500:]}" for name in names)


@pytest.fixture(scope="module")
def grounds() -> Iterator[Grounds]:
    found = Grounds(f"{os.getpid()}-drills")
    yield found
    found.close()


@pytest.mark.parametrize(("kind", "n", "victim", "point"), list(matrix()))
def test_drill(grounds: Grounds, kind: str, n: int, victim: int, point: Point) -> None:
    with grounds.take(n) as group:
        KINDS[kind](Drill(group, victim, point))
