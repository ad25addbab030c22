"""What :func:`inspect.signature` and ``help`` show of methods that are made of functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

NAMES: Final = {"send": "isend", "recv": "irecv"}
"""Calls whose twin with a handle has a name of its own."""


def show_as_method(method: Any, call: Callable[..., Any], returns: str = "{}") -> None:
    """Let a method show the call's parameters, with ``self`` first, and what it returns itself;
    and its name in stacks, which a daemon reads to know what its trainer waits for.

    Args:
        returns: the return annotation, with ``{}`` for what the call's operation or steps return.
    """
    method.__code__ = method.__code__.replace(co_name=method.__name__)
    signature = inspect.signature(call)
    caller, *others = signature.parameters.values()
    this = caller.replace(name="self", annotation=inspect.Parameter.empty)
    result = str(signature.return_annotation).partition("[")[2].removesuffix("]")
    method.__signature__ = signature.replace(
        parameters=[this, *others], return_annotation=returns.format(result)
    )


def name_with_handle(call: Callable[..., Any]) -> str:
    """The name of the method that makes a call and returns a handle."""
    return NAMES.get(call.__name__, f"{call.__name__}_async")
