"""Part 5 on a rank: all_reduce without end, until somebody is gone."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ringd.errors import RingdError
from ringd_client import Communicator


def answer(comm: Communicator, order: dict[str, Any]) -> dict[str, Any]:
    """Loop until a call raises; what it raised, and when."""
    tensor = np.empty(order["count"], np.float32)
    calls = 0
    try:
        while True:
            tensor.fill(comm.rank + 1)
            comm.all_reduce(tensor, timeout_s=order["timeout_s"])
            calls += 1
    except RingdError as exc:
        raised_ns = time.monotonic_ns()
        return {
            "raised_ns": raised_ns,
            "calls": calls,
            "error": type(exc).__name__,
            "text": str(exc),
            "fields": {k: exc.fields.get(k) for k in ("rank", "seq", "bytes_done", "bytes_total")},
            "untouched": bool((tensor == comm.rank + 1).all()),
        }
