"""Large tensors that are reduced again and again: where they lie, and what that changes."""

from __future__ import annotations

import copy
import gc
import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.torch.programs.calls import place
from tests.torch.programs.failures import caught

COUNT = 1 << 18
"""Elements of float32: 1 MiB."""
FREED_BYTES = 4 * COUNT + 12 * 4096
"""No segment of the arena has this size."""
STEPS = 8
PATIENCE_S = 30.0
MAX_ATTEMPTS = 30


def group(adopt: bool | None = True) -> Any:
    """A group of all ranks; under ringd one that adopts storages, or does not."""
    if dist.get_backend() != "ringd":
        return dist.new_group()
    from ringd_client.torch import Options

    return dist.new_group(pg_options=Options(adopt_storages=adopt))


def arena() -> Any:
    """Of the default group, whose groups share it; None under gloo."""
    world: Any = dist.distributed_c10d._get_default_group()
    return world.comm._arena if dist.get_backend() == "ringd" else None


def daemon() -> int:
    """Our daemon's process."""
    world: Any = dist.distributed_c10d._get_default_group()
    link = world._connection._transport._sock
    told = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", told)[0])


def mappings(pid: int, size_bytes: int) -> int:
    """How many mappings of memfds of this size a process has."""
    found = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        start, end = (int(word, 16) for word in line.split()[0].split("-"))
        found += "memfd:ringd" in line and end - start == size_bytes
    return found


