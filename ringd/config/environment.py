"""The process's environment: the one module that reads it.

All others take a mapping as an argument, so a test needs no patching and a reader no search.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PREFIX = "RINGD_"
CONFIG_VARIABLE = "RINGD_CONFIG"
"""Names the settings file; it is not a setting itself."""


def snapshot() -> dict[str, str]:
    """A copy of the environment as it is now."""
    return dict(os.environ)


def variable(setting: str) -> str:
    """The variable that carries a setting: ``timeout_s`` is RINGD_TIMEOUT_S."""
    return PREFIX + setting.upper()


def for_child(environ: Mapping[str, str], **settings: object) -> dict[str, str]:
    """The environment for a child process: ``environ`` with these settings put in.

    A setting of None is taken out. The child checks the values like anybody's.
    """
    child = dict(environ)
    for name, value in settings.items():
        child.pop(variable(name), None)
        if value is not None:
            child[variable(name)] = str(value)
    return child


def runtime_dir(environ: Mapping[str, str]) -> Path:
    """The user's own folder for Unix sockets; whoever makes it makes it with mode 0700."""
    base = environ.get("XDG_RUNTIME_DIR")
    if base:
        return Path(base) / "ringd"
    return Path(environ.get("TMPDIR") or "/tmp") / f"ringd-{os.getuid()}"
