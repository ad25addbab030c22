"""The progress thread: there is one, whatever interrupts its start."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from ringd_client import _progress
from ringd_client._operation import Operation
from ringd_client._progress import Progress
from tests.processes.harness import until


class Reader:
    """Counts the threads that are in it at a time."""

    def __init__(self) -> None:
        self.state: Any = SimpleNamespace(attended=False, expired=lambda now: ())
        self.within: set[int] = set()
        self.visits = 0
        self.most = 0

    def await_news(self, until: float) -> bool:
        self.within.add(threading.get_ident())
        self.visits += 1
        self.most = max(self.most, len(self.within))
        time.sleep(0.001)
        return True

    def give_up(self, operation: Any) -> None:
        raise AssertionError("none has expired")


class CutShort(threading.Thread):
    """Its first start is interrupted when the thread is on its way, and nobody knows of it."""

    left = 1

    def start(self) -> None:
        super().start()
        if CutShort.left:
            CutShort.left -= 1
            self.is_alive = lambda: False  # type: ignore[method-assign]
            raise KeyboardInterrupt


def test_a_start_that_was_interrupted_does_not_lead_to_two_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    CutShort.left = 1
    monkeypatch.setattr(_progress.threading, "Thread", CutShort)
    reader = Reader()
    progress = Progress(reader)
    with pytest.raises(KeyboardInterrupt):
        progress.attend()
    progress.attend()
    until(lambda: reader.visits > 20, "the thread works")
    assert reader.most == 1
    progress.stop()
    visits = reader.visits
    assert not [t for t in threading.enumerate() if t.name == "ringd-progress"]
    assert reader.visits == visits


class Settled:
    """A settlement that counts."""

    result_bytes = 0

    def __init__(self) -> None:
        self.times = 0

    def linger(self, operation: Operation[Any]) -> bool:
        return False

    def settle(self, write: bool) -> None:
        self.times += 1


def answered_operation() -> tuple[Operation[None], Settled]:
    settled = Settled()
    operation: Operation[None] = Operation("all_reduce", b"", settlement=settled)
    operation.output = None
    operation.answered = True
    return operation, settled


def test_a_close_in_the_middle_of_a_step_does_not_wait_for_the_thread_that_waits_for_the_step() -> (
    None
):
    reader = Reader()
    progress = Progress(reader)
    progress.attend()
    until(lambda: reader.visits > 2, "the thread works")
    operation, settled = answered_operation()
    with operation.lock:  # as in a signal handler that has interrupted operation.settle()
        progress.hand_over(operation)
        visits = reader.visits
        until(lambda: reader.visits > visits + 2, "the thread goes on")
        progress.stop()
        assert not operation.finished
    operation.settle()
    assert operation.finished
    assert settled.times == 1


def test_a_result_whose_operation_was_held_for_a_moment_is_written_later() -> None:
    reader = Reader()
    progress = Progress(reader)
    progress.attend()
    operation, settled = answered_operation()
    with operation.lock:
        progress.hand_over(operation)
        visits = reader.visits
        until(lambda: reader.visits > visits + 2, "the thread goes on")
        assert settled.times == 0
    until(lambda: operation.finished, "the thread has written it")
    assert settled.times == 1
    progress.stop()
