"""A trainer that sums until it is told to stop, or cannot go on; then says what it saw, and when.

Orders come as JSON lines on standard input, answers go to standard output. Times are of
CLOCK_MONOTONIC, in seconds: comparable between processes of one machine.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections import deque
from typing import Any

import numpy as np

import ringd_client
from ringd.errors import RingdError

KEPT_CALLS = 256
"""Of the calls that ended well, how many are told."""
CONNECT_LIMIT_S = 60.0


class Orders:
    """Lines of standard input, which can be looked for without waiting."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest = b""

    def next(self) -> dict[str, Any] | None:
        """Wait for an order; None: there will be none."""
        while b"\n" not in self._rest:
            piece = os.read(self._fd, 65536)
            if not piece:
                return None
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        order: dict[str, Any] = json.loads(line)
        return order

    def waiting(self) -> bool:
        """Whether there is one, or the end."""
        return bool(self._rest) or bool(select.select([self._fd], [], [], 0)[0])


class Worker:
    """One rank."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._comm: ringd_client.Communicator | None = None

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """Do what one order says; the answer."""
        if order["do"] == "connect":
            self._comm = ringd_client.connect(timeout_s=CONNECT_LIMIT_S)
            return {"epoch": self._comm.epoch}
        if order["do"] == "work":
            return self._work(order["count"], order["timeout_s"])
        if self._comm is not None:
            comm, self._comm = self._comm, None
            comm.close()
        return {}

    def _work(self, count: int, timeout_s: float) -> dict[str, Any]:
        """All_reduce after all_reduce. Element 0 says whether somebody was told to stop."""
        assert self._comm is not None
        calls: deque[tuple[float, float]] = deque(maxlen=KEPT_CALLS)
        data = np.empty(count, np.float32)
        right = True
        while True:
            told = self._orders.next() if self._orders.waiting() else {}
            if told is None or told.get("do") == "raise":
                return {"at": self._leave()}
            data.fill(self._comm.rank + 1)
            data[0] = bool(told)
            begun = time.monotonic()
            try:
                self._comm.all_reduce(data, timeout_s=timeout_s)
            except RingdError as exc:
                return {"right": right, "calls": list(calls), **_seen(exc, begun)}
            calls.append((begun, time.monotonic()))
            n = self._comm.world_size
            right = right and bool((data[1:] == n * (n + 1) / 2).all())
            if data[0]:  # all see it after the same call
                return {"right": right, "calls": list(calls), "error": None}

    def _leave(self) -> float:
        """Leave by an exception, as a training loop does; when."""
        assert self._comm is not None
        comm, self._comm = self._comm, None
        at = 0.0
        try:
            with comm:
                at = time.monotonic()
                raise ZeroDivisionError("the loss is not a number")
        except ZeroDivisionError:
            return at


def _seen(error: RingdError, begun: float) -> dict[str, Any]:
    at = time.monotonic()
    return {
        "at": at,
        "took_s": at - begun,
        "error": type(error).__name__,
        "fields": error.fields,
        "text": str(error),
    }


def main() -> None:
    """Obey until the orders end."""
    orders = Orders(sys.stdin.fileno())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints is no answer
    worker = Worker(orders)
    while (order := orders.next()) is not None:
        if order["do"] in ("stop", "raise"):
            continue  # the work had ended by itself
        try:
            answer = worker.obey(order)
        except RingdError as exc:
            answer = {"failed": f"{type(exc).__name__}: {exc}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
