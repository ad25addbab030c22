"""Point to point: tags, any source, batches, large messages at each other."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from tests.torch.programs.calls import place

LARGE = 16 << 20
"""Elements of float32: 64 MiB."""


def by_tag() -> Any:
    """P1: tags received in another order than sent; one tag in the order of the sends."""
    rank, _ = place()
    if rank == 0:
        dist.send(torch.ones(3), 1, tag=1)
        dist.send(torch.zeros(3), 1, tag=2)
        for tag in range(100):
            dist.isend(torch.full((2,), float(tag)), 1, tag=tag + 10)
        for i in range(3):
            dist.send(torch.full((2,), float(i)), 1, tag=7)
        return None
    if rank != 1:
        return None
    two, one = torch.full((3,), -1.0), torch.full((3,), -1.0)
    dist.recv(two, 0, tag=2)
    dist.recv(one, 0, tag=1)
    backwards = []
    for tag in reversed(range(100)):
        tensor = torch.zeros(2)
        dist.recv(tensor, 0, tag=tag + 10)
        backwards.append(tensor[0].item() == tag)
    in_order = [torch.zeros(2) for _ in range(3)]
    for tensor in in_order:
        dist.recv(tensor, 0, tag=7)
    return one, two, all(backwards), in_order


def from_anybody() -> Any:
    """recv without a source says whose message it was, in the world and in a group."""
    rank, n = place()
    group = dist.new_group(list(range(1, n)))
    seen = []
    if rank == 0:
        for _ in range(n - 1):
            tensor = torch.zeros(2)
            source = dist.recv(tensor)
            seen.append((source, tensor.tolist() == [source, source]))
    else:
        dist.send(torch.full((2,), float(rank)), 0)
    if rank == n - 1:
        for _ in range(n - 2):
            tensor = torch.zeros(1)
            source = dist.recv(tensor, group=group)
            seen.append((source, tensor.item() == source))
    elif rank > 0:
        dist.send(torch.full((1,), float(rank)), n - 1, group=group)
    return sorted(seen)


def batches() -> Any:
    """batch_isend_irecv around a ring, in both orders; complex numbers; another group."""
    rank, n = place()
    after, before = (rank + 1) % n, (rank - 1) % n
    seen = []
    for turn in range(2):
        got = torch.zeros(4)
        ops = [
            dist.P2POp(dist.isend, torch.arange(4.0) + 10 * rank, after),
            dist.P2POp(dist.irecv, got, before),
        ]
        for work in dist.batch_isend_irecv(ops[:: 1 if turn else -1]):
            work.wait()
        seen.append(got)
    number = torch.zeros(2, dtype=torch.complex64)
    request = dist.irecv(number, before)
    dist.isend(torch.tensor([rank + 1j, 2j]), after).wait()
    request.wait()
    return [*seen, number]


def large_at_each_other() -> Any:
    """P3: both send 64 MiB first and receive then; poll without waiting."""
    rank, n = place()
    peer = (rank + 1) % n
    mine, got = torch.arange(float(LARGE)) + rank, torch.zeros(LARGE)
    began = time.monotonic()
    sending = dist.isend(mine, peer)
    receiving = dist.irecv(got, (rank - 1) % n)
    while not (sending.is_completed() and receiving.is_completed()):
        assert time.monotonic() - began < 50
    exact = torch.equal(got, torch.arange(float(LARGE)) + (rank - 1) % n)
    return exact


def to_oneself() -> str:
    """P3: a message to one's own rank works, or is refused at once."""
    tensor = torch.zeros(2)
    try:
        receiving = dist.irecv(tensor, dist.get_rank())
        dist.isend(torch.ones(2), dist.get_rank()).wait()
        receiving.wait()
    except ValueError:
        return "ValueError"
    return str(tensor.tolist())
