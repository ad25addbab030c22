"""Threads that wait while another one reads from the daemon."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Final

from ringd_client._operation import Operation

SLICE_S: Final = 0.1
"""How long a thread waits at a time: who was to wake it may be interrupted itself."""


class Follower:
    """A thread that waits while another one reads."""

    __slots__ = ("gate", "operation", "thread")

    def __init__(self, operation: Operation[Any], thread: int) -> None:
        self.operation = operation
        self.thread = thread
        self.gate = threading.Lock()
        self.gate.acquire()

    def sleep(self, until: float) -> None:
        """Until the operation is over, or it is this thread's turn to lead, or a while."""
        if not self.operation.over:  # else it was answered before anybody could see us here
            self.gate.acquire(timeout=min(max(0.0, until - time.monotonic()), SLICE_S))

    def wake(self) -> None:
        """End its sleep; a second time does nothing."""
        with contextlib.suppress(RuntimeError):
            self.gate.release()
