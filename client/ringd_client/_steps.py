"""Calls that are made of several operations: written once, played by either face.

Such a call is a generator of operations that are ready to be posted. Whoever plays it posts
each, waits for it, and goes on, or throws its error in.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeAlias, TypeVar

from ringd_client._calls import Caller
from ringd_client._core import Operation

T = TypeVar("T")
Steps: TypeAlias = Generator[Operation[Any], None, T]


class Budget:
    """The one deadline of a call with several steps.

    Args:
        timeout_s: as the caller gave it; the first operation checks it.
    """

    def __init__(self, caller: Caller, timeout_s: float | None) -> None:
        self._began = time.monotonic()
        self._bound_s = caller._membership.timeout_s if timeout_s is None else timeout_s

    @property
    def left_s(self) -> float:
        """For the operations after the first; never quite nothing."""
        return max(self._began + self._bound_s - time.monotonic(), 0.001)