def until(condition: Any) -> bool:
    """Whether it comes true in time."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def data(count: int = COUNT) -> torch.Tensor:
    """Different on each rank and in each place."""
    return torch.arange(count, dtype=torch.float32) % 1000 + 1000 * dist.get_rank()


def reduced(tensor: torch.Tensor, times: int = 4, where: Any = None) -> torch.Tensor:
    """The tensor, reduced so often, each time from the same data."""
    for _ in range(times):
        tensor.copy_(data(tensor.numel()))
        dist.all_reduce(tensor, group=where)
    return tensor


def calls(adopt: bool) -> Any:
    """Sums, whole and of a part, waited for here and later; how much was adopted."""
    where = group(adopt)
    tensor = torch.empty(COUNT)
    part = tensor[100:200]
    seen = [reduced(tensor, where=where).clone()]
    tensor.copy_(data())
    work = dist.all_reduce(tensor, group=where, async_op=True)
    assert work is not None
    work.wait()
    seen.append(part.clone())
    tensor.copy_(data())
    dist.all_reduce(part, op=dist.ReduceOp.MAX, group=where)
    seen.append(tensor.clone())
    hosted = arena()
    return seen, hosted.guest_bytes if hosted is not None else None


def ddp(adopt: bool, **options: Any) -> Any:
    """Losses and parameters; how many storages of a training's buckets were adopted."""
    torch.manual_seed(7)
    layers = [nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)]
    net = DistributedDataParallel(nn.Sequential(*layers), process_group=group(adopt), **options)
    optimizer = torch.optim.SGD(net.parameters(), 0.5, momentum=0.9)
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
        x = torch.randn(8, 512, generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), x.roll(1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    hosted = arena()
    guests = len(hosted._guests) if hosted is not None else None
    return losses, [p.detach().clone() for p in net.parameters()], guests


def freed(call: bool) -> Any:
    """What client and daemon have of a storage while it lives, and once it is gone."""
    where, size = group(), FREED_BYTES
    tensor = reduced(torch.empty(size // 4), where=where)

    def held() -> tuple[int, int, int]:
        return arena().guest_bytes, mappings(os.getpid(), size), mappings(daemon(), size)

    living = held()
    view = tensor[:10]
    del tensor
    gc.collect()
    still = held()
    del view
    gc.collect()
    if call:
        dist.all_reduce(torch.ones(3), group=where)
    return living, still, until(lambda: held() == (0, 0, 0))


def ineligible() -> Any:
    """What may not be moved: sums of all of it, and how much was adopted."""
    where = group()
    seen_by_numpy, shared, whole = torch.empty(COUNT), torch.empty(COUNT), torch.empty(2 * COUNT)
    alias = seen_by_numpy.numpy()
    from_numpy = torch.from_numpy(np.empty(COUNT, np.float32))
    shared.share_memory_()
    ours = arena()
    small = torch.empty(1000)
    tensors = [seen_by_numpy, from_numpy, shared, whole[:COUNT], small]
    sums = [reduced(tensor, where=where).clone() for tensor in tensors]
    for _ in range(5):
        fleeting = reduced(torch.empty(COUNT), 1, where)
    sums += [fleeting, torch.from_numpy(alias.copy())]
    return sums, ours.guest_bytes


def without_room() -> Any:
    """Nothing is adopted where torch has no room for its file."""
    from ringd_client import _adoption

    _adoption.SPARE_BYTES = 1 << 62  # type: ignore[misc]
    tensor = reduced(torch.empty(COUNT), where=group())
    return tensor, arena().guest_bytes


def without_share() -> Any:
    """Storages take half of the arena's cap at most; what comes later is copied."""
    ours = arena()
    ours.limit_bytes = 8 * 4 * COUNT
    where = group()
    kept = [reduced(torch.empty(COUNT), where=where) for _ in range(6)]
    sums = [tensor.clone() for tensor in kept]
    return sums, ours.guest_bytes


def switched(text: str) -> Any:
    """RINGD_ADOPT_STORAGES."""
    os.environ["RINGD_ADOPT_STORAGES"] = text
    try:
        reduced(torch.empty(COUNT), where=group(None))
    finally:
        del os.environ["RINGD_ADOPT_STORAGES"]
    return arena().guest_bytes


def misset() -> Any:
    """RINGD_ADOPT_STORAGES with what is neither."""
    return caught(lambda: switched("perhaps"))


def resized() -> Any:
    """torch refuses to resize it, where it would crash without a word."""
    tensor = reduced(torch.empty(COUNT), where=group())
    told = caught(lambda: tensor.untyped_storage().resize_(16))
    return told, tensor, arena().guest_bytes


def forked() -> Any:
    """A child sees the values, and what it writes is not ours."""
    tensor = reduced(torch.empty(COUNT), where=group())
    before = tensor.clone()
    child = os.fork()
    if not child:
        right = torch.equal(tensor, before)
        tensor.zero_()
        os._exit(0 if right and not tensor.any() else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    unchanged = torch.equal(tensor, before)
    return code, unchanged, reduced(tensor, 1), arena().guest_bytes


def failed() -> Any:
    """A call that fails; the storage serves on."""
    where = group()
    tensor = reduced(torch.empty(COUNT), where=where)
    called = tensor if dist.get_rank() else tensor[:-1]
    told = caught(lambda: dist.all_reduce(called, group=where))
    copied = caught(lambda: dist.all_reduce(torch.ones(4 + dist.get_rank()), group=where))
    return told, copied, reduced(tensor, 1, where), arena().guest_bytes


def peer_dies(which: int) -> Any:
    """A rank is killed while calls are under way; the storage can be read and written."""
    rank, _ = place()
    where = group()
    tensor = reduced(torch.empty(16 * COUNT), where=where)

    def go_on() -> None:
        for step in range(1000):
            if rank == which and step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(tensor, group=where)

    told = caught(go_on)
    return told, tensor.fill_(1.0).sum().item(), arena().guest_bytes


def daemon_dies() -> Any:
    """Our daemon is killed; the storage is ours as ever."""
    tensor = reduced(torch.empty(COUNT), where=group())
    dist.barrier()
    os.kill(daemon(), signal.SIGKILL)
    told = caught(lambda: dist.all_reduce(torch.ones(3)))
    return told, tensor


def daemon_stops(which: int) -> Any:
    """A rank's daemon is stopped over the deadline of a call; then the storage serves on."""
    rank, _ = place()
    where = dist.new_group(timeout=timedelta(seconds=1))
    tensor = reduced(torch.empty(COUNT), where=where)
    dist.barrier()
    if rank == which:
        os.kill(daemon(), signal.SIGSTOP)
    told = caught(lambda: dist.all_reduce(tensor, group=where))
    at_once = {}
    if rank == which:
        at_once = caught(lambda: dist.all_reduce(tensor))
        os.kill(daemon(), signal.SIGCONT)
        until(lambda: caught(lambda: dist.all_reduce(tensor)).get("class") != "MemoryInUseError")
    else:
        dist.all_reduce(tensor)
    return told, at_once, reduced(tensor, 1, where), arena().guest_bytes


def ddp_daemon_stops(which: int) -> Any:
    """A DDP model whose rank's daemon is stopped over a deadline: each attempt at a step fails on
    all ranks or on none. The texts of the errors, the attempts, and how far from a training without
    a group the parameters are."""
    rank, n = place()
    where = dist.new_group(timeout=timedelta(seconds=1))
    torch.manual_seed(7)
    alone = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
    net = DistributedDataParallel(copy.deepcopy(alone), process_group=where, bucket_cap_mb=1)
    inputs = [torch.randn(8, 512, generator=torch.Generator().manual_seed(r)) for r in range(n)]
    texts: list[str] = []

    def step(model: nn.Module, loss: Callable[[], Any]) -> None:
        model.zero_grad()
        loss().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad

    def ours() -> Any:
        return net(inputs[rank]).square().mean()

    for _ in range(4):
        step(net, ours)
    dist.barrier()
    if rank == which:
        os.kill(daemon(), signal.SIGSTOP)
    for number in range(MAX_ATTEMPTS):
        try:
            step(net, ours)
        except RuntimeError as exc:
            texts.append(str(exc))
        else:
            break
        if rank == which and number == 1:
            os.kill(daemon(), signal.SIGCONT)
    for _ in range(3):
        step(net, ours)
    for _ in range(8):
        step(alone, lambda: sum(alone(x).square().mean() for x in inputs) / n)
    pairs = zip(net.parameters(), alone.parameters(), strict=True)
    return texts, [torch.allclose(one, other, atol=1e-6) for one, other in pairs]


def another_life() -> Any:
    """A storage that was adopted serves in the next life of the group at its first call."""
    tensor = reduced(torch.empty(COUNT), where=group())
    file = os.readlink(f"/proc/self/fd/{tensor.untyped_storage()._share_fd_cpu_()[0]}")
    world: Any = dist.distributed_c10d._get_default_group()
    store, rank, size = world._store, *place()
    dist.destroy_process_group()
    from torch._C._distributed_c10d import PrefixStore

    dist.init_process_group("ringd", store=PrefixStore("next", store), rank=rank, world_size=size)
    where = group()
    before = arena().guest_bytes
    return file, before, reduced(tensor, 1, where), arena().guest_bytes
