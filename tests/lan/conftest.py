"""Labs for tests: each is down when its test is over, and leaves nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringd.lab.ending import exists
from ringd.lab.lab import Lab, temporary
from ringd.lab.spec import parse_lab
from ringd.lab.tools import why_not
from tests.lan.hosts import LanDaemons
from tests.processes.conftest import _nothing_is_left, folder, owner

__all__ = ["_nothing_is_left", "folder", "owner"]

LIMIT_S = 300
"""Of a test: each starts its own daemons and trainers, many of them at once."""
HERE = Path(__file__).parent
MakeLab = Callable[..., Lab]
MakeGroup = Callable[..., LanDaemons]


TUN = Path("/dev/net/tun")
"""Of which the switch as a program makes its devices."""


def _reason_to_skip() -> str:
    """Why there can be no lab, or not every kind of lab; "": there can."""
    return why_not() or ("" if os.access(TUN, os.R_OK | os.W_OK) else f"there is no {TUN}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = _reason_to_skip()
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.serial)
            item.add_marker(pytest.mark.lan)
            item.add_marker(pytest.mark.timeout(LIMIT_S))
            if reason:
                item.add_marker(pytest.mark.skip(reason=f"no lab: {reason}"))


@pytest.fixture
def lab_name() -> Iterator[str]:
    """A name of the test's own; nothing of it may be left."""
    name = f"test_{os.getpid()}"
    yield name
    assert not exists(name)


@pytest.fixture
def lab(lab_name: str) -> Iterator[MakeLab]:
    """``lab("4x1gbit,delay=1ms", quirks=("ipv6-only",))``; one for a test."""
    with contextlib.ExitStack() as stack:

        def make(text: str, **more: Any) -> Lab:
            return stack.enter_context(temporary(parse_lab(text, name=lab_name, **more)))

        yield make


@pytest.fixture
def group(folder: Path, owner: str) -> Iterator[MakeGroup]:
    """``group(lab)``: connected trainers, one on each host, or ``start=False``.

    With ``apart=True`` the rendezvous has the last host for itself.
    """
    made: list[LanDaemons] = []

    def make(
        where: Lab, *, start: bool = True, apart: bool = False, **settings: object
    ) -> LanDaemons:
        place = folder / f"g{len(made)}"
        place.mkdir()
        found = LanDaemons(where, place, owner, apart=apart, **settings)
        made.append(found)
        if start:
            found.start_daemons()
            found.connect()
        return found

    yield make
    for found in made:
        found.close()
