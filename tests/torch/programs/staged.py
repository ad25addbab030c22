"""Calls on tensors that the daemon can't reach: on a GPU, or on what stands for one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from ringd.errors import UnsupportedTypeError
from ringd_client._torch import TorchAdapter
from tests.torch.programs.calls import place
from tests.torch.programs.failures import caught


@contextmanager
def stand_in(place_of: str, stream: Callable[[torch.Tensor], Any]) -> Iterator[None]:
    """A new default group, for which every tensor outside of the arena is as if on a GPU.

    Args:
        place_of: a folder that all ranks share.
        stream: in place of the current stream of a GPU.
    """
    from ringd_client.torch import staging

    rank, n = place()
    dist.destroy_process_group()

    def is_remote(tensor: torch.Tensor) -> bool:
        arena = dist.group.WORLD.comm._arena  # type: ignore[union-attr]
        return tensor.nbytes > 0 and arena.find(tensor.data_ptr(), tensor.nbytes) is None

    def describe(adapter: TorchAdapter, tensor: torch.Tensor) -> Any:
        if is_remote(tensor):  # as of one on a GPU
            raise UnsupportedTypeError("a tensor went past its staging")
        return plainly(adapter, tensor)

    plainly = TorchAdapter.describe
    store = dist.FileStore(f"{place_of}/staged", n)
    with (
        mock.patch.object(TorchAdapter, "describe", describe),
        mock.patch.object(torch.backends.cuda, "is_built", return_value=True),
        mock.patch.object(staging, "is_remote", is_remote),
        mock.patch.object(staging, "stream_of", stream),
    ):
        dist.init_process_group("ringd", store=store, rank=rank, world_size=n)
        yield


@contextmanager
def no_stream() -> Iterator[None]:
    """A stream that is none."""
    yield


def run(calling: Callable[[], Any], place_of: str) -> Any:
    """A program whose tensors are all staged under ringd; under gloo as it is."""
    if dist.get_backend() == "gloo":
        return calling()
    with stand_in(place_of, lambda _: no_stream()):
        return calling()


class Streams:
    """Notes what is written to a tensor on which stream."""

    def __init__(self) -> None:
        self.current = "first"
        self.seen: list[tuple[str, list[float], list[float]]] = []

    def of(self, tensor: torch.Tensor) -> Any:
        name = self.current

        @contextmanager
        def block() -> Iterator[None]:
            before = tensor.tolist()
            yield
            self.seen.append((name, before, tensor.tolist()))

        return block()


def order(place_of: str) -> Any:
    """When inputs are read and results written, and on which stream."""
    streams = Streams()
    with stand_in(place_of, streams.of):
        rank, _ = place()
        tensor = torch.arange(3.0) + rank
        work = dist.all_reduce(tensor, async_op=True)
        tensor.fill_(-1)  # the input was read when the call was made
        streams.current = "second"
        dist.barrier()  # the operation is over now, but nobody has waited for it
        unwritten = tensor.tolist()
        work.wait()
        work.wait()
        waited = tensor.tolist()
        future = dist.all_reduce(torch.full((2,), rank + 1.0), async_op=True).get_future()
        by_future = future.wait()[0].tolist()
        sent = torch.full((2,), rank + 5.0)
        if rank == 0:
            dist.send(sent, 1)
        elif rank == 1:
            dist.recv(sent, 0)
        reduced = torch.full((2,), rank + 1.0)
        dist.reduce(reduced, 0)
        spread = torch.full((2,), rank + 1.0)
        dist.broadcast(spread, 0)
        return streams.seen, unwritten, waited, by_future, sent.tolist(), reduced.tolist()


def failing(place_of: str) -> Any:
    """A call that fails leaves what it was given; the next one works."""
    with stand_in(place_of, lambda _: no_stream()):
        rank, _ = place()
        tensor = torch.full((12 if rank else 10,), float(rank))
        seen = caught(lambda: dist.all_reduce(tensor))
        odd = torch.ones(2, dtype=torch.uint16 if rank else torch.int16)
        refused = caught(lambda: dist.all_reduce(odd))
        overlapping = torch.zeros(1).expand(4) if rank else torch.zeros(4)
        shared = caught(lambda: dist.all_reduce(overlapping))
        after = torch.ones(2)
        dist.all_reduce(after)
        return tensor, [seen, refused, shared], after


def on_autograd(place_of: str) -> Any:
    """S7: parameters, inference tensors, what a backward pass has saved."""
    with stand_in(place_of, lambda _: no_stream()):
        parameter = torch.nn.Parameter(torch.ones(3))
        dist.all_reduce(parameter)
        with torch.inference_mode():
            kept = torch.ones(2)
            outs = [torch.zeros(2) for _ in range(dist.get_world_size())]
            work = dist.all_reduce(kept, async_op=True)
            dist.all_gather(outs, kept)
        work.wait()
        version = parameter._version
        return (
            parameter.detach().tolist(),
            (parameter.requires_grad, parameter.is_leaf, parameter.grad, version),
            kept.tolist(),
            outs[-1].tolist(),
        )


def on_gpu() -> Any:
    """The plain calls on the first GPU, which all ranks share; and what was queued is seen."""
    os.environ["CUDA_LAUNCH_BLOCKING"] = "0"
    rank, n = place()
    device = torch.device("cuda", 0)
    side: Any = torch.cuda.Stream(device)
    busy = torch.ones(2048, 2048, device=device)
    with torch.cuda.stream(side):
        tensor = torch.zeros(1 << 20, device=device)
        for _ in range(20):
            busy = busy @ busy / 2048  # the next line runs a while after its call
        tensor += rank + 1
        work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    seen: list[Any] = [tensor.cpu()]
    grid = (torch.arange(6.0, device=device) + 10 * rank).view(2, 3).t()
    dist.broadcast(grid, n - 1)
    outs = [torch.empty(3, 2, device=device) for _ in range(n)]
    dist.all_gather(outs, grid + rank)
    part = torch.empty(2, device=device)
    dist.reduce_scatter_tensor(part, torch.arange(2.0 * n, device=device) + rank)
    if rank == 0:
        dist.send(grid + 7, 1)
    elif rank == 1:
        dist.recv(grid, 0)
    works = dist.all_reduce_coalesced([part.clone(), grid.clone()], async_op=True)
    works.wait()
    half = torch.ones(5, dtype=torch.bfloat16, device=device)
    dist.all_reduce(half)
    seen += [grid.cpu(), [out.cpu() for out in outs], part.cpu(), half.cpu()]
    return seen
