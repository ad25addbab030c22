"""A runner in an empty folder and environment, and stand-ins for what commands start."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ringd.cli.app import app

Invoke = Callable[..., Result]


@pytest.fixture
def ringd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run ``ringd`` with these arguments and these variables."""
    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith("RINGD_")]:
        monkeypatch.delenv(name)
    runner = CliRunner()

    def invoke(*args: str, **environ: str) -> Result:
        return runner.invoke(app, list(args), env=environ, prog_name="ringd")

    return invoke


class Calls(list[tuple[tuple[Any, ...], dict[str, Any]]]):
    """The calls that a stand-in got, and what it does."""

    outcome: int | BaseException | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.append((args, kwargs))
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Calls]:
    """Put a recorder in the place of a function, whether its module exists yet or not."""

    def put(module: str, function: str) -> Calls:
        calls = Calls()
        fake = ModuleType(module)
        setattr(fake, function, calls)
        monkeypatch.setitem(sys.modules, module, fake)
        return calls

    return put
