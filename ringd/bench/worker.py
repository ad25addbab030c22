"""One rank of one implementation: takes orders from the driver, times operations back to back.

Orders come as :mod:`ringd.bench.orders` says.
"""

from __future__ import annotations

import signal
import sys
from time import perf_counter_ns
from typing import Any

signal.signal(signal.SIGINT, signal.SIG_DFL)  # what ends a bench is for the driver to say

import torch  # noqa: E402

from ringd.bench.orders import serve  # noqa: E402
from ringd.bench.subjects import Gloo, Ringd, Subject  # noqa: E402
from ringd.bench.tensors import Tensors, dtype_of, fill, holds  # noqa: E402

WARM_UP = 3


def main(argv: list[str]) -> None:
    """``worker CONTROL ringd`` or ``worker CONTROL gloo RANK WORLD_SIZE INIT_METHOD``."""
    torch.set_num_threads(1)
    control, impl, *rest = argv
    subject: Subject = Ringd() if impl == "ringd" else Gloo(int(rest[0]), int(rest[1]), rest[2])
    kept: dict[str, Tensors] = {}
    hello = {"impl": impl, "rank": subject.rank, "n": subject.world_size}
    serve(control, hello, lambda order: measure(subject, order, kept))
    subject.close()


def measure(subject: Subject, order: dict[str, Any], kept: dict[str, Tensors]) -> dict[str, Any]:
    """A checked operation, a warm-up, then ``operations`` timed ones.

    Frames are counted from the warm-up on, so that nothing stands between it and what is timed.
    """
    op, algorithm, count = order["op"], order["algorithm"], order["count"]
    key = f"{op} {count} {order['dtype']} {order['memory']}"
    tensors = kept.get(key)
    if tensors is None:
        kept.clear()  # one size at a time: the memory of the last one is given back
        dtype = dtype_of(order["dtype"])
        tensors = kept[key] = subject.tensors(op, count, dtype, order["memory"])
    fill(tensors, subject.rank)
    subject.run(op, tensors, algorithm)
    ok = holds(tensors, op, count, subject.rank, subject.world_size)
    tensors.clear()  # from here on values do not matter
    warm_up = min(WARM_UP, order["operations"])
    before = subject.sent_frames()
    for _ in range(warm_up):
        subject.run(op, tensors, algorithm)
    times = []
    for _ in range(order["operations"]):
        begun = perf_counter_ns()
        subject.run(op, tensors, algorithm)
        times.append((perf_counter_ns() - begun) / 1e3)
    after = subject.sent_frames()
    frames = None if before is None or after is None else after - before
    return {"times_us": times, "ok": ok, "frames": frames, "calls": warm_up + order["operations"]}


if __name__ == "__main__":
    main(sys.argv[1:])
