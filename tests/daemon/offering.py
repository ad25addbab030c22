"""For programs that a test looks at: they hand their stack file to who started them."""

from __future__ import annotations

import importlib.util
import socket
import sys
from pathlib import Path

_STACK = Path(__file__).parents[2] / "client/ringd_client/_stack.py"


def ready() -> None:
    """Offer the stack; the program's first argument is the descriptor of a socket to the test."""
    spec = importlib.util.spec_from_file_location("_stack", _STACK)  # the rest starts slowly
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["_stack"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    stack = module.offered()
    with socket.socket(fileno=int(sys.argv[1])) as parent:
        socket.send_fds(parent, [str(stack.signal).encode()], [stack.fd])
