"""Threads on which futures are completed.

A callback of a future runs on the thread that completes it, and may itself wait for another
collective. So the pool never makes a job wait for a thread that is busy: it grows.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

MAX_THREADS: Final = 256
IDLE_S: Final = 5.0
"""A thread with nothing to do ends after this."""


class Pool:
    """Runs jobs, each at once. Jobs raise nothing."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._jobs: deque[Callable[[], object]] = deque()
        self._idle = 0
        self._threads = 0

    def run(self, job: Callable[[], object]) -> None:
        """Have a job done by a thread that is free, or by a new one. Never blocks.

        With MAX_THREADS busy it waits for its turn.
        """
        with self._lock:
            self._jobs.append(job)
            if len(self._jobs) > self._idle and self._threads < MAX_THREADS:
                self._threads += 1
                name = f"ringd-futures-{self._threads}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
            else:
                self._lock.notify()

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
                found = self._lock.wait_for(lambda: self._jobs, timeout=IDLE_S)
                self._idle -= 1
                if not found:
                    self._threads -= 1
                    return
                job = self._jobs.popleft()
            job()
            del job


POOL = Pool()


def _in_child() -> None:
    POOL.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_in_child)
