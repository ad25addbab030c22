"""What a rank lives through while another one fails."""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import Any

import numpy as np

import ringd_client
from ringd.errors import RingdError
from tests.processes.programs.basics import outcome
from tests.processes.trainer import Stage


def reduce_until_error(stage: Stage, count: int = 1000, in_flight: int = 4) -> dict[str, Any]:
    """Sum again and again, several in flight; then what every pending and later call says."""
    comm = stage.comm
    handles: list[Any] = []
    completed = 0
    told: dict[str, Any]
    while True:
        try:
            while len(handles) < in_flight:
                handles.append(comm.all_reduce_async(np.ones(count, np.float32)))
            assert handles[0].wait()[0] == comm.world_size
            handles.pop(0)
            completed += 1
        except RingdError as exc:
            told = {"at": time.monotonic(), "error": type(exc).__name__, "fields": exc.fields}
            told["text"] = str(exc)
            break
    begun = time.monotonic()
    pending = [outcome(handle.wait) for handle in handles]
    later = [outcome(comm.barrier), outcome(lambda: comm.all_reduce(np.ones(3)))]
    return told | {
        "completed": completed,
        "pending": pending,
        "later": later,
        "ending_took_s": time.monotonic() - begun,
    }


def reduce_until_error_in_a_loop(stage: Stage) -> dict[str, Any]:
    """The same through the asyncio face, with awaited and forgotten handles."""
    return asyncio.run(_reduce_until_error())


async def _reduce_until_error() -> dict[str, Any]:
    comm = await ringd_client.connect_async()
    handles: list[Any] = []
    try:
        while True:
            while len(handles) < 4:
                handles.append(comm.all_reduce(np.ones(1000, np.float32)))
            await handles.pop(0)
    except RingdError as exc:
        told = {"at": time.monotonic(), "error": type(exc).__name__, "fields": exc.fields}
    pending = await asyncio.gather(*handles, return_exceptions=True)
    told["pending"] = [type(error).__name__ for error in pending]
    await comm.close()
    return told


def reduce_then_vanish(stage: Stage, times: int) -> None:
    """Sum so often, then end the process at once: sockets close, no goodbye is said."""
    for _ in range(times):
        stage.comm.all_reduce(np.ones(1000, np.float32))
    os._exit(0)


def reduce_then_raise(stage: Stage, times: int) -> None:
    """Sum so often, then leave the ``with`` block by an exception."""
    try:
        with stage.comm as comm:
            for _ in range(times):
                comm.all_reduce(np.ones(1000, np.float32))
            raise ZeroDivisionError("the loss is not a number")
    except ZeroDivisionError:
        stage.comm = None


def call(stage: Stage, count: int = 5, times: int = 1, **options: Any) -> dict[str, Any]:
    """Sums of ones; how the last ended."""
    comm = stage.comm
    result: dict[str, Any] = {}
    for _ in range(times):
        mine = np.ones(count, np.float32)
        result = outcome(lambda mine=mine: float(comm.all_reduce(mine, **options)[-1]))
        result["untouched"] = bool((mine == 1).all())
    return result


def call_async(stage: Stage, count: int = 5, **options: Any) -> None:
    """Begin a sum and keep its handle."""
    handle = stage.comm.all_reduce_async(np.ones(count, np.float32), **options)
    stage.kept.setdefault("handles", []).append(handle)


def wait(stage: Stage, timeout_s: float | None = None) -> dict[str, Any]:
    """Wait for the handle that was kept first; it is kept on if only the wait expired."""
    handle = stage.kept["handles"][0]
    ended = outcome(lambda: float(handle.wait(timeout_s)[-1]))
    if handle.done():
        stage.kept["handles"].pop(0)
    return ended


def meet(stage: Stage, **options: Any) -> dict[str, Any]:
    """A barrier; how it ended."""
    return outcome(lambda: stage.comm.barrier(**options))


def cast(stage: Stage, root: int, count: int, times: int = 1) -> dict[str, Any]:
    """Broadcasts of the root's rank + 1; how the last ended."""
    comm = stage.comm
    result: dict[str, Any] = {}
    for _ in range(times):
        mine = np.full(count, comm.rank + 1.0)
        result = outcome(lambda mine=mine: float(comm.broadcast(mine, root)[-1]))
    return result


