"""Point-to-point messages: matching, order, large ones both ways, and a receiver that does not."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import ringd_client
from ringd.errors import TooManyOperationsError
from tests.processes.programs.basics import outcome
from tests.processes.trainer import Stage

LARGE = 16_000_000  # float32: 64 MB


def tagged(stage: Stage, n_tags: int) -> Any:
    """P1: rank 0 sends ones with tag 1 and zeros with tag 2, and so on; rank 1 asks backwards."""
    comm = stage.comm
    if comm.rank == 0:
        comm.send(np.ones(3), 1, tag=1)
        comm.send(np.zeros(3), 1, tag=2)
        for tag in range(n_tags):
            comm.send(np.array([tag, tag * tag]), 1, tag=10 + tag)
        for number in range(3):  # the same tag, in two sizes: small ones and one that is offered
            comm.send(np.full(10, number), 1, tag=5)
        comm.isend(np.full(100_000, 3), 1, tag=5).wait()
        return None
    second, first = np.full(3, 7.0), np.full(3, 7.0)
    comm.recv(second, 0, tag=2)
    comm.recv(first, 0, tag=1)
    backwards = []
    for tag in reversed(range(n_tags)):
        taken = np.zeros(2, np.int64)
        comm.recv(taken, 0, tag=10 + tag)
        backwards.append(taken.tolist() == [tag, tag * tag])
    same = [np.zeros(10, np.int64) for _ in range(3)] + [np.zeros(100_000, np.int64)]
    for taken in same:
        comm.recv(taken, 0, tag=5)
    return {
        "first": first.tolist(),
        "second": second.tolist(),
        "backwards": backwards,
        "same": [sorted(set(taken.tolist())) for taken in same],
    }


def _large(comm: Any) -> Any:
    return np.arange(LARGE, dtype=np.float32) % 1000 + comm.rank


def around(stage: Stage) -> dict[str, Any]:
    """P3: isend 64 MB to the right, irecv from the left, then wait for both."""
    comm, n = stage.comm, stage.comm.world_size
    taken = np.zeros(LARGE, np.float32)
    begun = time.monotonic()
    sent = comm.isend(_large(comm), (comm.rank + 1) % n)
    received = comm.irecv(taken, (comm.rank - 1) % n)
    source = received.wait(30)
    sent.wait(30)
    took_s = time.monotonic() - begun
    wanted = np.arange(LARGE, dtype=np.float32) % 1000 + source
    return {"source": source, "right": bool((taken == wanted).all()), "took_s": took_s}


def polled(stage: Stage, patience_s: float) -> dict[str, bool]:
    """P3: done() turns True by itself, without a wait."""
    comm = stage.comm
    peer = 1 - comm.rank
    taken = np.zeros(LARGE, np.float32)
    handles = [comm.isend(_large(comm), peer), comm.irecv(taken, peer)]
    deadline = time.monotonic() + patience_s
    while not all(handle.done() for handle in handles) and time.monotonic() < deadline:
        time.sleep(0.001)
    return {
        "done": all(handle.done() for handle in handles),
        "right": bool(taken[-1] == (LARGE - 1) % 1000 + peer),
    }


def to_oneself(stage: Stage) -> list[dict[str, Any]]:
    """P3: messages to and from this rank itself, and other calls that are no good."""
    comm = stage.comm
    wrong: list[Any] = [
        lambda: comm.send(np.ones(3), comm.rank),
        lambda: comm.isend(np.ones(3), comm.rank),
        lambda: comm.recv(np.ones(3), comm.rank),
        lambda: comm.irecv(np.ones(3), comm.rank),
        lambda: comm.send(np.ones(3), comm.world_size),
        lambda: comm.send(np.ones(3), 1 - comm.rank, tag=-1),
        lambda: comm.send(np.ones(3), 1 - comm.rank, tag=2**31),
        lambda: comm.batch_p2p(
            [ringd_client.Send(np.ones(3), 1 - comm.rank), ringd_client.Recv(np.ones(3), comm.rank)]
        ),
    ]
    return [outcome(call) for call in wrong]


def dawdle(stage: Stage) -> None:
    """What keeps a rank from its send."""
    time.sleep(3.0)


def receive_from_who_sleeps(stage: Stage, source: int, timeout_s: float) -> dict[str, Any]:
    """A receive that nobody sends for; how it ended."""
    return outcome(lambda: stage.comm.recv(np.ones(3), source, timeout_s=timeout_s))


def all_reduce_with_who_sleeps(stage: Stage, source: int, timeout_s: float) -> dict[str, Any]:
    """A collective that waits for ``source``, among others; how it ended."""
    del source
    return outcome(lambda: stage.comm.all_reduce(np.ones(3), timeout_s=timeout_s))


def reduce_while_one_waits(stage: Stage, pair: bool, timeout_s: float) -> dict[str, Any] | None:
    """Rank 0 reduces with rank 1 (or all), which waits for a message of rank 2, which dawdles."""
    comm = stage.comm
    group = comm.new_group([0, 1]) if pair else comm
    if comm.rank == 1:
        comm.recv(np.ones(3), 2)
    elif comm.rank == 2:
        dawdle(stage)
        comm.send(np.ones(3), 1)
    if group is None:
        return None
    told = outcome(lambda: group.all_reduce(np.ones(3), timeout_s=timeout_s))
    if pair:
        group.close()
    return told


def receive_from_each_other(stage: Stage, timeout_s: float) -> dict[str, Any]:
    """Neither of two ranks sends."""
    taken = np.ones(3)
    return outcome(lambda: stage.comm.recv(taken, 1 - stage.comm.rank, timeout_s=timeout_s))


def both_send(stage: Stage, timeout_s: float) -> dict[str, Any]:
    """P3: two blocking sends of 64 MB at each other; then a message that is received."""
    comm = stage.comm
    peer = 1 - comm.rank
    data = _large(comm)
    first = outcome(lambda: comm.send(data, peer, timeout_s=timeout_s))
    # Another tag: the peer's large send may have some milliseconds left, and would be taken.
    sent, taken = comm.isend(np.full(3, comm.rank), peer, tag=1), np.full(3, -1)
    comm.recv(taken, peer, tag=1)
    sent.wait()
    return {"first": first, "next": taken.tolist()}


def exchange_in_batch(stage: Stage, count: int) -> dict[str, Any]:
    """Everybody sends everybody else a tensor, in one batch; sources in order."""
    comm, n = stage.comm, stage.comm.world_size
    others = [rank for rank in range(n) if rank != comm.rank]
    taken = {rank: np.zeros(count, np.int64) for rank in others}
    sends = [ringd_client.Send(np.full(count, comm.rank * n + r), r, tag=r) for r in others]
    receives = [ringd_client.Recv(taken[r], r, tag=comm.rank) for r in others]
    handles = comm.batch_p2p([*sends, *receives])
    told = [handle.wait() for handle in handles]
    right = all((taken[r] == r * n + comm.rank).all() for r in others)
    return {"told": told, "right": bool(right)}


def from_anybody(stage: Stage, rounds: int) -> dict[str, Any]:
    """Rank 0 receives from any source what all others send; each source's are in order."""
    comm, n = stage.comm, stage.comm.world_size
    if comm.rank:
        for number in range(rounds):
            comm.send(np.array([comm.rank, number]), 0, tag=3)
        return {}
    came: dict[int, list[int]] = {rank: [] for rank in range(1, n)}
    honest = True
    for _ in range(rounds * (n - 1)):
        taken = np.zeros(2, np.int64)
        source = comm.recv(taken, tag=3)
        honest = honest and source == taken[0]
        came[source].append(int(taken[1]))
    return {"honest": bool(honest), "in_order": [came[rank] for rank in range(1, n)]}


