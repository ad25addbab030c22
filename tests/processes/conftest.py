"""Groups of real processes, shared where no test harms them, and a leak check after each test."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processes.harness import Daemons, processes_of, until

HERE = Path(__file__).parent
STANDING = "standing"
"""Owner of the processes that outlive a test."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.serial)


def _short_folder() -> Path:
    # A Unix socket's path has at most 107 bytes; pytest's own folders may be longer.
    return Path(tempfile.mkdtemp(prefix="ringd-test-"))


@pytest.fixture
def owner(request: pytest.FixtureRequest) -> str:
    """Whose processes these are, in one word."""
    return f"{os.getpid()}-{abs(hash(request.node.nodeid)):x}"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path."""
    path = _short_folder()
    yield path
    shutil.rmtree(path, ignore_errors=True)


def _shared_memory() -> set[str]:
    """Segments with a name, without semaphores: ringd has none, other programs come and go."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}


@pytest.fixture(autouse=True)
def _nothing_is_left(owner: str) -> Iterator[None]:
    shared = _shared_memory()
    yield
    until(lambda: not processes_of(owner), f"all ended: {processes_of(owner)}", 10)
    assert _shared_memory() <= shared


@pytest.fixture
def daemons(folder: Path, owner: str) -> Iterator[Callable[..., Daemons]]:
    """Groups of a test's own: ``daemons(4)`` has started them all."""
    made: list[Daemons] = []

    def make(n: int, *, start: bool = True, **settings: object) -> Daemons:
        place = folder / f"g{len(made)}"
        place.mkdir()
        group = Daemons(n, place, owner, **settings)
        made.append(group)
        if start:
            group.start_daemons()
        return group

    yield make
    for group in made:
        group.close()


@pytest.fixture(scope="session")
def _standing() -> Iterator[dict[int, Daemons]]:
    groups: dict[int, Daemons] = {}
    yield groups
    owner = f"{os.getpid()}-{STANDING}"
    try:
        for group in groups.values():
            group.close()
            shutil.rmtree(group.folder, ignore_errors=True)
    finally:
        assert not processes_of(owner)


@pytest.fixture
def standing(
    _standing: dict[int, Daemons], request: pytest.FixtureRequest
) -> Iterator[Callable[[int], Daemons]]:
    """``standing(4)``: N connected trainers on daemons that stand from test to test.

    A test may kill trainers, and leave errors behind; daemons it must leave alone. The next
    test has a new epoch. Daemons may have nothing to complain of, but in a module that says
    PROVOKES_COMPLAINTS.
    """
    used: list[Daemons] = []

    def get(n: int) -> Daemons:
        if n not in _standing:
            group = Daemons(n, _short_folder(), f"{os.getpid()}-{STANDING}")
            _standing[n] = group
            group.start_daemons()
        group = _standing[n]
        group.connect()
        used.append(group)
        return group

    yield get
    for group in used:
        try:
            group.disconnect()
        except AssertionError:
            for rank in list(group.trainers):
                group.kill_trainer(rank)
            raise
        until(
            lambda group=group: all(not group.status(r)["in_flight"] for r in range(group.n)),
            "no operation is left in a daemon",
        )
        complaints = group.complaints()
        assert complaints == [] or getattr(request.module, "PROVOKES_COMPLAINTS", False)
