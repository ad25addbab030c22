"""Standing daemons for ranks under torch, and the check that nothing is left of them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.harness import WIDER, Daemons, processes_of, until
from tests.torch import ranks

HERE = Path(__file__).parent
OWNER = f"{os.getpid()}-torch"
Both = Callable[..., dict[str, list[Any]]]
Own = Callable[..., list[Any]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.serial)


@pytest.fixture(scope="session")
def _standing() -> Iterator[dict[int, Daemons]]:
    groups: dict[int, Daemons] = {}
    yield groups
    for group in groups.values():
        group.close()
        shutil.rmtree(group.folder, ignore_errors=True)
    assert not processes_of(OWNER)


@pytest.fixture
def both(_standing: dict[int, Daemons]) -> Both:
    """``both(program, n)``: what a program returns on each of n ranks, by backend."""

    def run(
        program: ranks.Program, n: int, backends: tuple[str, ...] = ranks.BOTH, **arguments: Any
    ) -> dict[str, list[Any]]:
        if n not in _standing:
            folder = Path(tempfile.mkdtemp(prefix="ringd-test-"))
            _standing[n] = Daemons(n, folder, OWNER)
            _standing[n].start_daemons()
        sockets = [_standing[n].socket(rank) for rank in range(n)]
        return ranks.run(program, n, sockets, backends, owner=OWNER, **arguments)

    return run


@pytest.fixture
def own(request: pytest.FixtureRequest) -> Iterator[Own]:
    """``own(program, n)``: the same under ringd, where each rank starts its own daemon.

    With ``which=`` that rank may die, or those. Nothing is left of them after the test.
    """
    owner = f"{os.getpid()}-{abs(hash(request.node.nodeid)):x}"

    def run(program: ranks.Program, n: int, **arguments: Any) -> list[Any]:
        which = arguments.get("which", ())
        may_die = [which] if isinstance(which, int) else which
        told = ranks.run(program, n, (), ("ringd",), owner=owner, may_die=may_die, **arguments)
        return told["ringd"]

    yield run
    until(lambda: not processes_of(owner), "daemons end after their trainers", 10 * WIDER)
