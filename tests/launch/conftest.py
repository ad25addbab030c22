"""The launcher's tests start processes, too: the same folders, owners and leak checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.conftest import _nothing_is_left, folder, owner

__all__ = ["_nothing_is_left", "folder", "owner"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.serial)