def mismatched(stage: Stage) -> list[dict[str, Any]]:
    """A small and a large message whose receiver expects something else; then a proper one."""
    comm = stage.comm
    peer = 1 - comm.rank
    if comm.rank == 0:
        told = [
            outcome(lambda: comm.send(np.ones(10, np.float32), peer)),
            outcome(lambda: comm.send(np.ones(100_000, np.float32), peer)),
        ]
        comm.send(np.full(4, 9.0), peer)
        return told
    tensors = [np.full(10, -1, np.int32), np.full(100_001, -1, np.float32)]
    told = [outcome(lambda t=tensor: comm.recv(t, peer)) for tensor in tensors]
    for call, tensor in zip(told, tensors, strict=True):
        call["untouched"] = bool((tensor == -1).all())
    taken = np.zeros(4)
    comm.recv(taken, peer)
    return [*told, {"value": taken.tolist()}]


def receive_late(stage: Stage, timeout_s: float) -> dict[str, Any]:
    """A receive that runs out of time takes no message with it."""
    comm = stage.comm
    peer = 1 - comm.rank
    taken = np.full(3, -1.0)
    first = outcome(lambda: comm.recv(taken, peer, tag=8, timeout_s=timeout_s))
    first["untouched"] = bool((taken == -1).all())
    return first


def send_number(stage: Stage, number: float) -> None:
    """One small message with tag 8."""
    stage.comm.send(np.full(3, number), 1 - stage.comm.rank, tag=8)


def receive_number(stage: Stage) -> list[float]:
    """And its receive."""
    taken = np.zeros(3)
    stage.comm.recv(taken, 1 - stage.comm.rank, tag=8)
    values: list[float] = taken.tolist()
    return values


# ---------------------------------------------------------------- a receiver that does not receive

SMALL = 512  # float64: 4 KiB


def flood(stage: Stage, small: int, large: int) -> None:
    """Send so many small messages and a few large ones, as fast as the peer lets us."""
    comm = stage.comm
    flying: list[Any] = []
    for number in range(small + large):
        count = SMALL if number < small else LARGE // 4
        data = np.full(count, number, np.float64)
        while True:
            try:
                flying.append(comm.isend(data, 1, timeout_s=110))
                break
            except TooManyOperationsError:
                flying.pop(0).wait()
    for handle in flying:
        handle.wait()


def drain(stage: Stage, small: int, large: int) -> list[int]:
    """Receive them all; the numbers of those that came out of order or wrong."""
    comm = stage.comm
    wrong = []
    for number in range(small + large):
        taken = np.zeros(SMALL if number < small else LARGE // 4)
        comm.recv(taken, 0)
        if not (taken == number).all():
            wrong.append(number)
    return wrong[:20]


def send_one(stage: Stage, number: int) -> dict[str, Any]:
    """Rank 0 sends a number; how that ended."""
    return outcome(lambda: stage.comm.send(np.array([number]), 1))


def receive_one(stage: Stage, timeout_s: float) -> dict[str, Any]:
    """Rank 1 receives a number; it, or how that ended."""
    taken = np.array([-1])
    ended = outcome(lambda: stage.comm.recv(taken, 0, timeout_s=timeout_s) and None)
    return {**ended, "number": int(taken[0])}


def between(stage: Stage, ranks: list[int]) -> dict[str, Any] | None:
    """One of two ranks sends to the other: how that ended; None: on the others nothing happened."""
    comm = stage.comm
    if comm.rank not in ranks:
        return None
    first, second = ranks
    if comm.rank == first:
        return outcome(lambda: comm.send(np.ones(3), second))
    return outcome(lambda: comm.recv(np.zeros(3), first) and None)
