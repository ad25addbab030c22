"""Data-parallel training: gradients are averaged while the backward pass still runs.

Each rank holds the whole model and a share of the digits of scikit-learn. The parameters of
rank 0 are broadcast once. After that, all ranks average their gradients in each step, so their
models stay equal bit for bit.

Three habits make it quick:

- gradients travel in buckets, not one by one;
- a bucket leaves as soon as its last gradient is there, and since the backward pass computes the
  last layers first, their buckets travel while the first layers are still being computed;
- buckets lie in memory that the daemon sees (``comm.empty``), and each ``grad`` is a view into
  its bucket: no gradient is ever copied.

Run it with: ringd run -n 4 -- python examples/data_parallel.py
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn

import ringd_client

BATCH = 32
RATE = 0.2
BUCKET_BYTES = 16 * 1024  # this network is tiny; with real ones 25 MB is usual
PRINT_EVERY = 10


class Bucket:
    """Gradients that travel together; they are views into one flat tensor."""

    def __init__(self, comm: ringd_client.Communicator, parameters: list[nn.Parameter]) -> None:
        self.comm = comm
        self.size = len(parameters)
        self.flat = comm.empty(sum(p.numel() for p in parameters))
        sizes = [p.numel() for p in parameters]
        for parameter, part in zip(parameters, self.flat.split(sizes), strict=True):
            parameter.grad = part.view_as(parameter)
            parameter.register_post_accumulate_grad_hook(self.gradient_is_there)
        self.clear()

    def clear(self) -> None:
        """Before a backward pass, which adds to what is there."""
        self.flat.zero_()
        self.missing = self.size
        self.handle = None

    def gradient_is_there(self, _: torch.Tensor) -> None:
        """Called by autograd, in the middle of the backward pass."""
        self.missing -= 1
        if self.missing == 0:
            self.handle = self.comm.all_reduce_async(self.flat, op="avg")


def make_buckets(comm: ringd_client.Communicator, model: nn.Module) -> list[Bucket]:
    """Buckets in the order in which the backward pass fills them; the same on all ranks."""
    groups: list[list[nn.Parameter]] = [[]]
    for parameter in reversed(list(model.parameters())):
        if groups[-1] and sum(p.nbytes for p in [*groups[-1], parameter]) > BUCKET_BYTES:
            groups.append([])
        groups[-1].append(parameter)
    return [Bucket(comm, group) for group in groups]


def load(rank: int, world_size: int) -> tuple[torch.Tensor, ...]:
    """This rank's share of the training digits, and all test digits."""
    x, y = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = (x[order] / 16).float(), y[order]
    share = slice(360 + rank, None, world_size)
    return x[share], y[share], x[:360], y[:360]


def batches(x: torch.Tensor, epoch: int, rank: int, steps: int) -> list[torch.Tensor]:
    """Indices of the batches of an epoch; every rank makes the same number of steps."""
    chance = torch.Generator().manual_seed(1000 * epoch + rank)
    order = torch.randperm(len(x), generator=chance)
    return list(order.split(BATCH)[:steps])


def train(comm: ringd_client.Communicator, epochs: int) -> None:
    x, y, test_x, test_y = load(comm.rank, comm.world_size)
    steps_per_epoch = (1797 - 360) // comm.world_size // BATCH

    torch.manual_seed(comm.rank)  # each rank starts elsewhere, and the broadcast makes them equal
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    model.append(nn.Linear(64, 10))
    for parameter in model.parameters():
        comm.broadcast(parameter, root=0)

    buckets = make_buckets(comm, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    step = 0
    for epoch in range(epochs):
        for batch in batches(x, epoch, comm.rank, steps_per_epoch):
            for bucket in buckets:
                bucket.clear()
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            loss.backward()  # the buckets leave in here
            for bucket in buckets:
                bucket.handle.wait()
            optimizer.step()
            if step % PRINT_EVERY == 0:
                mean = comm.all_reduce(loss.detach(), op="avg")
                if comm.rank == 0:
                    print(f"step {step:>4}  loss {mean.item():.7f}")
            step += 1

    with torch.no_grad():
        right = (model(test_x).argmax(1) == test_y).float().mean().item()
    if comm.rank == 0:
        print(f"accuracy {right:.4f} after {step} steps, {len(buckets)} buckets")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()
    with ringd_client.connect() as communicator:
        train(communicator, arguments.epochs)
