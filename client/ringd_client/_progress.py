"""The progress thread: what happens to asynchronous operations that nobody waits for.

It starts with the first asynchronous call. It keeps out of the way of threads that wait: a
handle that is waited for soon after its call costs no hand-over between threads. So a new
operation is looked after within TICK_S, not at once.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from ringd_client._core import ClientState
from ringd_client._locks import OwnedLock
from ringd_client._operation import Operation

TICK_S: Final = 0.002
EXPIRY_CHECK_S: Final = 0.1
SHORT_OF_MEMORY_S: Final = 0.05
IDLE_TICKS: Final = 64
"""After so many ticks with nothing to do the thread sleeps until it is called."""


class Reader(Protocol):
    """What the progress thread needs of the connection."""

    state: ClientState

    def await_news(self, until: float) -> bool:
        """Take in what comes until then, while nobody else reads; False: somebody does."""

    def give_up(self, operation: Operation[Any]) -> None:
        """End an operation whose deadline has passed without an answer."""


class Progress:
    """Reads for handles that nobody waits for, writes their results, keeps their deadlines."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._answered: deque[Operation[Any]] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()  # a handler may ring while we do
        self._starting = OwnedLock()
        self._running = threading.Lock()  # for good: there is one thread
        self._thread: threading.Thread | None = None
        self._runs: threading.Thread | None = None
        self._parked = False
        self._stopped = False
        self._next_expiry_check = 0.0

    def attend(self) -> None:
        """An operation was posted that nobody may ever wait for."""
        if self._thread is None:
            self._start()
        elif self._parked:
            self._bell.put(None)

    def hasten(self) -> None:
        """End a nap: somebody depends on an operation that no thread waits for."""
        self._bell.put(None)

    def hand_over(self, operation: Operation[Any]) -> None:
        """An operation was answered, and its result is to be written by somebody."""
        if self._thread is None:  # there was no room for it, and may be none now
            operation.settle_unless_busy(wait=False)
            if operation.released:
                return
        self._answered.append(operation)
        if self._parked:
            self._bell.put(None)

    def dismiss(self) -> None:
        """Tell the thread to end; its connection has hung up."""
        with self._starting:
            self._stopped = True
        self._bell.put(None)

    def stop(self) -> None:
        """End the thread, and finish what was handed over."""
        self.dismiss()
        for thread in (self._thread, self._runs):
            if thread is not None and thread is not threading.current_thread():
                thread.join()
        self._settle_answered(wait=True)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(
                    target=self._run, name="ringd-progress", daemon=True
                )
                try:
                    self._thread.start()
                except BaseException as exc:  # a handler's: whether it comes to run nobody knows
                    if not self._thread.is_alive():
                        self._thread = None
                    if not isinstance(exc, RuntimeError):
                        raise
                    # The system has no room for one. Whoever waits, or asks, reads for itself, and
                    # the next asynchronous call tries again.

    def _run(self) -> None:
        if not self._running.acquire(blocking=False):
            return  # the one that was given up has come to run
        self._runs = threading.current_thread()
        while not self._stopped:
            try:
                self._look_after()
            except MemoryError:  # what was read, or is to be written, is still there
                time.sleep(SHORT_OF_MEMORY_S)

    def _look_after(self) -> None:
        quiet_ticks = 0
        while not self._stopped:
            if not self._settle_answered(wait=False):
                self._nap(TICK_S)
            if self._reader.state.attended:
                quiet_ticks += 1
                self._nap(None if quiet_ticks > IDLE_TICKS else TICK_S)
                continue
            quiet_ticks = 0
            self._expire()
            if not self._reader.await_news(self._next_expiry_check):
                self._nap(TICK_S)

    def _nap(self, timeout_s: float | None) -> None:
        """Sleep; without a timeout, until somebody rings."""
        while not self._bell.empty():
            self._bell.get()
        self._parked = timeout_s is None
        busy = self._answered or self._stopped or not self._reader.state.attended
        if not (self._parked and busy):
            with contextlib.suppress(Empty):
                self._bell.get(timeout=timeout_s)
        self._parked = False

    def _settle_answered(self, *, wait: bool) -> bool:
        """Write results; False: some are left, as their threads are in the middle of that."""
        busy: list[Operation[Any]] = []
        try:
            with contextlib.suppress(IndexError):  # of two threads one finds it empty
                while True:
                    busy.append(self._answered.popleft())
                    if busy[-1].settle_unless_busy(wait=wait):
                        busy.pop()
        finally:
            if not wait:
                self._answered.extend(busy)
        return not busy

    def _expire(self) -> None:
        now = time.monotonic()
        if now >= self._next_expiry_check:
            for operation in self._reader.state.expired(now):
                if operation.detached:
                    self._reader.give_up(operation)
            self._next_expiry_check = now + EXPIRY_CHECK_S
