"""The process's environment: the one module that reads it.

All others take a mapping as an argument, so a test needs no patching and a reader no search.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

PREFIX = "RINGD_"
CONFIG_VARIABLE = "RINGD_CONFIG"
"""Names the settings file; it is not a setting itself."""

_SERVICE = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_|$)|_PORT_\d+_(TCP|UDP|SCTP)(_|$)")
"""Ends of the variables that Kubernetes gives a pod for each service; also NAME_PORT, see below."""
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://")


def snapshot() -> dict[str, str]:
    """A copy of the environment as it is now."""
    return dict(os.environ)


def variable(setting: str) -> str:
    """The variable that carries a setting: ``timeout_s`` is RINGD_TIMEOUT_S."""
    return PREFIX + setting.upper()


def is_service_link(variable: str, value: str) -> bool:
    """Whether Kubernetes has set it for a service whose name begins with "ringd", so that it is no
    setting: RINGD_SERVICE_HOST, RINGD_PORT=tcp://…, RINGD_PORT_7000_TCP_ADDR."""
    if not variable.startswith(PREFIX):
        return False
    is_url = variable.endswith("_PORT") and _SERVICE_URL.match(value) is not None
    return is_url or _SERVICE.search(variable) is not None


def for_child(environ: Mapping[str, str], **settings: object) -> dict[str, str]:
    """The environment for a child process: ``environ`` with these settings put in.

    A setting of None is taken out, and so is what :func:`is_service_link` knows. The child checks
    the values like anybody's.
    """
    child = {k: v for k, v in environ.items() if not is_service_link(k, v)}
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
