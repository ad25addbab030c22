"""Coming, going, and how a call ended."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import ringd_client
from ringd.errors import RingdError
from tests.processes.trainer import Stage


def connect(stage: Stage, timeout_s: float = 60.0) -> int:
    """Attach; the epoch."""
    stage.comm = ringd_client.connect(timeout_s=timeout_s)
    epoch: int = stage.comm.epoch
    return epoch


def disconnect(stage: Stage) -> None:
    """Close in order."""
    if stage.comm is not None:
        stage.comm.close()
        stage.comm = None


def try_connect(stage: Stage, timeout_s: float) -> dict[str, Any]:
    """Attach, or say what came instead."""
    return outcome(lambda: connect(stage, timeout_s))


def outcome(call: Callable[[], Any]) -> dict[str, Any]:
    """How a call ended, and when: its value, or its error as data."""
    begun = time.monotonic()
    told: dict[str, Any]
    try:
        told = {"error": None, "value": call()}
    except Exception as exc:
        told = {"error": type(exc).__name__, "text": str(exc), "is": kinds_of(exc)}
        if isinstance(exc, RingdError):
            told |= {"fields": exc.fields, "retry": exc.retry}
    ended = time.monotonic()
    return told | {"took_s": ended - begun, "at": ended}


def kinds_of(error: BaseException) -> list[str]:
    """The names of an error's classes."""
    return [cls.__name__ for cls in type(error).__mro__]


def belongings(stage: Stage) -> dict[str, int]:
    """Descriptors and threads of this process."""
    return {"fds": len(os.listdir("/proc/self/fd")), "threads": threading.active_count()}


def come_and_go(stage: Stage, rounds: int) -> dict[str, Any]:
    """D1: connect, barrier, close, so many times; what the process holds before and after."""
    with ringd_client.connect() as comm:
        comm.barrier()
    before = belongings(stage)
    for _ in range(rounds):
        with ringd_client.connect() as comm:
            comm.barrier()
    return {"before": before, "after": belongings(stage)}


def one_round(stage: Stage) -> int:
    """Connect, barrier, close."""
    with ringd_client.connect() as comm:
        comm.barrier()
        epoch: int = comm.epoch
    return epoch
