"""Training as people do it; what is returned is the loss of each step, and the parameters."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.torch.programs.calls import place

STEPS = 5


def model() -> nn.Module:
    """A small network, the same on all ranks."""
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
    )


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's inputs and labels of a step."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    x = torch.randn(8, 16, generator=generator)
    return x, (x.sum(1) > 0).long() + 2 * (x[:, 0] > 0).long()


def train(net: nn.Module, optimizer: Any) -> list[float]:
    """Some steps; the loss of each, on this rank."""
    losses = []
    for step in range(STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def parameters(net: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in net.parameters()]


def ddp(**options: Any) -> Any:
    """Plain, or with bucket views, a static graph, small buckets."""
    net = DDP(model(), **options)
    losses = train(net, torch.optim.Adam(net.parameters(), 0.01))
    return losses, parameters(net)


def ddp_no_sync() -> Any:
    """Gradients of two backward passes are added up before one reduction."""
    net = DDP(model(), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(step)
        with net.no_sync():
            nn.functional.cross_entropy(net(x), y).backward()
        loss = nn.functional.cross_entropy(net(x * 2), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, parameters(net)


def ddp_unused() -> Any:
    """Parameters that some ranks do not use."""

    class Forked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = model(), model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.one(x) if dist.get_rank() == 0 else self.other(x)  # type: ignore[no-any-return]

    net = DDP(Forked(), find_unused_parameters=True)
    return train(net, torch.optim.SGD(net.parameters(), 0.1)), parameters(net)


def ddp_power_sgd() -> Any:
    """A hook whose callbacks wait for other collectives."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

    net = DDP(model())
    state = powersgd.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    net.register_comm_hook(state, powersgd.powerSGD_hook)
    return train(net, torch.optim.SGD(net.parameters(), 0.1))


def ddp_narrow(name: str) -> Any:
    """Gradients travel in 16 bits: by our hook, and with gloo by torch's.

    Beside the training, the mean of gradients of which each rank has another value, in exact
    numbers: rounded once on each rank.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    theirs = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}
    if dist.get_backend() == "ringd":
        import ringd_client.torch

        hook: Any = getattr(ringd_client.torch.hooks, name)
    else:
        # Under its own name DDP refuses it where there is no GPU.
        hook = lambda state, bucket: theirs[name](state, bucket)  # noqa: E731

    net = DDP(model(), bucket_cap_mb=0.002)
    net.register_comm_hook(None, hook)
    losses = train(net, torch.optim.SGD(net.parameters(), 0.1))
    wide = DDP(nn.Linear(64, 3, bias=False))
    wide.register_comm_hook(None, hook)
    wide(values(dist.get_rank())).sum().backward()
    return losses, parameters(net), wide.module.weight.grad


def values(rank: int) -> torch.Tensor:
    """What ``ddp_narrow`` has as a rank's gradients, in each row; of many sizes and both signs."""
    i = torch.arange(64.0)
    return (torch.sin(i * 3 + rank) * 2.0 ** (i % 13 - 6)).view(1, 64)


def ddp_complex() -> Any:
    """N7: a complex layer."""
    torch.manual_seed(3)
    net = DDP(nn.Linear(4, 4, dtype=torch.complex64))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    losses = []
    for step in range(3):
        x = torch.randn(4, 4, dtype=torch.complex64)
        optimizer.zero_grad()
        loss = (net(x) - step).abs().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [torch.view_as_real(p) for p in parameters(net)]


def zero() -> Any:
    """ZeroRedundancyOptimizer: each rank keeps a part of the optimizer's state."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = DDP(model())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
    losses = train(net, optimizer)
    optimizer.consolidate_state_dict(to=0)
    return losses, parameters(net)


def fsdp2() -> Any:
    """fully_shard, layer by layer."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net: Any = model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    losses = train(net, torch.optim.Adam(net.parameters(), 0.01))
    return losses, [p.detach().full_tensor() for p in net.parameters()]


def four_ways() -> Any:
    """Gradients by scatter and gather, by isend and irecv, by all_reduce, by DDP: one loss."""
    rank, n = place()

    def mean_by_root(grad: torch.Tensor) -> None:
        outs = [torch.zeros_like(grad) for _ in range(n)] if rank == 0 else None
        dist.gather(grad, outs, dst=0)
        mean = [sum(outs) / n for _ in range(n)] if outs is not None else None  # type: ignore[arg-type]
        dist.scatter(grad, mean, src=0)

    def mean_by_messages(grad: torch.Tensor) -> None:
        mine, others = grad.clone(), [torch.zeros_like(grad) for _ in range(n)]
        peers = [r for r in range(n) if r != rank]
        works = [dist.irecv(others[r], r) for r in peers] + [dist.isend(mine, r) for r in peers]
        for work in works:
            work.wait()
        others[rank] = mine
        grad.copy_(sum(others) / n)  # type: ignore[arg-type]

    def mean_by_all_reduce(grad: torch.Tensor) -> None:
        dist.all_reduce(grad)
        grad /= n

    seen = []
    for exchange in (mean_by_root, mean_by_messages, mean_by_all_reduce, None):
        net: nn.Module = model() if exchange else DDP(model())
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        losses = []
        for step in range(STEPS):
            x, y = batch(step)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            for parameter in net.parameters() if exchange else ():
                assert parameter.grad is not None
                exchange(parameter.grad)  # type: ignore[misc]
            optimizer.step()
            losses.append(loss.item())
        seen.append(copy.copy(losses))
    return seen