def cast_large(stage: Stage, count: int, timeout_s: float) -> dict[str, Any]:
    """Broadcast numbered elements from rank 0; how it ended, and if the tensor is untouched."""
    comm = stage.comm
    numbered = np.arange(count, dtype=np.float32)
    mine = numbered.copy() if comm.rank == 0 else np.full(count, -1, np.float32)
    result = outcome(lambda: comm.broadcast(mine, 0, timeout_s=timeout_s) is mine)
    wanted = numbered if comm.rank == 0 or result["error"] is None else -1
    result["right"] = bool((mine == wanted).all())
    return result


def cast_and_leave(stage: Stage, root: int, count: int) -> dict[str, Any]:
    """Broadcast, then say goodbye at once."""
    result = cast(stage, root, count)
    stage.comm.close()
    stage.comm = None
    return result


def connect_and_leave(stage: Stage, timeout_s: float) -> dict[str, Any]:
    """D4: attach, and close without a single call."""

    def come_and_go() -> int:
        with ringd_client.connect(timeout_s=timeout_s) as comm:
            epoch: int = comm.epoch
            return epoch

    return outcome(come_and_go)


def soak(stage: Stage, rounds: int, max_count: int, skew_ms: float) -> dict[str, Any]:
    """T7: sums of mixed sizes with random skew; what was wrong or late."""
    comm = stage.comm
    same, own = random.Random(7), random.Random(comm.rank)
    wrong: list[str] = []
    slowest_s = 0.0
    position = np.arange(max_count, dtype=np.float32) % 1000
    weight = float(sum(range(1, comm.world_size + 1)))
    for number in range(rounds):
        count = int(max_count ** same.random())
        scale = np.float32(number % 7 + 1)
        mine = position[:count] * scale * np.float32(comm.rank + 1)
        time.sleep(own.uniform(0, skew_ms) / 1e3)
        begun = time.monotonic()
        comm.all_reduce(mine, timeout_s=60)
        slowest_s = max(slowest_s, time.monotonic() - begun)
        if not np.array_equal(mine, position[:count] * scale * np.float32(weight)):
            wrong.append(f"round {number}, {count} elements")
    return {"wrong": wrong, "slowest_s": slowest_s, "seq": comm.status()["next_seq"]}


def mixed(stage: Stage, rounds: int) -> dict[str, Any]:
    """Every collective, many sizes, in both kinds of memory; what this process holds after."""
    comm = stage.comm
    n = comm.world_size
    for number in range(rounds):
        count = (1, 100, 5_000, 70_000, 200_000)[number % 5]
        kind = ("float32", "int64", "float64")[number % 3]
        arena = number % 2
        array = comm.empty(count, kind, like="numpy") if arena else np.empty(count, kind)
        array[...] = 1
        what = number % 7
        if what < 3:
            handle = comm.all_reduce_async(array, algorithm=("auto", "ring", "direct")[what])
            if number % 4:
                handle.wait()
        elif what == 3:
            comm.reduce_scatter(array, np.ones((n, count), kind))
        elif what == 4:
            comm.all_gather(np.empty((n, count), kind), array)
        elif what == 5:
            comm.broadcast(array, number % n)
        else:
            comm.barrier()
    comm.barrier()
    held = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if entry.is_symlink()]
    segments = sum("memfd:ringd" in path for path in held)
    return {
        "fds": len(held) - segments,
        "segments": segments,
        "threads": len(os.listdir("/proc/self/task")),
    }


def latencies(stage: Stage, what: str, rounds: int) -> list[float]:
    """Seconds that each of so many barriers, or one-element sums, took."""
    comm = stage.comm
    one = np.ones(1, np.float32)
    took = []
    for _ in range(rounds):
        begun = time.perf_counter()
        if what == "barrier":
            comm.barrier()
        else:
            comm.all_reduce(one)
        took.append(time.perf_counter() - begun)
    return took


def gather_many(stage: Stage, rounds: int) -> list[int]:
    """F1: all_gathers of changing sizes, about 16 x 2048 float32; the rounds that were wrong."""
    comm = stage.comm
    wrong = []
    for number in range(rounds):
        rows = 1 + number * 5 % 31
        mine = np.full((rows, 2048), number % 1000 + comm.rank, np.float32)
        output = np.empty((comm.world_size, rows, 2048), np.float32)
        comm.all_gather(output, mine)
        first = output[:, 0, 0] == np.arange(comm.world_size) + number % 1000
        last = output[:, -1, -1] == output[:, 0, 0]
        if not (first.all() and last.all()):
            wrong.append(number)
    return wrong
