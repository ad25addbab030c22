"""How a process of the bench takes orders from the driver: JSON lines over its Unix socket.

Between orders it sleeps in ``recv``, so that it costs the others nothing.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any


def serve(
    control: str, hello: dict[str, Any], obey: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Say who we are to the driver at ``control``; answer its orders, up to the one to end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(control)
        file = sock.makefile("rw", encoding="utf-8")
        _say(file, hello)
        for line in file:
            order = json.loads(line)
            if order["do"] == "end":
                break
            _say(file, obey(order))


def _say(file: Any, what: dict[str, Any]) -> None:
    file.write(json.dumps(what) + "\n")
    file.flush()
